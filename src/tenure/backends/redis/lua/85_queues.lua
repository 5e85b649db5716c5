-- ── queues: their rules, and the registry of their names ─────────────────────────────────────────────────────────────

-- Arguments: text of the queue's creation, its first rules, the new rules, the policy as the client encodes it, the
-- default policy, then pairs of a group and its rules.
verbs.configure = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  L.make(b, args[5], args[4])
  local paused = byte(b.rules_row)
  local now = call('GET', b.base .. ':policy')
  if (now or args[8]) ~= args[7] then
    local old, new = L.rules_of(b.rules_row), L.rules_of(args[6])
    if old.burst ~= new.burst or old.interval ~= new.interval then
      call('DEL', b.base .. ':bucket') -- it depends on the old rate: the bucket starts full
    end
    if old.limited then
      b.wake = LIMIT.WAKE_ALL
      L.lift(b)
    end
    b.rules_row, b.new_rules = char(paused) .. sub(args[6], 2), true
    L.event(b, CHANGE.QUEUE_CONFIGURED, NO_ID, nil, {text = args[7]})
    call('SET', b.base .. ':policy', args[7])
    L.set_group_rules(b, args, 9)
  end
  return L.finish(b, {1})
end

-- Arguments: text of the queue's creation, its first rules, "1" (paused) or "0".
verbs.set_paused = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  L.make(b, args[5], args[4])
  local paused = tonumber(args[6])
  if byte(b.rules_row) ~= paused then
    b.rules_row, b.new_rules = char(paused) .. sub(b.rules_row, 2), true
    L.event(b, paused == 1 and CHANGE.QUEUE_PAUSED or CHANGE.QUEUE_RESUMED, NO_ID, nil)
    if paused == 0 then
      b.wake = LIMIT.WAKE_ALL
      L.lift(b)
    end
  end
  return L.finish(b, {1})
end

-- Delete an empty queue's rules, keys and claims. Returns whether it did, and the numbers of leased, waiting, dead and
-- done jobs.
verbs.delete_queue = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  if not b.there then return {0, 0, 0, 0, 0} end
  local waiting = b.waiting + call('ZCARD', b.base .. ':blocked')
  if waiting + b.leased + b.done + b.dead > 0 then return {0, b.leased, waiting, b.dead, b.done} end
  for _, name in ipairs({'rules', 'policy', 'bucket', 'dedup', 'dedupdue', 'claims', 'claimdue'}) do
    call('DEL', b.base .. ':' .. name)
  end
  L.delete_groups(b)
  if b.turn == BLOCKED_TURN then b.turn = NO_TURN end -- a queue that is made again under this name is not paused
  b.wake, b.rules_row, b.new_rules = LIMIT.WAKE_ALL, nil, nil
  L.event(b, CHANGE.QUEUE_DELETED, NO_ID, nil)
  return L.finish(b, {1, 0, 0, 0, 0})
end

-- Arguments: name, placement (partitions, and " 1" for the registry's slot). Returns the queue's number and placement,
-- which are assigned once.
verbs.register = function(keys, args)
  local names = keys[1] .. ':names'
  local found = call('HGET', names, args[4])
  if not found then
    found = call('INCR', keys[1] .. ':next') .. ' ' .. args[5]
    call('HSET', names, args[4], found)
    call('PUBLISH', keys[1], pack(FORMAT.WOKEN, 0, 0))
  end
  return {found}
end
