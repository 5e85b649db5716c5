-- ── settling: a job is settled only by the holder of its live lease ──────────────────────────────────────────────────

-- The job's state if this proof is valid; or nil, and the outcome that says why not.
function L.judge(b, value, id, lease, token, leases)
  if not value then return nil, OUTCOME.GONE end
  local s = L.state_of(id, value)
  if not s then return nil, OUTCOME.CORRUPT end
  if s.state ~= LEASED or s.lease ~= lease or s.token ~= token then
    if s.state ~= LEASED and s.lease == lease and lease ~= NO_ID and s.token == token then
      return nil, OUTCOME.ALREADY_SETTLED
    end
    return nil, OUTCOME.LOST
  end
  local l = leases[lease]
  if l == nil then
    l = L.lease_of(b.base, lease) or false
    leases[lease] = l
  end
  if not l then return nil, OUTCOME.NO_LEASE end
  if l.expires <= b.now then return nil, OUTCOME.EXPIRED end
  return s
end

function L.done(b, id, s, keep, result)
  if result then
    call('HSET', b.base .. ':notes', id .. 'r', result)
    s.flags = L.with(s.flags, HAS_RESULT)
  end
  s.state, s.ended, s.due = DONE, b.now, b.now + keep
  s.last = L.event(b, CHANGE.DONE, id, s, {lease = s.lease})
  L.put_state(b, id, s)
  call('ZADD', b.base .. ':done', b.now, id)
  call('ZADD', b.base .. ':retention', s.due, id)
  L.let_go(b, id, s)
  b.done = b.done + 1
  L.ended(b, id, s, DONE, false)
end

