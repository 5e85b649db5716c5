-- ── schedules that are created at run time, in the registry, with the rules of queueing/schedules.py ─────────────────
-- A row: the fields that changes depend on (FORMAT.SCHEDULE), the schedule as the client encoded it, the seal.

function L.schedules_key(base, tenant) return base .. ':schedules:' .. tenant end

function L.schedule_row(name, paused, created, resumed, text)
  local row = pack(FORMAT.SCHEDULE, paused, created, resumed) .. text
  return row .. L.seal(name, row)
end

-- Arguments: tenant, name, "1" to replace one of that name or "0", time of creation (0: now), whether it is paused, the
-- end of its last pause, the schedule as the client encodes it.
verbs.put_schedule = function(keys, args)
  local base, tenant, name, created = keys[1], args[4], args[5], tonumber(args[7])
  local key = L.schedules_key(base, tenant)
  if call('HEXISTS', key, name) == 1 then
    if args[6] ~= '1' then return {'E', 'there'} end
  else
    local count = call('HLEN', key)
    if count >= LIMIT.MAX_SCHEDULES then return {'E', 'large', count + 1} end
  end
  if created == 0 then created = L.now(args[1]) end
  call('HSET', key, name, L.schedule_row(name, tonumber(args[8]), created, tonumber(args[9]), args[10]))
  call('SADD', base .. ':schedules', tenant)
  return {1}
end

-- Arguments: tenant, name, "1" to pause it or "0" to resume it. Returns whether it exists.
verbs.pause_schedule = function(keys, args)
  local name, wanted = args[5], tonumber(args[6])
  local key = L.schedules_key(keys[1], args[4])
  local value = call('HGET', key, name)
  if not value then return {0} end
  local row = sub(value, 1, -SEAL - 1)
  if #row < BYTES.SCHEDULE or L.seal(name, row) ~= sub(value, -SEAL) then
    return {'E', 'corrupt', '', 'the schedule ' .. name .. ' is damaged: replace it, or remove it'}
  end
  local paused, created, resumed = unpack_(FORMAT.SCHEDULE, row)
  if paused ~= wanted then
    if wanted == 0 then resumed = L.now(args[1]) end
    call('HSET', key, name, L.schedule_row(name, wanted, created, resumed, sub(row, BYTES.SCHEDULE + 1)))
  end
  return {1}
end

-- Arguments: tenant, name. Returns whether it existed.
verbs.remove_schedule = function(keys, args)
  local key = L.schedules_key(keys[1], args[4])
  local removed = call('HDEL', key, args[5])
  if call('EXISTS', key) == 0 then call('SREM', keys[1] .. ':schedules', args[4]) end
  return {removed}
end

-- Arguments: tenant, or '' for all. Returns for each schedule its tenant, name, row.
readers.schedules = function(keys, args)
  local reply = {}
  for _, tenant in ipairs(args[4] ~= '' and {args[4]} or call('SMEMBERS', keys[1] .. ':schedules')) do
    local all = call('HGETALL', L.schedules_key(keys[1], tenant))
    for i = 1, #all, 2 do
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = tenant, all[i], all[i + 1]
    end
  end
  return reply
end
