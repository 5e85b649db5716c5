-- ── repeated requests take effect once ───────────────────────────────────────────────────────────────────────────────

-- A request has a lane and a number in it, or its own id instead of the lane and the number 0. Its answer is stored
-- atomically with its effect. A repeated request gets the stored answer; a late one, after a higher number of its lane,
-- is refused: its sender has the answer already.
function L.remembered(verb)
  return function(keys, args)
    local lane = args[2]
    if lane == '' then return verb(keys, args) end
    local key, number = keys[1] .. ':l:' .. lane, tonumber(args[3])
    local last = call('GET', key)
    if last then
      local seen, untils = unpack_('>I8I8', last)
      if number > 0 and seen > number then return {'E', 'late'} end
      if number > 0 and seen == number or number == 0 and untils > L.now(args[1]) then
        call('PEXPIRE', key, LIMIT.REQUEST_MEMORY_MS) -- a write, as L.write_again
        return cmsgpack.unpack(sub(last, 17))
      end
    end
    local reply = verb(keys, args)
    local untils = number > 0 and 0 or L.now(args[1]) + LIMIT.REQUEST_MEMORY_MS
    call('SET', key, pack('>I8I8', number, untils) .. cmsgpack.pack(reply), 'PX', LIMIT.REQUEST_MEMORY_MS)
    return reply
  end
end

-- Arguments: digest of a request's id, digest of its verb and arguments. Returns "1" if they equal the first ones.
verbs.bind_request = function(keys, args)
  local base, now = keys[1], L.now(args[1])
  local due = call('ZSCORE', base .. ':requestdue', args[4])
  local seen = due and tonumber(due) > now and call('HGET', base .. ':requests', args[4])
  if seen then
    L.write_again(base .. ':requests', args[4], seen)
    return {seen == args[5] and 1 or 0}
  end
  call('HSET', base .. ':requests', args[4], args[5])
  call('ZADD', base .. ':requestdue', now + LIMIT.REQUEST_MEMORY_MS, args[4])
  return {1}
end

-- Store a client's decision under its request's id: a repeated request gets the first decision.
verbs.remember = function(keys, args) return {args[4]} end

-- claim_any stores which shard served a request instead of its answer, which may be large.
for name, verb in pairs(verbs) do
  if name ~= 'claim_any' then verbs[name] = L.remembered(verb) end
end
