-- ── queries: nothing here writes, except a consumer's position in the journal ────────────────────────────────────────

-- Facts from other keys: the lease of a leased job, on_parent_dead of a blocked one, the signal that a job waits for.
function L.fetch_beside(b, id, s)
  if s.state == LEASED then return call('HGET', b.base .. ':lease', s.lease) end
  if s.state == BLOCKED then
    local w = L.waits_of(b, id)
    return w and tostring(w.policy)
  end
  if s.state == WAITING and L.has(s.flags, HAS_STEPS) then
    local head = L.steps_head(b, id)
    return head and head.token == s.token and head.waits_for ~= '' and head.waits_for
  end
end

-- For each job: state, body, error, progress, result, and the facts of L.fetch_beside. Of the first jobs only, if all
-- would be more than about `most` bytes.
function L.fetch(b, ids, reply, most)
  local bytes = 0
  for _, id in ipairs(ids) do
    if most and bytes >= most then break end
    local n = #reply
    local value = call('HGET', b.base .. ':state', id)
    local s = value and L.state_of(id, value)
    local notes = {}
    if s and s.flags > HAS_KEY then notes = call('HMGET', b.base .. ':notes', id .. 'e', id .. 'p', id .. 'r') end
    reply[n + 1] = value or ''
    reply[n + 2] = call('HGET', b.base .. ':jobs', id) or ''
    reply[n + 3], reply[n + 4], reply[n + 5] = notes[1] or false, notes[2] or false, notes[3] or false
    reply[n + 6] = s and L.fetch_beside(b, id, s) or false
    bytes = bytes + #reply[n + 2] + #(notes[1] or '') + #(notes[3] or '')
  end
  return reply
end

readers.fetch = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  return L.fetch(b, L.split(args[4]), {b.now})
end

