-- ── schedules made at run time, in the registry, as in queueing/schedules.py ────────────────────────────────────────
-- The part of a schedule that changes (FORMAT.SCHEDULE) comes before the client's text, and is sealed with it.

function L.schedules_key(base, tenant) return base .. ':schedules:' .. tenant end

function L.schedule_row(name, paused, created, resumed, text)
  local row = pack(FORMAT.SCHEDULE, paused, created, resumed) .. text
  return row .. L.seal(name, row)
end

-- tenant, name, "1" if one of that name is replaced or "0", when it was made (0: now), whether it is paused, when its
-- last pause ended, the schedule as the client writes it
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

-- tenant, name, "1" to pause it, "0" to end its pause: whether there is one
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

-- tenant, name: whether there was one
verbs.remove_schedule = function(keys, args)
  local key = L.schedules_key(keys[1], args[4])
  local removed = call('HDEL', key, args[5])
  if call('EXISTS', key) == 0 then call('SREM', keys[1] .. ':schedules', args[4]) end
  return {removed}
end

-- tenant, or '' for all: of each schedule tenant, name, row
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
