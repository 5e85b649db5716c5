-- ── claims from any queue: the first queue in turn that has a job for this claim ─────────────────────────────────────

-- The members of a sorted set of turns and their virtual times, the next first; only the `named` ones, unless nil.
-- Nothing may move a place while this is read.
function L.in_turn(turns, named)
  local page, at, from, step = {}, -1, 0, 2
  if named then
    local found = {}
    for _, name in ipairs(named) do
      local time = call('ZSCORE', turns, name)
      if time then found[#found + 1] = {name, tonumber(time)} end
    end
    table.sort(found, function(x, y) return x[2] < y[2] or x[2] == y[2] and x[1] < y[1] end)
    for i, one in ipairs(found) do page[2 * i - 1], page[2 * i] = one[1], one[2] end
    step = 0
  end
  return function()
    at = at + 2
    if at > #page and step > 0 then
      page, at, from = call('ZRANGE', turns, from, from + step - 1, 'WITHSCORES'), 1, from + step
      step = #page == 2 * step and LIMIT.GROUP_PAGE or 0
    end
    return page[at], tonumber(page[at + 1])
  end
end

-- Try a queue in turn, shard by shard. Returns a claim's answer and the shard that gave it; without a job the new state
-- of the queue's place instead, and until when it is parked. `t` gathers what cannot be read.
function L.claim_in_turn(p, args, t)
  local row = call('HGET', p.registry .. ':names', p.name)
  local bases = row and L.shards_of(p.registry, p.name, row) or {}
  local looked, due, paused = {}, -1, false
  local first = floor(tonumber(args[11]) * #bases)
  for n = 1, #bases do
    local base = bases[(first + n) % #bases + 1]
    local b, damaged = L.begin({base}, args)
    if not b then
      t.damaged = t.damaged or damaged
    else
      looked[#looked + 1] = b
      b.turn = IN_TURN
      local rules = b.there and L.rules(b)
      if rules and rules.paused then
        paused, b.paused = true, true
      elseif rules and rules.burst > 0 and L.wrong_bucket(b) then
        t.damaged = t.damaged or {'E', 'corrupt', '', 'the rate of ' .. base .. ' is damaged: run check with repair'}
      elseif rules then
        local answer = L.claim(b, args)
        if answer[1] ~= 0 or answer[5] == 1 then return answer, base end
        if answer[2] >= 0 and (due < 0 or answer[2] < due) then due = answer[2] end
        if t.aside == '' then t.aside = answer[4] end
      end
    end
  end
  local turn = due >= 0 and PARKED or paused and BLOCKED_TURN or NO_TURN
  for _, b in ipairs(looked) do
    b.turn = turn == BLOCKED_TURN and not b.paused and NO_TURN or turn
    if b.there or b.commit > 0 then call('SET', b.base .. ':books', L.counters_row(b)) end
  end
  return nil, turn, max(due, t.now + 1)
end

-- The shard that served this request, or a claim with this id, before.
function L.served_before(registry, args)
  local last = args[2] ~= '' and call('GET', registry .. ':l:' .. args[2])
  if last and unpack_(FORMAT.TIME, last) == tonumber(args[3]) then return sub(last, 17) end
  local base = args[9] ~= '' and call('HGET', registry .. ':claims', args[9])
  return base and call('HEXISTS', base .. ':claims', args[9]) == 1 and base
end

-- Remember the shard that serves a request: a repeated one gets the same jobs from there, by its lease.
function L.remember_server(registry, args, base, untils)
  if args[2] ~= '' then
    call('SET', registry .. ':l:' .. args[2], pack('>I8I8', tonumber(args[3]), 0) .. base, 'PX', LIMIT.REQUEST_MEMORY_MS)
  end
  if args[9] ~= '' then
    call('HSET', registry .. ':claims', args[9], base)
    call('ZADD', registry .. ':claimdue', untils + LIMIT.CLAIM_MEMORY_MS, args[9])
  end
end

-- Look at queues in turn, and note in t.moves those without a job. Returns an answer and its shard.
function L.claim_from_some(registry, args, chosen, t)
  local weights, excluding = chosen.weights or {}, {}
  for _, queue in ipairs(chosen.excluding or {}) do excluding[queue] = true end
  for tenant, tenant_time in L.in_turn(registry .. ':turns', chosen.tenants) do
    for queue, time in L.in_turn(registry .. ':turns:' .. tenant, chosen.queues) do
      if not excluding[queue] then
        if #t.moves >= t.most then return {0, t.now, t.now, '', 1}, '' end
        local p = L.place(registry, tenant, queue)
        local answer, found, at = L.claim_in_turn(p, args, t)
        if answer then
          if answer[1] == 1 then
            local jobs = #answer - 4
            call('ZADD', p.turns, time + jobs / (weights[p.name] or 1), queue)
            call('ZADD', registry .. ':turns', tenant_time + jobs / (weights[tenant] or 1), tenant)
            L.remember_server(registry, args, found, answer[2])
          end
          return answer, found
        end
        t.moves[#t.moves + 1] = {p, found, at}
      end
    end
  end
end

-- Arguments: as claim; then the choice of queues (MessagePack: tenants, queues, excluding, weights), or ''.
-- Returns the shard that served and the answer of its claim; or '' and, as claim does, when something becomes due.
verbs.claim_any = function(keys, args)
  local registry = keys[1]
  local before = L.served_before(registry, args)
  if before then
    local b, damaged = L.begin({before}, args)
    return b and {before, L.claim(b, args)} or damaged
  end
  if call('EXISTS', registry .. ':indexed') == 0 then return {'E', 'unindexed'} end
  local most = tonumber(args[12])
  local t = {now = L.now(args[1]), most = most, moves = {}, aside = ''}
  local more = L.return_queues(registry, t.now, most)
  local answer, base = L.claim_from_some(registry, args, args[14] ~= '' and cmsgpack.unpack(args[14]) or {}, t)
  for _, move in ipairs(t.moves) do L.take_from_turns(move[1], move[2], move[3]) end
  if answer then return {base, answer} end
  if t.damaged then return t.damaged end
  return {'', {0, L.any_due(registry), t.now, t.aside, more and 1 or 0}}
end

-- When a parked queue gets its turn, or -1.
function L.any_due(registry) return tonumber(call('ZRANGE', registry .. ':parked', 0, 0, 'WITHSCORES')[2] or -1) end

-- Returns when something becomes due for claim_any, and the time: for callers that wait without claiming.
readers.any_due = function(keys, args) return {L.any_due(keys[1]), L.now(args[1])} end

-- Forget the ids of claims that their shard has forgotten. Returns how many were inspected.
function L.forget_any_claims(registry, now)
  local due = call('ZRANGEBYSCORE', registry .. ':claimdue', '-inf', now, 'LIMIT', 0, LIMIT.BATCH)
  for _, claim in ipairs(due) do
    local base = call('HGET', registry .. ':claims', claim)
    if base and call('HEXISTS', base .. ':claims', claim) == 1 then
      call('ZADD', registry .. ':claimdue', now + LIMIT.LOOK_AGAIN_MS, claim)
    else
      call('ZREM', registry .. ':claimdue', claim)
      call('HDEL', registry .. ':claims', claim)
    end
  end
  return #due
end
