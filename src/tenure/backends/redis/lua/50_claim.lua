-- ── claims: one lease over the first jobs of a shard ─────────────────────────────────────────────────────────────────

function L.deliveries(b, lease, untils, jobs)
  local rows, ids = {}, {}
  for i, job in ipairs(jobs) do
    local s = job[2]
    rows[i] = pack(FORMAT.DELIVERY, job[1], s.token, s.attempt, s.max_attempts, s.priority, s.created)
    ids[i] = job[1]
  end
  return L.delivered(b, lease, untils, ids, rows)
end

function L.delivered(b, lease, untils, ids, rows)
  local bodies, count = L.hmget(b.base .. ':jobs', ids), #ids
  local reply = {1, untils, concat(rows)}
  for i = 1, count do reply[i + 3] = bodies[i] or '' end
  reply[count + 4] = lease
  return reply
end

-- A body: version, lengths of key and headers, key, headers, payload, CRC-32.
function L.payload_bytes(body)
  if #body < BYTES.BODY + 4 then return 0 end
  local _, key, headers = unpack_(FORMAT.BODY, body)
  return #body - BYTES.BODY - 4 - key - headers
end

-- ── limits: max_leased and rate ──

-- The nanoseconds until the bucket is full.
function L.taken_ns(b)
  local raw = call('GET', b.base .. ':bucket')
  if not raw then return 0 end
  local moment, ns = unpack_('>I8d', raw)
  return max(0, (moment - b.now) * 1e6 + ns)
end

-- Whether the rate's bucket is invalid.
function L.wrong_bucket(b)
  local raw = call('GET', b.base .. ':bucket')
  if not raw then return false end
  if #raw ~= 16 then return true end
  local moment, ns = unpack_('>I8d', raw)
  return moment > b.now or ns ~= ns or ns < 0 or ns > LIMIT.MAX_MS * 1e6
end

-- How many of the wanted jobs a claim may take now.
function L.room(b, rules, wanted)
  if rules.max_leased > 0 then wanted = min(wanted, rules.max_leased - b.leased) end
  if rules.burst > 0 and wanted > 0 then
    wanted = min(wanted, floor((rules.burst * rules.interval - L.taken_ns(b)) / rules.interval))
  end
  return max(wanted, 0)
end

function L.take(b, rules, count)
  if rules.burst > 0 then
    call('SET', b.base .. ':bucket', pack('>I8d', b.now, L.taken_ns(b) + count * rules.interval))
  end
end

-- When the next job becomes ready and may be taken, or the next lease may be taken over; -1: never.
function L.next_due(b, rules, grace)
  local first, opens = -1, 0
  local function look(key, least, later)
    local found = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local at = found[2] and max(tonumber(found[2]) + later, least)
    if at and (first < 0 or at < first) then first = at end
  end
  if rules.burst > 0 then opens = b.now + ceil((L.taken_ns(b) - (rules.burst - 1) * rules.interval) / 1e6) end
  if rules.max_leased == 0 or b.leased < rules.max_leased then
    for tier = LIMIT.TOP_PRIORITY, 0, -1 do
      if L.has(b.tiers, 2 ^ tier) then look(b.base .. ':t' .. tier, opens, 0) end
    end
    if L.has_groups(b) then
      look(b.base .. ':parked', opens, 0)
      if L.group_has_turn(b) and (first < 0 or first > max(opens, b.now)) then first = max(opens, b.now) end
    end
  end
  look(b.base .. ':leases', 0, grace)
  return first
end

function L.repeated(b, lease, asked, expired, wanted)
  if asked ~= wanted then return {'E', 'other'} end
  if expired == '1' then return {'E', 'lost'} end
  local l = L.lease_of(b.base, lease)
  if not l then return {1, b.now, '', lease} end
  if l.expires <= b.now then return {'E', 'lost'} end
  return L.given_before(b, lease, l)
end

-- The jobs that a lease still holds, for a repeated claim.
function L.given_before(b, lease, l)
  L.write_again(b.base .. ':lease', lease, L.lease_row(lease, l))
  return L.deliveries(b, lease, l.expires, (L.held(b, lease)))
end

-- Remove a waiting or blocked job; `change` is the event's type.
function L.remove_waiting(b, id, s, change)
  if s.state == BLOCKED then
    L.leave_blocked(b, id)
  else
    L.unwait(b, id, s)
    b.waiting = b.waiting - 1
  end
  if s.due > 0 then call('ZREM', b.base .. ':ttl', id) end
  L.delete(b, id, s)
  b.removed = b.removed + 1
  L.event(b, change, id, s, {state = GONE, lease = s.lease})
  L.ended(b, id, s, GONE, true)
end

