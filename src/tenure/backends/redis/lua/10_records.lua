-- ── what is kept, as bytes: fixed width, sealed ──────────────────────────────────────────────────────────────────────
-- A state by a sum over its job's id and its fields, since it is written and read most; the rest by the first 8 digits of a
-- SHA-1, the only digest Lua has here.

-- version state priority reason flags attempt max_attempts replays token created visible ended due last_event lease sum
L.STATE = '>BBBBBI4I4I4I8I8I8I8I8I8c16I4'
L.STATE_BYTES = 85
-- the same with its 8-byte fields in halves, as sums take them: for the verbs that go over many jobs
L.HALVES = '>BBBBBI4I4I4I4I4I4I4I4I4I4I4I4I4I4I4c16I4'
-- expires granted given open lost claim
L.LEASE = '>I8I8I4I4I4c16'
L.LEASE_BYTES = 44
-- commit events time id_time id_seq tiers waiting leased done dead enqueued removed
L.BOOKS = '>I8I8I8I8I8I8I8I8I8I8I8I8'
L.BOOKS_BYTES = 96
-- paused max_attempts lease retention result_retention dedup max_waiting backoff_on_expiry kind jitter base factor cap
-- max_leased (0: any), and of the rate how many at once (0: no rate) and the nanoseconds between two
L.RULES = '>BI4I8I8I8I8I8BBBdddI8I8d'

local T = 2 ^ 32

-- Of 16 bytes: no change of a bit leaves it as it was.
function L.id_sum(id)
  local a, b, c, d = unpack_('>I4I4I4I4', id)
  local s = a * 40503 + b * 30011 + c * 20011 + d * 10007
  return s - floor(s / T) * T
end

-- Each field counts by an odd number, its two halves apart, so that a change of any one of them always shows. All sums are
-- exact: they stay below 2 ^ 53.
function L.sum(id, lease, state, priority, reason, flags, attempt, max_attempts, replays, token, created, visible, ended,
  due, last)
  local h1, h2, h3, h4, h5, h6 = floor(token / T), floor(created / T), floor(visible / T), floor(ended / T),
    floor(due / T), floor(last / T)
  local s = id + lease * 3 + state * 521 + priority * 1031 + reason * 2053 + flags * 4099 + attempt * 8209
    + max_attempts * 16411 + replays * 32771 + (token - h1 * T) * 5 + h1 * 7 + (created - h2 * T) * 11 + h2 * 13
    + (visible - h3 * T) * 17 + h3 * 19 + (ended - h4 * T) * 23 + h4 * 29 + (due - h5 * T) * 31 + h5 * 37
    + (last - h6 * T) * 41 + h6 * 43
  return s - floor(s / T) * T
end

-- The sum of what HALVES unpacks: verbs on many jobs spend most of their time here, so nothing is called.
function L.sum_of_halves(a, b, c, d, by, state, priority, reason, flags, attempt, max_attempts, replays, t1, t0, c1, c0,
  v1, v0, e1, e0, d1, d0, l1, l0)
  return (a * 40503 + b * 30011 + c * 20011 + d * 10007 + by * 3 + state * 521 + priority * 1031 + reason * 2053
    + flags * 4099 + attempt * 8209 + max_attempts * 16411 + replays * 32771 + t0 * 5 + t1 * 7 + c0 * 11 + c1 * 13
    + v0 * 17 + v1 * 19 + e0 * 23 + e1 * 29 + d0 * 31 + d1 * 37 + l0 * 41 + l1 * 43) % T
end

function L.state_row(id, s)
  return pack(L.STATE, 1, s.state, s.priority, s.reason, s.flags, s.attempt, s.max_attempts, s.replays, s.token,
    s.created, s.visible, s.ended, s.due, s.last, s.lease, L.sum(L.id_sum(id), L.id_sum(s.lease), s.state, s.priority,
    s.reason, s.flags, s.attempt, s.max_attempts, s.replays, s.token, s.created, s.visible, s.ended, s.due, s.last))
end

-- nil: damaged
function L.state_of(id, value)
  if #value ~= L.STATE_BYTES then return nil end
  local v, state, priority, reason, flags, attempt, max_attempts, replays, token, created, visible, ended, due, last,
    lease, sum = unpack_(L.STATE, value)
  if v ~= 1 or sum ~= L.sum(L.id_sum(id), L.id_sum(lease), state, priority, reason, flags, attempt, max_attempts,
    replays, token, created, visible, ended, due, last) then
    return nil
  end
  return {state = state, priority = priority, reason = reason, flags = flags, attempt = attempt,
    max_attempts = max_attempts, replays = replays, token = token, created = created, visible = visible,
    ended = ended, due = due, last = last, lease = lease}
end

function L.lease_row(id, l)
  local row = pack(L.LEASE, l.expires, l.granted, l.given, l.open, l.lost, l.claim) .. l.worker
  return row .. sub(sha(id .. row), 1, 8)
end

-- nil: none; false: damaged
function L.lease_of(base, id)
  local value = call('HGET', base .. ':lease', id)
  if not value then return nil end
  local row = sub(value, 1, -9)
  if #row < L.LEASE_BYTES or sub(sha(id .. row), 1, 8) ~= sub(value, -8) then return false end
  local expires, granted, given, open, lost, claim = unpack_(L.LEASE, row)
  return {expires = expires, granted = granted, given = given, open = open, lost = lost, claim = claim,
    worker = sub(row, L.LEASE_BYTES + 1)}
end

function L.rules_of(value)
  local paused, max_attempts, lease, retention, result_retention, dedup, max_waiting, on_expiry, kind, jitter, base,
    factor, cap, max_leased, burst, interval = unpack_(L.RULES, value)
  return {paused = paused == 1, max_attempts = max_attempts, lease = lease, retention = retention,
    result_retention = result_retention, dedup = dedup, max_waiting = max_waiting, on_expiry = on_expiry == 1,
    kind = kind, jitter = jitter, base = base, factor = factor, cap = cap, max_leased = max_leased, burst = burst,
    interval = interval, limited = max_leased > 0 or burst > 0}
end

-- the wait after failed delivery number `attempt`, as model/retry.py decides it
function L.backoff(rules, attempt, roll)
  local seconds = rules.base
  if rules.kind == 1 then seconds = rules.base * attempt end
  if rules.kind == 2 then seconds = rules.base == 0 and 0 or rules.base * rules.factor ^ (attempt - 1) end
  seconds = min(seconds, rules.cap)
  if rules.jitter == 1 then seconds = seconds / 2 + seconds / 2 * roll end
  if rules.jitter == 2 then seconds = seconds * roll end
  return min(ceil(floor(seconds * 1000 * 1e6 + 0.5) / 1e6), MAX_MS)
end
