-- ── administration: cancel, purge, replay, cleanup; the last three a chunk at a time ─────────────────────────────────

verbs.cancel = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local id = args[4]
  local value = b.there and call('HGET', b.base .. ':state', id)
  if not value then return {0} end
  local s = L.state_of(id, value)
  if not s then return {'E', 'corrupt', id, 'its state is damaged'} end
  if s.state == WAITING or s.state == BLOCKED then
    call('HDEL', b.base .. ':damaged', id)
    L.remove_waiting(b, id, s, CHANGE.CANCELLED)
  elseif s.state == LEASED then
    local l = L.lease_of(b.base, s.lease)
    if l then L.close_jobs(b, s.lease, l, 1, id) end
    L.let_go(b, id, s)
    L.delete(b, id, s)
    b.removed = b.removed + 1
    L.event(b, CHANGE.CANCELLED, id, s, {state = GONE, lease = s.lease})
    L.ended(b, id, s, GONE, true)
  else
    return {0}
  end
  return L.finish(b, {1})
end

function L.remove_ended(b, id, s, change)
  local name = s.state == DONE and 'done' or 'dead'
  call('ZREM', b.base .. ':' .. name, id)
  if s.state == DONE then call('ZREM', b.base .. ':retention', id) end
  L.delete(b, id, s)
  b[name], b.removed = b[name] - 1, b.removed + 1
  L.event(b, change, id, s, {state = GONE, lease = s.lease})
  L.ended(b, id, s, s.state == DEAD and GONE or nil, true)
end

-- state, up to when (-1: now), how many at most, how many to skip; removed, skipped, until, more
verbs.purge = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local state, untils, limit, skip = args[4], tonumber(args[5]), tonumber(args[6]), tonumber(args[7])
  if not b.there then return {0, 0, 0, 0} end
  if untils < 0 then untils = b.now end
  local removed, passed, left = 0, 0, limit
  local sources = {}
  if state == 'done' or state == 'dead' then
    sources[1] = {b.base .. ':' .. state, '-inf', untils}
  elseif state == 'blocked' then
    sources[1] = {b.base .. ':blocked', '-inf', '+inf'}
  else
    for tier = LIMIT.TOP_TIER, 0, -1 do
      local key = b.base .. ':t' .. tier
      if L.has(b.tiers, 2 ^ tier) then
        local later = {key, '(' .. string.format('%.0f', untils), '+inf'}
        sources[#sources + 1] = state == 'ready' and {key, '-inf', untils} or later
      end
    end
  end
  for _, source in ipairs(sources) do
    if left <= 0 then break end
    local there = call('ZCOUNT', source[1], source[2], source[3])
    if there <= skip then
      skip = skip - there
    else
      local ids = call('ZRANGEBYSCORE', source[1], source[2], source[3], 'LIMIT', skip, left)
      skip = 0
      left = left - #ids
      local values = L.hmget(b.base .. ':state', ids)
      for i, id in ipairs(ids) do
        local s = values[i] and L.state_of(id, values[i])
        if s and (s.state == WAITING or s.state == BLOCKED) and s.created <= untils then
          L.remove_waiting(b, id, s, CHANGE.PURGED)
          removed = removed + 1
        elseif s and (s.state == DONE or s.state == DEAD) then
          L.remove_ended(b, id, s, CHANGE.PURGED)
          removed = removed + 1
        else
          passed = passed + 1
        end
      end
    end
  end
  local reply = {removed, passed, untils, left <= 0 and 1 or 0}
  if removed == 0 then return reply end
  return L.finish(b, reply)
end

-- how many at most: done jobs whose retention has passed
function L.retire(b, limit)
  local ids = call('ZRANGEBYSCORE', b.base .. ':retention', '-inf', b.now, 'LIMIT', 0, limit)
  local values = L.hmget(b.base .. ':state', ids)
  local removed, kept = 0, 0
  for i, id in ipairs(ids) do
    local s = values[i] and L.state_of(id, values[i])
    if s and s.state == DONE and L.has(s.flags, HAS_CHILDREN) and L.keep_for_children(b, id, s) then
      kept = kept + 1
    elseif s and s.state == DONE then
      L.remove_ended(b, id, s, CHANGE.RETIRED)
      removed = removed + 1
    elseif not values[i] then
      call('ZREM', b.base .. ':retention', id)
    end
  end
  return removed, #ids, kept
end

verbs.retire = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local removed = b.there and L.retire(b, tonumber(args[4])) or 0
  if removed == 0 then return {0} end
  return L.finish(b, {removed})
end

-- state (DONE or DEAD, as a number), jobs and the tokens they must still have (FORMAT.DISCARD for each); returns those
-- removed
verbs.discard = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local wanted, removed = tonumber(args[4]), {}
  for at = 1, b.there and #args[5] or 0, BYTES.DISCARD do
    local id, token = unpack_(FORMAT.DISCARD, args[5], at)
    local value = call('HGET', b.base .. ':state', id)
    local s = value and L.state_of(id, value)
    if s and s.state == wanted and s.token == token then
      L.remove_ended(b, id, s, CHANGE.PURGED)
      removed[#removed + 1] = id
    end
  end
  if #removed == 0 then return {''} end
  return L.finish(b, {concat(removed)})
end

-- ids, when each is visible (8 bytes each, not before now), for jobs with a key: index, digests of key and payload;
-- the tokens they must still have (8 bytes each), or ''
verbs.replay = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  if not b.there then return {'', 0} end
  local ids, times, keyed, tokens = L.split(args[4]), args[5], args[6], args[7]
  local values = L.hmget(b.base .. ':state', ids)
  local rules, done, latest, digests = L.rules(b), {}, 0, {}
  for at = 1, #keyed, BYTES.KEYED do
    local index, digest, payload = unpack_(FORMAT.KEYED, keyed, at)
    digests[index] = {digest, payload}
  end
  for i, id in ipairs(ids) do
    local s = values[i] and L.state_of(id, values[i])
    if s and tokens ~= '' and unpack_(FORMAT.TIME, tokens, (i - 1) * 8 + 1) ~= s.token then s = nil end
    if s and s.state == DEAD then
      s.visible = max(b.now, unpack_(FORMAT.TIME, times, (i - 1) * 8 + 1))
      s.state, s.reason, s.attempt, s.ended, s.replays = WAITING, REASON.NONE, 0, 0, s.replays + 1
      s.last = L.event(b, CHANGE.REPLAYED, id, s, {at = s.visible})
      L.put_state(b, id, s)
      call('ZREM', b.base .. ':dead', id)
      L.wait(b, id, s)
      b.dead, b.waiting = b.dead - 1, b.waiting + 1
      b.wake = s.visible > b.now and LIMIT.WAKE_ALL or b.wake + 1
      latest = max(latest, s.visible)
      done[#done + 1] = id
      local key = digests[i - 1]
      if key then
        local holder = L.holder(b, key[1], call('HGET', b.base .. ':dedup', key[1]))
        if not holder or holder == id then L.hold(b, key[1], id, key[2], rules.dedup) end
      end
    end
  end
  if #done == 0 then return {'', 0} end
  return L.finish(b, {concat(done), latest})
end
