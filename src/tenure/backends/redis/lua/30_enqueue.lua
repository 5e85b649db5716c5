-- ── enqueue: all jobs of a call, or none ─────────────────────────────────────────────────────────────────────────────

-- The first 12 bytes of the ids of one call: a UUIDv7 of the server's time, with a counter of the calls in one
-- millisecond, so that ids of all clients grow in the order of the enqueues. A 3-byte counter and the partition follow.
function L.ids(b, random)
  if b.now > b.id_time then
    b.id_time, b.id_seq = b.now, 0
  elseif b.id_seq >= 4095 then
    b.id_time, b.id_seq = b.id_time + 1, 0
  else
    b.id_seq = b.id_seq + 1
  end
  return pack('>I6I2', b.id_time, 0x7000 + b.id_seq) .. char(0x80 + byte(random, 1) % 64) .. sub(random, 2, 4)
end

-- The job that holds a key (within the window, and until the job has ended), and the digest of its payload.
function L.holder(b, digest, raw)
  if not raw or #raw ~= 32 + BYTES.TIME then return nil end -- `check` finds a damaged row
  local job, payload, untils = sub(raw, 1, 16), sub(raw, 17, 32), unpack_(FORMAT.TIME, raw, 33)
  if untils > b.now then return job, payload end
  local value = call('HGET', b.base .. ':state', job)
  local s = value and L.state_of(job, value)
  if s and (s.state == WAITING or s.state == LEASED or s.state == BLOCKED) then return job, payload end
  return nil
end

function L.hold(b, digest, job, payload, dedup)
  local untils = b.now + dedup
  call('HSET', b.base .. ':dedup', digest, job .. payload .. pack(FORMAT.TIME, untils))
  call('ZADD', b.base .. ':dedupdue', untils, digest)
end

-- Arguments: digests of keys. Returns for each the job that holds it and the digest of its payload, or ''.
readers.holders = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local reply = {}
  for i, digest in ipairs(L.split(args[4])) do
    local job, payload = L.holder(b, digest, call('HGET', b.base .. ':dedup', digest))
    reply[i] = job and job .. payload or ''
  end
  return reply
end

-- Enqueue jobs with equal options: their states differ only in the last event, and their events share one group.
function L.enqueue_alike(b, args, prefix, tail, priority, flags, max_attempts, delay)
  local count, visible = tonumber(args[8]), b.now + delay
  local head = pack(FORMAT.STATE_HEAD, LIMIT.VERSION, WAITING, priority, REASON.NONE, flags, 0, max_attempts, 0, 0,
    b.now, visible, 0, 0)
  local g = L.group(b, CHANGE.ENQUEUED, WAITING, priority, REASON.NONE, max_attempts, visible, NO_ID, '')
  local ids, first, partition = g.ids, L.next_ref(b), byte(tail)
  local zero = L.sum(L.id_sum(prefix .. pack('>I3', 0) .. tail), 0, WAITING, priority, REASON.NONE, flags, 0,
    max_attempts, 0, 0, b.now, visible, 0, 0, first)
  -- From one job to the next the id's last word grows by 256, the event's reference by 1, and the sum by their weights.
  local step = 256 * WEIGHT.LAST_WORD + WEIGHT.LAST_EVENT
  local score = string.format('%.0f', visible)
  local jobs, states, tier, n, at = {}, {}, {}, 0, #ids
  for index = 0, count - 1 do
    local id = pack('>c12I3B', prefix, index, partition)
    jobs[n + 1], jobs[n + 2] = id, args[11 + index]
    states[n + 1], states[n + 2] = id, pack(FORMAT.STATE_TAIL, head, first + index, NO_ID, (zero + index * step) % T)
    tier[n + 1], tier[n + 2] = score, id
    n = n + 2
    ids[at + index + 1] = id
  end
  b.events_in_row = b.events_in_row + count
  L.bulk('HSET', b.base .. ':jobs', jobs)
  L.bulk('HSET', b.base .. ':state', states)
  L.bulk('ZADD', b.base .. ':t' .. priority, tier)
  b.tiers = L.with(b.tiers, 2 ^ priority)
  b.wake = delay > 0 and LIMIT.WAKE_ALL or count
  L.has_work(b, visible)
end

