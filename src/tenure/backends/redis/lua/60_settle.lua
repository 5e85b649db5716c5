-- ── settling: a job is settled only by the holder of its live lease ──────────────────────────────────────────────────

-- Whether this proof holds: the state; or nil and why not.
function L.judge(b, value, id, lease, token, leases)
  if not value then return nil, 'gone' end
  local s = L.state_of(id, value)
  if not s then return nil, 'corrupt' end
  if s.state ~= LEASED or s.lease ~= lease or s.token ~= token then
    if s.state ~= LEASED and s.lease == lease and lease ~= NO_ID and s.token == token then return nil, 'settled' end
    return nil, 'lost'
  end
  local l = leases[lease]
  if l == nil then
    l = L.lease_of(b.base, lease) or false
    leases[lease] = l
  end
  if not l then return nil, 'nolease' end
  if l.expires <= b.now then return nil, 'expired' end
  return s
end

function L.done(b, id, s, keep, result)
  if result then
    call('HSET', b.base .. ':notes', id .. 'r', result)
    s.flags = L.with(s.flags, HAS_RESULT)
  end
  s.state, s.ended, s.due = DONE, b.now, b.now + keep
  s.last = L.event(b, 13, id, s, {lease = s.lease})
  L.put_state(b, id, s)
  call('ZADD', b.base .. ':done', b.now, id)
  call('ZADD', b.base .. ':retention', s.due, id)
  b.leased, b.done = b.leased - 1, b.done + 1
  L.ended(b, id)
end

function L.settle_one(b, verb, id, s, extra, rules, gone)
  local lease = s.lease
  if verb == 0 then -- ack
    local keep = max(rules.retention, extra.text and rules.result_retention or 0)
    if keep > 0 then return L.done(b, id, s, keep, extra.text) end
    gone[#gone + 1] = id
    if s.flags > HAS_KEY then L.delete_notes(b, id, s) end
    L.event(b, 13, id, s, {state = GONE, lease = lease})
    b.leased, b.removed = b.leased - 1, b.removed + 1
    return L.ended(b, id)
  end
  if verb == 3 then -- release
    s.attempt = s.attempt - 1
    return L.give_back(b, id, s, 16, lease, '')
  end
  if extra.text then L.set_error(b, id, s, extra.text) end
  if verb == 2 or s.attempt >= s.max_attempts then
    return L.kill(b, id, s, verb == 2 and 2 or 1, extra.text or '', lease)
  end
  s.visible = b.now + (extra.delay or L.backoff(rules, s.attempt, extra.roll))
  return L.give_back(b, id, s, 14, lease, extra.text or '')
end

-- All items are plain acks of one live lease, of a queue that keeps nothing: each is judged as `judge` does, and goes.
-- Nil where anything is not so, having written nothing.
function L.ack_plainly(b, items, count, rules)
  local _, _, lease = unpack_('>Bc16c16', items)
  local l = L.lease_of(b.base, lease)
  if rules.retention > 0 or not l or l.expires <= b.now or count > 1000 then return nil end
  local ids, tokens, seen = {}, {}, {}
  for i = 1, count do
    local verb, id, by, token = unpack_('>Bc16c16I8', items, (i - 1) * 41 + 1)
    if verb ~= 0 or by ~= lease or seen[id] then return nil end
    seen[id] = true
    ids[i], tokens[i] = id, token
  end
  local values = L.hmget(b.base .. ':state', ids)
  local shapes, rests = {}, {}
  local sum_of, lease_sum = L.sum_of_halves, L.id_sum(lease)
  for i = 1, count do
    local id, value = ids[i], values[i] or ''
    if #value ~= L.STATE_BYTES then return nil end
    local _, state, priority, reason, flags, attempt, max_attempts, replays, t1, t0, c1, c0, v1, v0, e1, e0, d1, d0, l1,
      l0, by, kept = unpack_(L.HALVES, value)
    if state ~= LEASED or by ~= lease or t1 * T + t0 ~= tokens[i] or flags > HAS_KEY then return nil end
    local i1, i2, i3, i4 = unpack_('>I4I4I4I4', id)
    if kept ~= sum_of(i1, i2, i3, i4, lease_sum, state, priority, reason, flags, attempt, max_attempts, replays, t1, t0,
      c1, c0, v1, v0, e1, e0, d1, d0, l1, l0) then
      return nil
    end
    -- Events that differ in these share no group.
    shapes[i] = (max_attempts * 16 + priority) * 16 + reason
    rests[i] = pack('>I4I4I4I4I4', t1, t0, attempt, l1, l0)
  end
  local from = 1
  for i = 1, count do
    local shape = shapes[i]
    if shapes[i + 1] ~= shape then
      local reason, priority = shape % 16, floor(shape / 16) % 16
      local g = L.group(b, 13, GONE, priority, reason, floor(shape / 256), 0, lease, '')
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
  return L.finish(b, {string.rep('k', count)})
end

-- items (41 bytes each: verb, job, lease, token), then of each whose verb is not a plain ack:
-- index, delay (-1: the policy's), roll, "1" if a text follows or "0", the text (error or sealed result)
verbs.settle = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local items = args[4]
  local count = #items / 41
  if not b.there then return {string.rep('g', count)} end
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
    verbs_[i], ids[i], leases_[i], tokens[i] = unpack_('>Bc16c16I8', items, (i - 1) * 41 + 1)
  end
  local values = L.hmget(b.base .. ':state', ids)
  local codes, leases, closed, seen, gone = {}, {}, {}, {}, {}
  local why = {gone = 'g', corrupt = 'c', settled = 's', lost = 'l', nolease = 'n', expired = 'x'}
  local plain = {roll = 0}
  -- All are judged before the first is written: what one item does must not change what another is told.
  local states = {}
  for i = 1, count do
    local id = ids[i]
    local s, no = L.judge(b, values[i], id, leases_[i], tokens[i], leases)
    if s and seen[id] then s, no = nil, 'settled' end
    if s then
      seen[id] = true
      states[i] = s
    end
    codes[i] = s and 'k' or why[no]
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

-- The same for calls that carry large results: a full server refuses those (library.py, WHEN_FULL).
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
    if l.claim ~= NO_ID then call('ZADD', b.base .. ':claimdue', 'XX', untils + CLAIM_MEMORY, l.claim) end
    l.expires = untils
    call('HSET', b.base .. ':lease', lease, L.lease_row(lease, l))
    call('ZADD', b.base .. ':leases', untils, lease)
    L.event(b, 12, NO_ID, nil, {lease = lease, at = untils})
    b.plan = untils
  end
  return L.finish(b, {untils, lost})
end

verbs.progress = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local id, lease, token = args[4], args[5], tonumber(args[6])
  if not b.there then return {'E', 'gone'} end
  local s, no = L.judge(b, call('HGET', b.base .. ':state', id), id, lease, token, {})
  if not s then return {'E', no, id, 'its state is damaged'} end
  call('HSET', b.base .. ':notes', id .. 'p', args[7])
  s.flags = L.with(s.flags, HAS_PROGRESS)
  L.put_state(b, id, s)
  return L.finish(b, {1})
end
