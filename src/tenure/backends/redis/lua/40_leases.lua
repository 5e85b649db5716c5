-- ── leases: their open jobs, and their end ───────────────────────────────────────────────────────────────────────────

function L.put_state(b, id, s) call('HSET', b.base .. ':state', id, L.state_row(id, s)) end

function L.end_lease(b, id, l)
  local base = b.base
  call('ZREM', base .. ':leases', id)
  call('HDEL', base .. ':lease', id)
  call('HDEL', base .. ':held', id)
  if l.lost > 0 then call('HDEL', base .. ':lost', id) end
end

-- Subtract `closed` jobs from the lease's open ones; `lost` names a job that was cancelled under it
function L.close_jobs(b, id, l, closed, lost)
  l.open = l.open - closed
  if l.open <= 0 then return L.end_lease(b, id, l) end
  if lost then
    l.lost = l.lost + 1
    call('HSET', b.base .. ':lost', id, (call('HGET', b.base .. ':lost', id) or '') .. lost)
  end
  call('HSET', b.base .. ':lease', id, L.lease_row(id, l))
end

-- The jobs that a lease still holds, as {id, state}, and those of its jobs that cannot be read.
function L.held(b, lease)
  local ids = L.split(call('HGET', b.base .. ':held', lease) or '')
  local values = L.hmget(b.base .. ':state', ids)
  local found, damaged = {}, {}
  for i, id in ipairs(ids) do
    local s = values[i] and L.state_of(id, values[i])
    if values[i] and not s then
      damaged[#damaged + 1] = id
    elseif s and s.state == LEASED and s.lease == lease then
      found[#found + 1] = {id, s}
    end
  end
  return found, damaged
end

-- From leased to waiting. `lease`: the lease that settled it, or zeros if it expired.
function L.give_back(b, id, s, change, lease, text)
  local by = s.lease
  s.state, s.lease = WAITING, lease
  s.last = L.event(b, change, id, s, {lease = by, at = s.visible, text = text})
  L.put_state(b, id, s)
  L.let_go(b, id, s)
  L.wait_again(b, id, s)
end

-- Index a job as waiting, by its new state.
function L.wait_again(b, id, s)
  L.wait(b, id, s)
  b.waiting = b.waiting + 1
  b.wake = s.visible > b.now and LIMIT.WAKE_ALL or b.wake + 1
end

-- From leased to dead: the only code that does so.
function L.kill(b, id, s, reason, text, lease)
  local by = s.lease
  s.state, s.reason, s.ended, s.lease = DEAD, reason, b.now, lease
  s.last = L.event(b, CHANGE.DIED, id, s, {lease = by, text = text})
  L.put_state(b, id, s)
  call('ZADD', b.base .. ':dead', b.now, id)
  L.let_go(b, id, s)
  b.dead = b.dead + 1
  L.ended(b, id, s, DEAD, false)
end

-- `outcome` and `gone`: as for L.parent_ended.
function L.ended(b, id, s, outcome, gone)
  b.ended = b.ended or {}
  b.ended[#b.ended + 1] = id
  if L.has(s.flags, HAS_CHILDREN) then L.parent_ended(b, id, outcome, gone) end
end

function L.set_error(b, id, s, text)
  call('HSET', b.base .. ':notes', id .. 'e', text)
  if L.has(s.flags, HAS_PROGRESS) then
    call('HDEL', b.base .. ':notes', id .. 'p')
    s.flags = s.flags - HAS_PROGRESS
  end
  s.flags = L.with(s.flags, HAS_ERROR)
end

function L.delete_notes(b, id, s)
  if s.flags > HAS_KEY then call('HDEL', b.base .. ':notes', id .. 'e', id .. 'p', id .. 'r') end
  if L.has(s.flags, HAS_PARENTS) then call('HDEL', b.base .. ':parents', id) end
  if L.has(s.flags, HAS_STEPS) then L.delete_steps(b, id) end
end

-- Remove a job from all its indexes; the caller has changed the counters.
function L.delete(b, id, s)
  local base = b.base
  call('HDEL', base .. ':jobs', id)
  call('HDEL', base .. ':state', id)
  L.delete_notes(b, id, s)
  L.leave_group(b, id, s)
end

-- Take over expired leases: their jobs are ready again, or dead if that was their last attempt.
-- At most `most` leases, and no further lease once `most_jobs` jobs were in them. `grace`: how long after their expiry
-- they are left alone.
-- Returns leases, jobs back, jobs dead, and whether there are more.
function L.expire(b, seed, most, most_jobs, grace)
  local due = call('ZRANGEBYSCORE', b.base .. ':leases', '-inf', b.now - grace, 'LIMIT', 0, most)
  local rules = #due > 0 and L.rules(b)
  local leases, back, dead, roll = 0, 0, 0, seed
  for _, lease in ipairs(due) do
    if back + dead >= most_jobs then break end
    local l = L.lease_of(b.base, lease)
    local found, damaged = L.held(b, lease)
    for _, job in ipairs(found) do
      local id, s = job[1], job[2]
      roll = (roll + 0.6180339887) % 1
      if s.attempt >= s.max_attempts then
        local text = 'the lease expired (worker ' .. (l and l.worker ~= '' and l.worker or 'unnamed') .. ')'
        L.set_error(b, id, s, text)
        L.kill(b, id, s, REASON.MAX_ATTEMPTS, text, NO_ID)
        dead = dead + 1
      else
        s.visible = b.now + (rules.on_expiry and L.backoff(rules, s.attempt, roll) or 0)
        L.give_back(b, id, s, CHANGE.EXPIRED, NO_ID, '')
        back = back + 1
      end
    end
    for _, id in ipairs(damaged) do call('HSET', b.base .. ':damaged', id, 'l') end
    if l and l.claim ~= NO_ID and #found > 0 then
      local claim = call('HGET', b.base .. ':claims', l.claim)
      if claim then call('HSET', b.base .. ':claims', l.claim, sub(claim, 1, 32) .. '1') end
    end
    L.end_lease(b, lease, l or {lost = 1})
    leases = leases + 1
  end
  L.end_parents(b)
  return leases, back, dead, leases > 0 and (leases < #due or #due == most)
end