-- Arguments: text of the queue's creation, its first rules, 4 random bytes, partition, number of jobs,
-- options (FORMAT.WISH for each job, or once for all), keys (FORMAT.KEYED for each job with a key), bodies.
-- `flow`: the links to parents, and the job that the same call acks, if any; or nil.
-- Returns an error; or the ids' prefix, the duplicates, the number of added jobs and of duplicates.
function L.enqueue(b, args, flow)
  local base, now = b.base, b.now
  local rules = b.there and L.rules(b) or L.rules_of(args[5])
  local count, wishes, keyed = tonumber(args[8]), args[9], args[10]
  local first = {} -- index -> the job that holds the key already
  local fresh, held = {}, {}
  local duplicates = 0
  local prefix, tail = nil, char(tonumber(args[7]))
  local function id_of(index) return prefix .. pack('>I3', index) .. tail end
  if #keyed > 0 then
    local digests, conflicts = {}, {}
    for at = 1, #keyed, BYTES.KEYED do
      local _, digest = unpack_(FORMAT.KEYED, keyed, at)
      digests[#digests + 1] = digest
    end
    local raws = L.hmget(base .. ':dedup', digests)
    for i, digest in ipairs(digests) do
      local index, _, payload, keep = unpack_(FORMAT.KEYED, keyed, (i - 1) * BYTES.KEYED + 1)
      local job, there = nil, nil
      if fresh[digest] then
        job, there = fresh[digest], fresh[digest .. 'p']
      else
        job, there = L.holder(b, digest, raws[i])
      end
      if not job then
        fresh[digest], fresh[digest .. 'p'] = index, payload
        held[#held + 1] = {digest, index, payload}
      elseif there ~= payload and keep == 0 then
        local within = type(job) == 'number' -- the index of an earlier job of this call
        conflicts[#conflicts + 1] = pack(FORMAT.CONFLICT, index, within and NO_ID or job, within and job or 0)
      else
        first[index] = job
        duplicates = duplicates + 1
      end
    end
    if #conflicts > 0 then return {'E', 'key', concat(conflicts)} end
  end
  local added = count - duplicates
  prefix = L.ids(b, args[6])
  local plan
  if flow then
    local no
    no, plan = L.plan_links(b, flow.links, first, id_of, flow.settled)
    if no then return no end
  end
  if added > 0 and rules.max_waiting > 0 then
    local waiting = b.waiting + call('ZCARD', base .. ':blocked')
    if waiting + added > rules.max_waiting then
      return {'E', 'full', string.format('%.0f', waiting), string.format('%.0f', rules.max_waiting)}
    end
  end
  L.make(b, args[5], args[4])
  local blocked = plan and plan.blocked or 0
  b.waiting, b.enqueued = b.waiting + added - blocked, b.enqueued + added
  local one = #wishes == BYTES.WISH
  local priority, flags, attempts, delay, ttl = unpack_(FORMAT.WISH, wishes)
  local fits = count <= LIMIT.EVENTS_A_ROW - b.events_in_row and L.next_ref(b) % T + count < T
  if one and duplicates == 0 and ttl == 0 and fits and not plan and not L.has(flags, HAS_GROUP) then
    L.enqueue_alike(b, args, prefix, tail, priority, flags, attempts > 0 and attempts or rules.max_attempts, delay)
    for _, h in ipairs(held) do L.hold(b, h[1], id_of(h[2]), h[3], rules.dedup) end
    return nil, prefix, '', added, 0
  end
  local jobs, states, ttls, tiers = {}, {}, {}, {}
  local latest = now
  local s = {state = WAITING, reason = REASON.NONE, attempt = 0, replays = 0, token = 0, created = now, ended = 0,
    lease = NO_ID}
  local state_row, event = L.state_row, L.event
  for index = 0, count - 1 do
    if not first[index] then
      if not one then priority, flags, attempts, delay, ttl = unpack_(FORMAT.WISH, wishes, index * BYTES.WISH + 1) end
      local id = id_of(index)
      local visible = now + delay
      if visible > latest then latest = visible end
      s.priority, s.flags, s.visible = priority, flags, visible
      s.max_attempts = attempts > 0 and attempts or rules.max_attempts
      s.due = ttl > 0 and now + ttl or 0
      s.last = 0
      if plan then
        s.flags = L.linked_flags(plan, index, flags)
        s.state = plan.jobs[index] and plan.jobs[index].open > 0 and BLOCKED or WAITING
      end
      s.last = event(b, CHANGE.ENQUEUED, id, s, {at = visible})
      local n = #jobs
      jobs[n + 1], jobs[n + 2] = id, args[11 + index]
      states[n + 1], states[n + 2] = id, state_row(id, s)
      local at, group = L.tier(s), L.join_group(b, id, s, args[11 + index])
      if s.state == WAITING then
        local tier = tiers[at]
        if not tier then tier = {} tiers[at] = tier end
        n = #tier
        tier[n + 1], tier[n + 2] = visible, id
        L.has_work(b, visible)
        if group then L.group_waits(b, group, id, priority, visible) end
      end
      if ttl > 0 then ttls[#ttls + 1] = s.due ttls[#ttls + 1] = id end
    end
  end
  L.bulk('HSET', base .. ':jobs', jobs)
  L.bulk('HSET', base .. ':state', states)
  for tier, rows in pairs(tiers) do
    L.bulk('ZADD', base .. ':t' .. tier, rows)
    b.tiers = L.with(b.tiers, 2 ^ tier)
  end
  L.bulk('ZADD', base .. ':ttl', ttls)
  for _, h in ipairs(held) do L.hold(b, h[1], id_of(h[2]), h[3], rules.dedup) end
  if plan then L.write_links(b, plan, flow.settled) end
  if latest > now then b.wake = LIMIT.WAKE_ALL else b.wake = added - blocked end
  local there = {}
  for index, job in pairs(first) do
    there[#there + 1] = pack(FORMAT.THERE, index, type(job) == 'number' and id_of(job) or job)
  end
  return nil, prefix, concat(there), added, duplicates
end

verbs.enqueue = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local no, prefix, there = L.enqueue(b, args)
  if no then return no end
  return L.finish(b, {prefix, there})
end

-- Arguments: as enqueue; then the staged write's digest, the chunk, its refused jobs, how long the marker is kept.
-- Without jobs to add, the marker records only the refused ones.
verbs.publish = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local n = #args
  local marker, chunk, refused = keys[1] .. ':w:' .. args[n - 3], args[n - 2], args[n - 1]
  local seen = call('HGET', marker, chunk)
  if seen then
    L.write_again(marker, chunk, seen)
    local jobs, duplicates = unpack_('>I4I4', seen)
    return {0, jobs, duplicates, sub(seen, 9)}
  end
  local no, added, duplicates, _ = nil, 0, 0, nil
  if tonumber(args[8]) > 0 then
    no, _, _, added, duplicates = L.enqueue(b, args)
    if no then return no end
  end
  call('HSET', marker, chunk, pack('>I4I4', added, duplicates) .. refused)
  call('PEXPIRE', marker, args[n])
  return L.finish(b, {1, added, duplicates, refused})
end
