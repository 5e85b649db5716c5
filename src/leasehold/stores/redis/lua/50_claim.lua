-- ── claims: one lease over the first jobs of a shard ─────────────────────────────────────────────────────────────────

L.DELIVERY = '>c16I8I4I4BI8'

function L.deliveries(b, lease, untils, jobs)
  local rows, reply, ids = {}, {1, untils, ''}, {}
  for i, job in ipairs(jobs) do
    local s = job[2]
    rows[i] = pack(L.DELIVERY, job[1], s.token, s.attempt, s.max_attempts, s.priority, s.created)
    ids[i] = job[1]
  end
  reply[3] = concat(rows)
  local bodies = L.hmget(b.base .. ':jobs', ids)
  for i = 1, #jobs do reply[3 + i] = bodies[i] or '' end
  reply[#reply + 1] = lease
  return reply
end

-- A body is its version, the lengths of key and headers, these two, the payload, and a CRC-32.
function L.payload_bytes(body)
  if #body < 11 then return 0 end
  local _, key, headers = unpack_('>BI2I4', body)
  return #body - 11 - key - headers
end

-- ── limits: how many are held at once, how many are handed out a second ──

-- How far the bucket is from full, in nanoseconds.
function L.taken_ns(b)
  local raw = call('GET', b.base .. ':bucket')
  if not raw then return 0 end
  local moment, ns = unpack_('>I8d', raw)
  return max(0, (moment - b.now) * 1e6 + ns)
end

-- How many jobs a claim may take now, of those it wants.
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

-- When the next job becomes ready (and may be taken) or the next lease runs out; -1: nothing to come.
function L.next_due(b, rules)
  local first, opens = -1, 0
  local function look(key, least)
    local found = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local at = found[2] and max(tonumber(found[2]), least)
    if at and (first < 0 or at < first) then first = at end
  end
  if rules.burst > 0 then opens = b.now + ceil((L.taken_ns(b) - (rules.burst - 1) * rules.interval) / 1e6) end
  if rules.max_leased == 0 or b.leased < rules.max_leased then
    for tier = 9, 0, -1 do
      if L.has(b.tiers, 2 ^ tier) then look(b.base .. ':t' .. tier, opens) end
    end
  end
  look(b.base .. ':leases', 0)
  return first
end

function L.repeated(b, lease, asked, expired, wanted)
  if asked ~= wanted then return {'E', 'other'} end
  if expired == '1' then return {'E', 'lost'} end
  local l = L.lease_of(b.base, lease)
  if not l then return {1, b.now, '', lease} end
  if l.expires <= b.now then return {'E', 'lost'} end
  return L.deliveries(b, lease, l.expires, (L.held(b, lease)))
end

-- Remove a waiting job, with its event; the caller has told why.
function L.remove_waiting(b, id, s, change)
  call('ZREM', b.base .. ':t' .. s.priority, id)
  if s.due > 0 then call('ZREM', b.base .. ':ttl', id) end
  L.delete(b, id, s)
  b.waiting, b.removed = b.waiting - 1, b.removed + 1
  L.event(b, change, id, s, {state = GONE, lease = s.lease})
  L.ended(b, id)
end

-- The first jobs up to now. What should not be there is cleared on the way: rows without a job, jobs past their ttl;
-- a job that cannot be read is set aside, and the claim goes on behind it.
function L.pick(b, limit, max_bytes)
  local base, now = b.base, b.now
  local taken, bytes, passed = {}, 0, 0
  for tier = 9, 0, -1 do
    local key = base .. ':t' .. tier
    while #taken < limit and L.has(b.tiers, 2 ^ tier) do
      local ids = call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, min(limit - #taken, 2000))
      if #ids == 0 then break end
      local values = L.hmget(base .. ':state', ids)
      local gone = {}
      for i, id in ipairs(ids) do
        local s = values[i] and L.state_of(id, values[i])
        if values[i] and not s then
          call('HSET', base .. ':damaged', id, 'w')
          passed = passed + 1
          gone[#gone + 1] = id
        elseif not s or s.state ~= WAITING or s.priority ~= tier then
          gone[#gone + 1] = id
        elseif s.due > 0 and s.due <= now then
          L.remove_waiting(b, id, s, 20)
          passed = passed + 1
        else
          if max_bytes > 0 then
            local size = L.payload_bytes(call('HGET', base .. ':jobs', id) or '')
            if #taken > 0 and bytes + size > max_bytes then
              L.bulk('ZREM', key, gone)
              return taken
            end
            bytes = bytes + size
          end
          gone[#gone + 1] = id
          taken[#taken + 1] = {id, s}
        end
      end
      L.bulk('ZREM', key, gone)
      if passed > 10000 then return taken end
    end
  end
  return taken
end

-- lease, limit, for how long (0: the policy's), max_bytes (0: any), worker, claim's digest or '', digest of what it
-- asked for, a number in [0, 1) for jitter
verbs.claim = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  if not b.there then return {0, -1, b.now, ''} end
  local base, lease, claim = b.base, args[4], args[9]
  if claim ~= '' then
    local seen = call('HGET', base .. ':claims', claim)
    if seen then return L.repeated(b, sub(seen, 1, 16), sub(seen, 17, 32), sub(seen, 33), args[10]) end
  end
  local rules = L.rules(b)
  if rules.paused then return {0, -1, b.now, ''} end
  -- The answer to this very claim may have been lost: its lease is the request's number.
  local l = L.lease_of(base, lease)
  if l then return L.deliveries(b, lease, l.expires, (L.held(b, lease))) end
  local expired = L.expire(b, tonumber(args[11]))
  local limit = tonumber(args[5])
  if rules.limited then limit = L.room(b, rules, limit) end
  local taken = limit > 0 and L.pick(b, limit, tonumber(args[7])) or {}
  if #taken == 0 then
    if expired > 0 or b.events_in_row > 0 or #b.rows > 0 then L.finish(b, {}) end
    return {0, L.next_due(b, rules), b.now, limit > 0 and call('HKEYS', base .. ':damaged')[1] or ''}
  end
  local length = tonumber(args[6])
  local untils = b.now + (length > 0 and length or rules.lease)
  local states, ids, unttl = {}, {}, {}
  local state_row, event = L.state_row, L.event
  local more = {lease = lease, at = untils, text = args[8]}
  for i, job in ipairs(taken) do
    local id, s = job[1], job[2]
    s.state, s.lease, s.attempt, s.token = LEASED, lease, s.attempt + 1, s.token + 1
    if s.due > 0 then unttl[#unttl + 1] = id s.due = 0 end
    s.last = event(b, 11, id, s, more)
    states[2 * i - 1], states[2 * i], ids[i] = id, state_row(id, s), id
  end
  L.bulk('HSET', base .. ':state', states)
  L.bulk('ZREM', base .. ':ttl', unttl)
  call('ZADD', base .. ':leases', untils, lease)
  call('HSET', base .. ':lease', lease, L.lease_row(lease, {expires = untils, granted = b.now, given = #ids,
    open = #ids, lost = 0, claim = claim ~= '' and claim or NO_ID, worker = args[8]}))
  call('HSET', base .. ':held', lease, concat(ids))
  if claim ~= '' then
    call('HSET', base .. ':claims', claim, lease .. args[10] .. '0')
    call('ZADD', base .. ':claimdue', untils + CLAIM_MEMORY, claim)
  end
  if rules.limited then L.take(b, rules, #ids) end
  b.waiting, b.leased = b.waiting - #ids, b.leased + #ids
  b.plan = untils
  L.finish(b, {})
  return L.deliveries(b, lease, untils, taken)
end

-- Whether a claim's id was seen here.
readers.claimed = function(keys, args) return {call('HEXISTS', keys[1] .. ':claims', args[4])} end

-- Jobs of a lease whose bodies the client could not read: out of the lease, and aside, their delivery not counted.
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
      L.give_back(b, id, s, 16, lease, '')
      b.wake = 0
      call('ZREM', b.base .. ':t' .. s.priority, id)
      call('HSET', b.base .. ':damaged', id, 'w')
      count = count + 1
    end
  end
  if l and count > 0 then L.close_jobs(b, lease, l, count) end
  return L.finish(b, {count})
end
