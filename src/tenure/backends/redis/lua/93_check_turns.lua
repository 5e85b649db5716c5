-- ── checks of a queue's place among the turns, and its repair ────────────────────────────────────────────────────────

-- The fault of a shard's queue, or nil: it has work, and claim_any would not find it in time.
function L.wrong_with_turn(b, grace)
  if not L.in_reach(b.base) then return nil end
  local p = L.place_of(b.base)
  if call('EXISTS', p.registry .. ':indexed') == 0 then return nil end
  local in_turn = call('ZSCORE', p.turns, p.queue)
  if in_turn and not call('ZSCORE', p.registry .. ':turns', p.tenant) then return 'tenant' end
  if b.turn == IN_TURN and not in_turn then return 'place' end
  local rules = L.rules(b)
  if b.turn == BLOCKED_TURN and not rules.paused and not in_turn then return 'blocked' end
  local due = not rules.paused and not L.wrong_bucket(b) and L.next_due(b, rules, grace) or -1
  if due < 0 or in_turn then return nil end
  local parked = call('ZSCORE', p.registry .. ':parked', p.name)
  if not parked then return 'none' end
  return tonumber(parked) > max(due, b.now) + 1 and 'late' or nil
end

-- Arguments: grace. Returns the fault, or ''.
readers.check_turn = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  return {b.there and L.wrong_with_turn(b, tonumber(args[4])) or ''}
end

-- Put the queue in turn, whatever the counters say; the next claim_any removes it if nothing is there.
function L.repair_turn(b)
  b.turn = NO_TURN
  L.lift(b)
end
