-- ── staged writes: manifests and progress are in the registry; the markers of chunks are with the jobs ───────────────

function L.write_of(base, digest)
  local found = call('HMGET', base .. ':write:' .. digest, 'id', 'manifest', 'chunk', 'jobs', 'duplicates', 'finished',
    'begun', 'until', 'keep', 'refused')
  if not found[1] then return nil end
  return found
end

function L.write_reply(found)
  return {found[1], found[2], tonumber(found[3]), tonumber(found[4]), tonumber(found[5]), tonumber(found[6]),
    tonumber(found[10] or 0)}
end

-- Arguments: digest, id, manifest, how long it is kept.
verbs.begin_write = function(keys, args)
  local base, digest = keys[1], args[4]
  local found = L.write_of(base, digest)
  if found then
    L.write_again(base .. ':write:' .. digest, 'id', found[1])
    return L.write_reply(found)
  end
  local now = L.now(args[1])
  local untils = now + tonumber(args[7])
  call('HSET', base .. ':write:' .. digest, 'id', args[5], 'manifest', args[6], 'chunk', 0, 'jobs', 0, 'duplicates', 0,
    'finished', 0, 'begun', now, 'until', untils, 'keep', args[7])
  call('ZADD', base .. ':writedue', untils, digest)
  return {args[5], args[6], 0, 0, 0, 0, 0}
end

readers.write_state = function(keys, args)
  local found = L.write_of(keys[1], args[4])
  return found and L.write_reply(found) or {}
end

-- Arguments: digest, chunk. Returns the refused jobs of the chunk.
readers.refusals = function(keys, args)
  return {call('HGET', keys[1] .. ':write:' .. args[4], 'refused:' .. args[5]) or ''}
end

-- Arguments: digest, chunk, jobs, duplicates, number of refused jobs, refused jobs. Counts the chunk if it is the next.
verbs.count_chunk = function(keys, args)
  local key = keys[1] .. ':write:' .. args[4]
  local chunk = call('HGET', key, 'chunk')
  if not chunk then return {0} end
  if tonumber(chunk) ~= tonumber(args[5]) then
    L.write_again(key, 'chunk', chunk)
    return {0}
  end
  call('HSET', key, 'chunk', args[5] + 1)
  call('HINCRBY', key, 'jobs', args[6])
  call('HINCRBY', key, 'duplicates', args[7])
  if tonumber(args[8]) > 0 then
    call('HINCRBY', key, 'refused', args[8])
    call('HSET', key, 'refused:' .. args[5], args[9])
  end
  return {1}
end

-- Arguments: digest, digest of a write to delete or ''.
verbs.finish_write = function(keys, args)
  local base, digest, forget = keys[1], args[4], args[5]
  local found = L.write_of(base, digest)
  if not found then return {} end
  if found[6] == '0' then
    local untils = L.now(args[1]) + tonumber(found[9])
    call('HSET', base .. ':write:' .. digest, 'finished', 1, 'until', untils)
    call('ZADD', base .. ':writedue', untils, digest)
    if forget ~= '' and call('HGET', base .. ':write:' .. forget, 'finished') == '1' then
      call('DEL', base .. ':write:' .. forget)
      call('ZREM', base .. ':writedue', forget)
    end
    found[6] = '1'
  else
    L.write_again(base .. ':write:' .. digest, 'finished', 1)
  end
  return L.write_reply(found)
end

-- Arguments: how long a partly published write is kept.
verbs.sweep_registry = function(keys, args)
  local base, now = keys[1], L.now(args[1])
  local writes, requests = 0, 0
  local due = call('ZRANGEBYSCORE', base .. ':writedue', '-inf', now, 'LIMIT', 0, LIMIT.BATCH)
  for _, digest in ipairs(due) do
    local found = L.write_of(base, digest)
    if found and found[6] == '0' and tonumber(found[3]) > 0 and now < tonumber(found[7]) + tonumber(args[4]) then
      call('HSET', base .. ':write:' .. digest, 'until', now + tonumber(found[9]))
      call('ZADD', base .. ':writedue', now + tonumber(found[9]), digest)
    else
      call('ZREM', base .. ':writedue', digest)
      if found then
        call('DEL', base .. ':write:' .. digest)
        writes = writes + 1
      end
    end
  end
  local late = call('ZRANGEBYSCORE', base .. ':requestdue', '-inf', now, 'LIMIT', 0, LIMIT.BATCH)
  for _, digest in ipairs(late) do
    call('ZREM', base .. ':requestdue', digest)
    requests = requests + call('HDEL', base .. ':requests', digest)
  end
  local claims = L.forget_any_claims(base, now)
  local more = #due == LIMIT.BATCH and writes > 0 or #late == LIMIT.BATCH or claims == LIMIT.BATCH
  return {writes, requests, more and 1 or 0}
end