-- State and error of each job, which a replay filters by.
readers.causes = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local ids = L.split(args[4])
  local reply = L.hmget(b.base .. ':state', ids)
  local errors = {}
  for i, id in ipairs(ids) do errors[i] = id .. 'e' end
  errors = L.hmget(b.base .. ':notes', errors)
  for i = 1, #ids do
    reply[i] = reply[i] or ''
    reply[#ids + i] = errors[i] or false
  end
  return reply
end

-- Compare bytes: `<` would depend on the locale.
function L.less(a, z)
  for i = 1, 16 do
    local x, y = byte(a, i), byte(z, i)
    if x ~= y then return x < y end
  end
  return false
end

-- The rank of the first member after (score, id).
function L.rank_after(key, score, id)
  local low, high = call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = floor((low + high) / 2)
    local member = call('ZRANGE', key, middle, middle)[1]
    if L.less(id, member) then high = middle else low = middle + 1 end
  end
  return low
end

-- Arguments: state, limit, the position: source (tier; 0 for done and dead), score, id, or '' to start; and about how
-- many bytes of jobs. Returns the time, all ids, the position of each, and the fields of the jobs that fit.
readers.page = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local state, limit, from = args[4], tonumber(args[5]), args[6]
  local after = from ~= '' and {unpack_('>BI8c16', from)}
  local ids, places = {}, {}
  if state == 'done' or state == 'dead' or state == 'blocked' then
    local key = b.base .. ':' .. state
    local start = after and L.rank_after(key, string.format('%.0f', after[2]), after[3]) or 0
    local found = call('ZRANGE', key, start, start + limit - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      ids[#ids + 1] = found[i]
      places[#places + 1] = pack('>BI8c16', 0, tonumber(found[i + 1]), found[i])
    end
  elseif state == 'leased' then
    local leases = call('ZRANGE', b.base .. ':leases', 0, -1)
    table.sort(leases, L.less)
    for _, lease in ipairs(leases) do
      if #ids >= limit then break end
      if not (from ~= '' and L.less(lease, sub(from, 1, 16))) then
        local jobs = L.held(b, lease)
        table.sort(jobs, function(x, y) return L.less(x[1], y[1]) end)
        for _, job in ipairs(jobs) do
          local seen = from ~= '' and lease == sub(from, 1, 16) and not L.less(sub(from, 17), job[1])
          if not seen and #ids < limit then
            ids[#ids + 1] = job[1]
            places[#places + 1] = lease .. job[1]
          end
        end
      end
    end
  else
    for tier = LIMIT.TOP_PRIORITY, 0, -1 do
      if #ids < limit and not (after and tier > after[1]) then
        L.page_of_priority(b, tier, state, limit, after, ids, places)
      end
    end
  end
  local reply = {b.now, concat(ids)}
  for i, place in ipairs(places) do reply[2 + i] = place end
  return L.fetch(b, ids, reply, tonumber(args[7]))
end

-- Waiting jobs of a priority, with and without a group, by time and id.
function L.page_of_priority(b, priority, state, limit, after, ids, places)
  local rows = {}
  for tier = priority, LIMIT.TOP_TIER, LIMIT.PRIORITIES do
    if L.has(b.tiers, 2 ^ tier) then
      local key = b.base .. ':t' .. tier
      local due = call('ZCOUNT', key, '-inf', b.now)
      local start, stop = 0, due - 1
      if state ~= 'ready' then start, stop = due, 2 ^ 52 end
      if after and after[1] == priority then
        start = max(start, L.rank_after(key, string.format('%.0f', after[2]), after[3]))
      end
      stop = min(stop, start + limit - #ids - 1)
      local found = stop >= start and call('ZRANGE', key, start, stop, 'WITHSCORES') or {}
      for i = 1, #found, 2 do rows[#rows + 1] = {tonumber(found[i + 1]), found[i]} end
    end
  end
  if L.has(b.tiers, 2 ^ (priority + LIMIT.PRIORITIES)) then
    table.sort(rows, function(x, y)
      if x[1] ~= y[1] then return x[1] < y[1] end
      return L.less(x[2], y[2])
    end)
  end
  for i = 1, min(#rows, limit - #ids) do
    ids[#ids + 1] = rows[i][2]
    places[#places + 1] = pack('>BI8c16', priority, rows[i][1], rows[i][2])
  end
end

-- Arguments: before, limit, a position (time and id) or ''. Returns (visible_at, job) of jobs ready before then.
readers.upcoming = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local found = {}
  for tier = LIMIT.TOP_TIER, 0, -1 do
    if L.has(b.tiers, 2 ^ tier) then
      local key, before, wanted = b.base .. ':t' .. tier, tonumber(args[4]), tonumber(args[5])
      local first = call('ZCOUNT', key, '-inf', b.now)
      if args[6] ~= '' then
        local time, id = unpack_(FORMAT.PLACE, args[6])
        first = max(first, L.rank_after(key, string.format('%.0f', time), id))
      end
      local rows = call('ZRANGE', key, first, first + wanted - 1, 'WITHSCORES')
      for i = 1, #rows, 2 do
        if tonumber(rows[i + 1]) >= before then break end
        found[#found + 1] = pack(FORMAT.TIME, tonumber(rows[i + 1])) .. rows[i]
      end
    end
  end
  return found
end

readers.counts = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  if not b.there then return {b.now, 0} end
  local ready = 0
  for tier = 0, LIMIT.TOP_TIER do
    if L.has(b.tiers, 2 ^ tier) then ready = ready + call('ZCOUNT', b.base .. ':t' .. tier, '-inf', b.now) end
  end
  return {b.now, 1, ready, b.waiting, b.leased, b.done, b.dead, b.enqueued, b.removed, byte(b.rules_row),
    call('GET', b.base .. ':policy') or '', call('ZCARD', b.base .. ':blocked')}
end

readers.now = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  return {b.now}
end

-- Arguments: first commit (0: the oldest stored), number of rows, consumer or ''.
verbs.events = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local commit, consumer = tonumber(args[4]), args[6]
  local first = L.first_commit(b.base) or b.commit + 1
  if commit == 0 then commit = first end
  if commit < first then return {first, b.commit, commit} end
  if consumer ~= '' and b.there then call('HSET', b.base .. ':consumers', consumer, string.format('%.0f', commit)) end
  local rows = call('XRANGE', b.base .. ':journal', string.format('%.0f-0', commit), '+', 'COUNT', args[5])
  local reply = {first, b.commit, commit}
  for i, entry in ipairs(rows) do reply[2 * i + 2], reply[2 * i + 3] = L.commit_of(entry), entry[2][2] end
  return reply
end

verbs.forget_consumer = function(keys, args) return {call('HDEL', keys[1] .. ':consumers', args[4])} end
