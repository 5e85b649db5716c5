-- ── the sweep ────────────────────────────────────────────────────────────────────────────────────────────────────────

function L.pass_ttl(b)
  local ids = call('ZRANGEBYSCORE', b.base .. ':ttl', '-inf', b.now, 'LIMIT', 0, LIMIT.BATCH)
  local values = L.hmget(b.base .. ':state', ids)
  local removed = 0
  for i, id in ipairs(ids) do
    local s = values[i] and L.state_of(id, values[i])
    if s and (s.state == WAITING or s.state == BLOCKED) and s.due > 0 then
      L.remove_waiting(b, id, s, CHANGE.TTL_PASSED)
      removed = removed + 1
    elseif s or not values[i] then
      call('ZREM', b.base .. ':ttl', id)
    end
  end
  L.end_parents(b)
  return removed, #ids
end

-- Delete due entries, which are keyed by a digest, unless `later` returns a new due time.
-- Returns how many were deleted, and how many were inspected.
function L.forget(b, name, later)
  local rows, due = b.base .. ':' .. name, b.base .. ':' .. L.REMEMBERED[name]
  local digests = call('ZRANGEBYSCORE', due, '-inf', b.now, 'LIMIT', 0, LIMIT.BATCH)
  local forgotten = 0
  for _, digest in ipairs(digests) do
    local raw = call('HGET', rows, digest)
    local at = raw and later(digest, raw)
    if at then
      call('ZADD', due, at, digest)
    else
      call('ZREM', due, digest)
      forgotten = forgotten + call('HDEL', rows, digest)
    end
  end
  return forgotten, #digests
end

L.REMEMBERED = {dedup = 'dedupdue', claims = 'claimdue'}

function L.forget_keys(b)
  return L.forget(b, 'dedup', function(digest, raw) return L.holder(b, digest, raw) and b.now + LIMIT.LOOK_AGAIN_MS end)
end

function L.forget_claims(b)
  return L.forget(b, 'claims', function(_, raw)
    local l = L.lease_of(b.base, sub(raw, 1, 16))
    return l and l.expires + LIMIT.CLAIM_MEMORY_MS
  end)
end

function L.commit_of(entry) return tonumber(string.match(entry[1], '^%d+')) end

function L.first_commit(base)
  local first = call('XRANGE', base .. ':journal', '-', '+', 'COUNT', 1)
  return first[1] and L.commit_of(first[1]) or nil, first[1]
end

function L.row_time(entry) 
  local _, time = unpack_(FORMAT.ROW, entry[2][2], SEAL + 1)
  return time
end

-- Trim journal rows older than a week that every consumer has read; the last row always stays.
function L.trim(b)
  local first, entry = L.first_commit(b.base)
  local before = b.now - LIMIT.JOURNAL_KEPT_MS
  if not first or first >= b.commit or L.row_time(entry) >= before then return 0, false end
  local low, high = first, b.commit + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local at = string.format('%.0f-0', middle)
    local found = call('XRANGE', b.base .. ':journal', at, at)
    if found[1] and L.row_time(found[1]) < before then low = middle + 1 else high = middle end
  end
  local cut = min(low, b.commit)
  local consumers = call('HVALS', b.base .. ':consumers')
  for _, commit in ipairs(consumers) do cut = min(cut, tonumber(commit)) end
  local stop = min(cut, first + 10000)
  if stop <= first then return 0, false end
  call('XTRIM', b.base .. ':journal', 'MINID', string.format('%.0f-0', stop))
  return stop - first, stop < cut
end

-- Arguments: a number in [0, 1) for jitter, the grace after a lease's end.
verbs.sweep = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  if not b.there then return {0, 0, 0, 0, 0, 0, 0, 0, 0} end
  local leases, back, dead, more = L.expire(b, tonumber(args[4]), LIMIT.SWEEP_LEASES, LIMIT.SWEEP_JOBS, tonumber(args[5]))
  local ttl, ttls = L.pass_ttl(b)
  local retired, retirable, kept = L.retire(b, LIMIT.BATCH)
  local keys_, digests = L.forget_keys(b)
  local claims, ids = L.forget_claims(b)
  local trimmed, left = L.trim(b)
  if L.has_groups(b) then left = (L.bring_back(b, LIMIT.BATCH)) or left end
  more = more or left or (ttl > 0 and ttls == LIMIT.BATCH) or (retired + kept > 0 and retirable == LIMIT.BATCH)
    or (keys_ > 0 and digests == LIMIT.BATCH) or (claims > 0 and ids == LIMIT.BATCH)
  local reply = {leases, back, dead, retired, ttl, keys_, claims, trimmed, more and 1 or 0}
  -- A release without the index of queues may have added jobs, or resumed the queue.
  local turn = b.turn
  local held_back = turn == BLOCKED_TURN and L.rules(b).paused
  if L.in_reach(b.base) and turn ~= IN_TURN and not held_back and b.waiting + b.leased > 0 then
    L.offer_again(b, tonumber(args[5]))
  end
  if leases + ttl + retired + keys_ + claims == 0 and not b.changed and b.turn == turn then return reply end
  return L.finish(b, reply)
end
