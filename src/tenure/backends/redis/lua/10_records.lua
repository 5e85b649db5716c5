-- ── records as bytes: fixed width, with a checksum ───────────────────────────────────────────────────────────────────
-- A state carries a sum over its job's id and its fields (L.sum), because it is written and read most often. The other
-- records carry the first digits of a SHA-1, the only digest in Lua here.

local SEAL = LIMIT.SEAL_BYTES

-- The seal of a record. `prefix` (the id under which it is stored) is sealed, but not stored with it.
function L.seal(prefix, row) return sub(sha(prefix .. row), 1, SEAL) end

function L.state_row(id, s)
  return pack(FORMAT.STATE, LIMIT.VERSION, s.state, s.priority, s.reason, s.flags, s.attempt, s.max_attempts, s.replays,
    s.token, s.created, s.visible, s.ended, s.due, s.last, s.lease, L.sum(L.id_sum(id), L.id_sum(s.lease),
    s.state, s.priority, s.reason, s.flags, s.attempt, s.max_attempts, s.replays, s.token, s.created, s.visible, s.ended, s.due, s.last))
end

-- nil: damaged
function L.state_of(id, value)
  if #value ~= BYTES.STATE then return nil end
  local v, state, priority, reason, flags, attempt, max_attempts, replays, token, created, visible, ended, due, last,
    lease, sum = unpack_(FORMAT.STATE, value)
  if v ~= LIMIT.VERSION or sum ~= L.sum(L.id_sum(id), L.id_sum(lease), state, priority, reason, flags, attempt,
    max_attempts, replays, token, created, visible, ended, due, last) then
    return nil
  end
  return {state = state, priority = priority, reason = reason, flags = flags, attempt = attempt,
    max_attempts = max_attempts, replays = replays, token = token, created = created, visible = visible,
    ended = ended, due = due, last = last, lease = lease}
end

function L.lease_row(id, l)
  local row = pack(FORMAT.LEASE, l.expires, l.granted, l.given, l.open, l.lost, l.claim) .. l.worker
  return row .. L.seal(id, row)
end

-- nil: none; false: damaged
function L.lease_of(base, id)
  local value = call('HGET', base .. ':lease', id)
  if not value then return nil end
  local row = sub(value, 1, -SEAL - 1)
  if #row < BYTES.LEASE or L.seal(id, row) ~= sub(value, -SEAL) then return false end
  local expires, granted, given, open, lost, claim = unpack_(FORMAT.LEASE, row)
  return {expires = expires, granted = granted, given = given, open = open, lost = lost, claim = claim,
    worker = sub(row, BYTES.LEASE + 1)}
end

function L.rules_of(value)
  local paused, max_attempts, lease, retention, result_retention, dedup, max_waiting, on_expiry, kind, jitter, base,
    factor, cap, max_leased, burst, interval = unpack_(FORMAT.RULES, value)
  return {paused = paused == 1, max_attempts = max_attempts, lease = lease, retention = retention,
    result_retention = result_retention, dedup = dedup, max_waiting = max_waiting, on_expiry = on_expiry == 1,
    kind = kind, jitter = jitter, base = base, factor = factor, cap = cap, max_leased = max_leased, burst = burst,
    interval = interval, limited = max_leased > 0 or burst > 0}
end

-- the delay after failed attempt number `attempt`, as in model/retry.py
function L.backoff(rules, attempt, roll)
  local seconds = rules.base
  if rules.kind == BACKOFF.LINEAR then seconds = rules.base * attempt end
  if rules.kind == BACKOFF.EXPONENTIAL and rules.base > 0 then seconds = rules.base * rules.factor ^ (attempt - 1) end
  seconds = min(seconds, rules.cap)
  if rules.jitter == JITTER.EQUAL then seconds = seconds / 2 + seconds / 2 * roll end
  if rules.jitter == JITTER.FULL then seconds = seconds * roll end
  return min(ceil(floor(seconds * 1000 * 1e6 + 0.5) / 1e6), LIMIT.MAX_MS)
end