-- Lease jobs of one tier: write their states, deliveries and events. Removes at most t.inspect index members without a
-- job and jobs past their ttl; sets unreadable jobs aside, and continues. `group`: the jobs' group.
-- Returns false if `max_bytes` or t.inspect is reached.
function L.take_tier(b, t, tier, ids, values, group)
  local base, now, lease = b.base, b.now, t.lease
  local gone, unttl = {}, {}
  local taken, rows, states = t.ids, t.rows, t.states
  local sum_of, lease_sum, halves = L.sum_of_halves, L.id_sum(lease), FORMAT.STATE_HALVES
  local bytes, row_events, deliver, rest_format = BYTES.STATE, LIMIT.EVENTS_A_ROW, FORMAT.DELIVERY_HALVES,
    FORMAT.REST_HALVES
  local g, rest, full
  local before = #taken
  for i = 1, #ids do
    if t.inspect <= 0 then
      full = true
      break
    end
    local id, value = ids[i], values[i] or ''
    local _, state, priority, reason, flags, attempt, max_attempts, replays, t1, t0, c1, c0, v1, v0, e1, e0, d1, d0, l1,
      l0, by, kept
    local by_sum, i1, i2, i3, i4 = 0, unpack_('>I4I4I4I4', id)
    if #value == bytes then
      _, state, priority, reason, flags, attempt, max_attempts, replays, t1, t0, c1, c0, v1, v0, e1, e0, d1, d0, l1, l0,
        by, kept = unpack_(halves, value)
      if by ~= NO_ID then by_sum = L.id_sum(by) end
    end
    if not state or kept ~= sum_of(i1, i2, i3, i4, by_sum, state, priority, reason, flags, attempt, max_attempts,
      replays, t1, t0, c1, c0, v1, v0, e1, e0, d1, d0, l1, l0) then
      if value ~= '' then call('HSET', base .. ':damaged', id, 'w') end
      gone[#gone + 1] = id
      t.inspect = t.inspect - 1
    else
      local due = d1 * T + d0
      if state ~= WAITING or priority ~= tier then
        gone[#gone + 1] = id
        t.inspect = t.inspect - 1
      elseif due > 0 and due <= now then
        L.remove_waiting(b, id, L.state_of(id, value), CHANGE.TTL_PASSED)
        t.inspect = t.inspect - 1
        g = nil
      else
        if t.max_bytes > 0 then
          local size = L.payload_bytes(call('HGET', base .. ':jobs', id) or '')
          if #taken > 0 and t.bytes + size > t.max_bytes then
            full = true
            break
          end
          t.bytes = t.bytes + size
        end
        attempt, t0 = attempt + 1, t0 + 1
        if t0 == T then t1, t0 = t1 + 1, 0 end
        if b.events_in_row >= row_events then
          L.close_row(b)
          g = nil
        end
        if not g or g.max_attempts ~= max_attempts or g.reason ~= reason then
          g = L.group(b, CHANGE.CLAIMED, LEASED, tier, reason, max_attempts, t.untils, lease, t.worker)
          rest = L.rest(g)
        end
        local n = #g.ids + 1
        g.ids[n] = id
        rest[n] = pack(rest_format, t1, t0, attempt, l1, l0)
        local ref = L.next_ref(b)
        l0 = ref % T
        l1 = (ref - l0) / T
        b.events_in_row = b.events_in_row + 1
        n = #taken + 1
        taken[n] = id
        rows[n] = pack(deliver, id, t1, t0, attempt, max_attempts, tier, c1, c0)
        states[2 * n - 1], states[2 * n] = id, pack(halves, LIMIT.VERSION, LEASED, tier, reason, flags, attempt,
          max_attempts, replays, t1, t0, c1, c0, v1, v0, e1, e0, 0, 0, l1, l0, lease,
          sum_of(i1, i2, i3, i4, lease_sum, LEASED, tier, reason, flags, attempt, max_attempts, replays, t1, t0, c1, c0,
            v1, v0, e1, e0, 0, 0, l1, l0))
        gone[#gone + 1] = id
        if due > 0 then unttl[#unttl + 1] = id end
      end
    end
  end
  if group then
    L.bulk('ZREM', base .. ':t' .. (tier + LIMIT.PRIORITIES), gone)
    local c = L.group_change(b, group)
    c.waiting = c.waiting - L.bulk('ZREM', L.group_key(b, tier, group), gone)
    c.leased = c.leased + #taken - before
  elseif #gone == #ids then
    call('ZREMRANGEBYRANK', base .. ':t' .. tier, 0, #ids - 1) -- all were taken, and they were the first
  else
    L.bulk('ZREM', base .. ':t' .. tier, gone)
  end
  L.bulk('ZREM', base .. ':ttl', unttl)
  return not full
end

-- Take the first ready jobs, highest priority first.
function L.pick(b, t, limit)
  local groups = L.has_groups(b)
  for tier = LIMIT.TOP_PRIORITY, 0, -1 do
    if groups and #t.ids < limit and L.has(b.tiers, 2 ^ (tier + LIMIT.PRIORITIES))
      and not L.pick_by_turns(b, t, tier, limit) then
      return
    end
    while #t.ids < limit and L.has(b.tiers, 2 ^ tier) do
      local wanted = min(limit - #t.ids, 2000)
      local ids = call('ZRANGEBYSCORE', b.base .. ':t' .. tier, '-inf', b.now, 'LIMIT', 0, wanted)
      if #ids == 0 then break end
      if not L.take_tier(b, t, tier, ids, L.hmget(b.base .. ':state', ids)) then return end
      if #ids < wanted then break end
    end
  end
end

-- Arguments: lease, limit, duration (0: the policy's), max_bytes (0: no limit), worker, digest of the claim's id or '',
-- digest of its arguments, a number in [0, 1) for jitter, how many expired leases and unusable rows to handle at most,
-- the grace after a lease's end.
-- Without a job: returns 0, the next due time, the time, a job that was set aside, 1 if a limit was reached.
verbs.claim = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  return L.claim(b, args)
end

function L.claim(b, args)
  if not b.there then return {0, -1, b.now, '', 0} end
  local base, lease, claim = b.base, args[4], args[9]
  if claim ~= '' then
    local seen = call('HGET', base .. ':claims', claim)
    if seen then return L.repeated(b, sub(seen, 1, 16), sub(seen, 17, 32), sub(seen, 33), args[10]) end
  end
  local rules = L.rules(b)
  if rules.paused then return {0, -1, b.now, '', 0} end
  -- The answer to this claim may have been lost: a repeat has the same lease.
  local l = L.lease_of(base, lease)
  if l then return L.given_before(b, lease, l) end
  local limit, inspect, grace = tonumber(args[5]), tonumber(args[12]), tonumber(args[13])
  local expired, _, _, more = L.expire(b, tonumber(args[11]), inspect, max(inspect, limit), grace)
  if L.has_groups(b) then
    L.flush_groups(b) -- groups whose jobs wait again get their turns before the claim selects jobs
    local left, revising = L.bring_back(b, inspect)
    more = left or more
    L.flush_groups(b)
    if revising then return L.finish(b, {0, b.now, b.now, '', 1}) end
  end
  if rules.limited then limit = L.room(b, rules, limit) end
  local length = tonumber(args[6])
  local t = {lease = lease, untils = b.now + (length > 0 and length or rules.lease), worker = args[8],
    max_bytes = tonumber(args[7]), bytes = 0, inspect = max(1, inspect - expired), ids = {}, rows = {}, states = {}}
  if limit > 0 then L.pick(b, t, limit) end
  local ids, untils = t.ids, t.untils
  if #ids == 0 then
    local changed = expired > 0 or b.events_in_row > 0 or #b.rows > 0
    if changed then L.finish(b, {}) end -- it may make children ready of jobs that it removed
    local due = L.next_due(b, rules, grace)
    local again = more or t.inspect <= 0 or changed and due >= 0 and due <= b.now
    return {0, due, b.now, limit > 0 and call('HKEYS', base .. ':damaged')[1] or '', limit > 0 and again and 1 or 0}
  end
  L.bulk('HSET', base .. ':state', t.states)
  call('ZADD', base .. ':leases', untils, lease)
  call('HSET', base .. ':lease', lease, L.lease_row(lease, {expires = untils, granted = b.now, given = #ids,
    open = #ids, lost = 0, claim = claim ~= '' and claim or NO_ID, worker = args[8]}))
  call('HSET', base .. ':held', lease, concat(ids))
  if claim ~= '' then
    call('HSET', base .. ':claims', claim, lease .. args[10] .. '0')
    call('ZADD', base .. ':claimdue', untils + LIMIT.CLAIM_MEMORY_MS, claim)
  end
  if rules.limited then L.take(b, rules, #ids) end
  b.waiting, b.leased = b.waiting - #ids, b.leased + #ids
  b.plan = untils
  if b.turn == NO_TURN then L.has_work(b, untils + grace) end -- a store that was written without an index of queues
  L.finish(b, {})
  return L.delivered(b, lease, untils, ids, t.rows)
end

-- Arguments: the grace after a lease's end.
-- Returns the next due time, and the time: for callers that wait without claiming.
readers.due = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  if not b.there or L.rules(b).paused then return {-1, b.now} end
  return {L.next_due(b, L.rules(b), tonumber(args[4])), b.now}
end

-- Whether this shard has a claim with this id.
readers.claimed = function(keys, args) return {call('HEXISTS', keys[1] .. ':claims', args[4])} end

-- Set jobs aside whose bodies the client could not read: they leave their lease, and the delivery is not counted.
verbs.set_aside = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local lease, count = args[4], 0
  local l = b.there and L.lease_of(b.base, lease)
  for _, id in ipairs(L.split(args[5])) do
    local value = call('HGET', b.base .. ':state', id)
    local s = value and L.state_of(id, value)
    if s and s.state == LEASED and s.lease == lease then
      s.attempt = s.attempt - 1
      L.give_back(b, id, s, CHANGE.RELEASED, lease, '')
      b.wake = 0
      L.unwait(b, id, s)
      call('HSET', b.base .. ':damaged', id, 'w')
      count = count + 1
    end
  end
  if l and count > 0 then L.close_jobs(b, lease, l, count) end
  return L.finish(b, {count})
end