function L.settle_one(b, verb, id, s, extra, rules, gone)
  local lease = s.lease
  if verb == VERDICT.ACK then
    local keep = max(rules.retention, extra.text and rules.result_retention or 0)
    if keep == 0 and extra.text and L.has(s.flags, HAS_CHILDREN) then keep = LIMIT.KEPT_FOR_CHILDREN_MS end
    if keep > 0 then return L.done(b, id, s, keep, extra.text) end
    gone[#gone + 1] = id
    if s.flags > HAS_KEY then L.delete_notes(b, id, s) end
    L.event(b, CHANGE.DONE, id, s, {state = GONE, lease = lease})
    L.let_go(b, id, s)
    L.leave_group(b, id, s)
    b.removed = b.removed + 1
    return L.ended(b, id, s, DONE, true)
  end
  if verb == VERDICT.RELEASE then
    s.attempt = s.attempt - 1
    if extra.text then
      L.wait_for_signal(b, id, s, extra.text, extra.delay)
    elseif extra.delay then
      s.visible = b.now + extra.delay
    end
    return L.give_back(b, id, s, CHANGE.RELEASED, lease, '')
  end
  if extra.text then L.set_error(b, id, s, extra.text) end
  if verb == VERDICT.FAIL or s.attempt >= s.max_attempts then
    local reason = verb == VERDICT.FAIL and REASON.FAILED or REASON.MAX_ATTEMPTS
    return L.kill(b, id, s, reason, extra.text or '', lease)
  end
  s.visible = b.now + (extra.delay or L.backoff(rules, s.attempt, extra.roll))
  return L.give_back(b, id, s, CHANGE.RETRIED, lease, extra.text or '')
end

-- Ack many at once, if all items are plain acks of one live lease and the queue keeps no done jobs.
-- Otherwise returns nil, with nothing written: the caller then uses the general path.
function L.ack_plainly(b, items, count, rules)
  local _, _, lease = unpack_(FORMAT.SETTLE, items)
  local l = L.lease_of(b.base, lease)
  if rules.retention > 0 or not l or l.expires <= b.now or count > LIMIT.EVENTS_A_ROW then return nil end
  local ids, tokens, seen = {}, {}, {}
  for i = 1, count do
    local verb, id, by, token = unpack_(FORMAT.SETTLE, items, (i - 1) * BYTES.SETTLE + 1)
    if verb ~= VERDICT.ACK or by ~= lease or seen[id] then return nil end
    seen[id] = true
    ids[i], tokens[i] = id, token
  end
  local values = L.hmget(b.base .. ':state', ids)
  local shapes, rests = {}, {}
  local sum_of, lease_sum = L.sum_of_halves, L.id_sum(lease)
  for i = 1, count do
    local id, value = ids[i], values[i] or ''
    if #value ~= BYTES.STATE then return nil end
    local _, state, priority, reason, flags, attempt, max_attempts, replays, t1, t0, c1, c0, v1, v0, e1, e0, d1, d0, l1,
      l0, by, kept = unpack_(FORMAT.STATE_HALVES, value)
    if state ~= LEASED or by ~= lease or t1 * T + t0 ~= tokens[i] or flags > HAS_KEY then return nil end
    local i1, i2, i3, i4 = unpack_('>I4I4I4I4', id)
    if kept ~= sum_of(i1, i2, i3, i4, lease_sum, state, priority, reason, flags, attempt, max_attempts, replays, t1, t0,
      c1, c0, v1, v0, e1, e0, d1, d0, l1, l0) then
      return nil
    end
    -- Events that differ in these share no group.
    shapes[i] = (max_attempts * 16 + priority) * 16 + reason
    rests[i] = pack(FORMAT.REST_HALVES, t1, t0, attempt, l1, l0)
  end
  local from = 1
  for i = 1, count do
    local shape = shapes[i]
    if shapes[i + 1] ~= shape then
      local reason, priority = shape % 16, floor(shape / 16) % 16
      local g = L.group(b, CHANGE.DONE, GONE, priority, reason, floor(shape / 256), 0, lease, '')
      local rest, n = L.rest(g), #g.ids
      for j = from, i do
        n = n + 1
        g.ids[n], rest[n] = ids[j], rests[j]
      end
      from = i + 1
    end
  end
  b.events_in_row = count
  b.ended = ids
  b.leased, b.removed = b.leased - count, b.removed + count
  L.bulk('HDEL', b.base .. ':jobs', ids)
  L.bulk('HDEL', b.base .. ':state', ids)
  L.close_jobs(b, lease, l, count)
  return L.finish(b, {string.rep(OUTCOME.SETTLED, count)})
end

-- items (FORMAT.SETTLE for each), then for each whose verdict is not a plain ack:
-- index, delay (-1: the policy's), roll, "1" if a text follows or "0", the text (error, sealed result, or the signal
-- that a release waits for)
verbs.settle = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local items = args[4]
  local count = #items / BYTES.SETTLE
  if not b.there then return {string.rep(OUTCOME.GONE, count)} end
  local extras = {}
  for at = 5, #args, 5 do
    local delay = tonumber(args[at + 1])
    extras[tonumber(args[at])] = {delay = delay >= 0 and delay or nil, roll = tonumber(args[at + 2]),
      text = args[at + 3] == '1' and args[at + 4] or nil}
  end
  local rules = L.rules(b)
  if #args == 4 then
    local reply = L.ack_plainly(b, items, count, rules)
    if reply then return reply end
  end
  local ids, verbs_, leases_, tokens = {}, {}, {}, {}
  for i = 1, count do
    verbs_[i], ids[i], leases_[i], tokens[i] = unpack_(FORMAT.SETTLE, items, (i - 1) * BYTES.SETTLE + 1)
  end
  local values = L.hmget(b.base .. ':state', ids)
  local codes, leases, closed, seen, gone = {}, {}, {}, {}, {}
  local plain = {roll = 0}
  -- Judge all items before the first is written: the effect of one must not change the answer to another.
  local states = {}
  for i = 1, count do
    local id = ids[i]
    local s, no = L.judge(b, values[i], id, leases_[i], tokens[i], leases)
    if s and seen[id] then s, no = nil, OUTCOME.ALREADY_SETTLED end
    if s then
      seen[id] = true
      states[i] = s
    end
    codes[i] = s and OUTCOME.SETTLED or no
  end
  for i = 1, count do
    local s = states[i]
    if s then
      closed[leases_[i]] = (closed[leases_[i]] or 0) + 1
      L.settle_one(b, verbs_[i], ids[i], s, extras[i - 1] or plain, rules, gone)
    end
  end
  L.bulk('HDEL', b.base .. ':jobs', gone)
  L.bulk('HDEL', b.base .. ':state', gone)
  for lease, n in pairs(closed) do L.close_jobs(b, lease, leases[lease], n) end
  return L.finish(b, {concat(codes)})
end

-- An ack (FORMAT.SETTLE), "1" if a result follows or "0", the sealed result; then the arguments of `enqueue_flow`, or
-- those of `enqueue` and ''.
-- Both are decided before either is written: the enqueue refuses first, and the ack was judged by then.
verbs.settle_then = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  if not b.there then return {OUTCOME.GONE} end
  local _, id, lease, token = unpack_(FORMAT.SETTLE, args[4])
  local leases = {}
  local s, code = L.judge(b, call('HGET', b.base .. ':state', id), id, lease, token, leases)
  if not s then return {code} end
  local jobs = {args[1], args[2], args[3]}
  for at = 7, #args do jobs[at - 3] = args[at] end
  local links = args[#args]
  local no = L.enqueue(b, jobs, links ~= '' and {links = links, settled = id} or nil)
  if no then return no end
  -- One of the new jobs may be its child.
  if links ~= '' and call('HEXISTS', b.base .. ':children', id) == 1 then s.flags = L.with(s.flags, HAS_CHILDREN) end
  local gone = {}
  L.settle_one(b, VERDICT.ACK, id, s, {roll = 0, text = args[5] == '1' and args[6] or nil}, L.rules(b), gone)
  L.bulk('HDEL', b.base .. ':jobs', gone)
  L.bulk('HDEL', b.base .. ':state', gone)
  L.close_jobs(b, lease, leases[lease], 1)
  return L.finish(b, {OUTCOME.SETTLED})
end

-- The same for calls with large results, which a full server refuses (library.py, WHEN_FULL).
verbs.settle_with_large_results = verbs.settle

verbs.extend = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local lease, length = args[4], tonumber(args[5])
  local l = b.there and L.lease_of(b.base, lease)
  if not l or l.expires <= b.now then return {'E', 'lost'} end
  local lost = l.lost > 0 and call('HGET', b.base .. ':lost', lease) or ''
  local untils = max(l.expires, b.now + length)
  if untils > l.expires then
    if l.claim ~= NO_ID then call('ZADD', b.base .. ':claimdue', 'XX', untils + LIMIT.CLAIM_MEMORY_MS, l.claim) end
    l.expires = untils
    call('HSET', b.base .. ':lease', lease, L.lease_row(lease, l))
    call('ZADD', b.base .. ':leases', untils, lease)
    L.event(b, CHANGE.EXTENDED, NO_ID, nil, {lease = lease, at = untils})
    b.plan = untils
  end
  return L.finish(b, {untils, lost})
end

verbs.progress = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local id, lease, token = args[4], args[5], tonumber(args[6])
  if not b.there then return {'E', OUTCOME.GONE} end
  local s, no = L.judge(b, call('HGET', b.base .. ':state', id), id, lease, token, {})
  if not s then return {'E', no} end
  call('HSET', b.base .. ':notes', id .. 'p', args[7])
  s.flags = L.with(s.flags, HAS_PROGRESS)
  L.put_state(b, id, s)
  return L.finish(b, {1})
end
