-- ── steps and signals: values stored once under a job, by name, as in queueing/steps.py ──────────────────────────────
-- The holder of the live lease stores a step; anyone may send a signal. A delivery that waits for a signal is released.
-- The release checks for the signal, and the signal checks for the wait, each in its own step: none is missed.
-- A job that has any, or waits for a signal, has HAS_STEPS in its state and a row in :steps, which check reads.

L.STEP, L.SIGNAL = 's', 'g'

function L.step_key(b, id) return b.base .. ':steps:' .. id end

function L.put_steps_head(b, id, head)
  local row = pack(FORMAT.STEPS, head.count, head.size, head.token) .. head.waits_for
  call('HSET', b.base .. ':steps', id, row .. L.seal(id, row))
end

-- The summary row of a job's steps. false: damaged
function L.steps_head(b, id)
  local value = call('HGET', b.base .. ':steps', id)
  if not value then return {count = 0, size = 0, token = 0, waits_for = ''} end
  local row = sub(value, 1, -SEAL - 1)
  if #row < BYTES.STEPS or L.seal(id, row) ~= sub(value, -SEAL) then return false end
  local count, size, token = unpack_(FORMAT.STEPS, row)
  return {count = count, size = size, token = token, waits_for = sub(row, BYTES.STEPS + 1)}
end

-- The value in a step's row. nil: damaged
function L.step_value(id, field, value)
  local row = sub(value, 1, -SEAL - 1)
  if #row < BYTES.STEP or L.seal(id .. field, row) ~= sub(value, -SEAL) then return nil end
  return sub(row, BYTES.STEP + 1)
end

function L.damaged_steps(id) return {'E', 'corrupt', id, 'its steps are damaged: run check with repair'} end

-- Store a value under a job and count it. Returns a refusal, with nothing written; or nil and the earlier value.
function L.put_step(b, id, field, value)
  local head = L.steps_head(b, id)
  if not head then return L.damaged_steps(id) end
  local count, size = head.count + 1, head.size + #value
  if count > LIMIT.MAX_STEPS or size > LIMIT.MAX_STEPS_BYTES then return {'E', 'large', count, size} end
  local row = pack(FORMAT.STEP, head.count, b.now) .. value
  call('HSET', L.step_key(b, id), field, row .. L.seal(id .. field, row))
  L.put_steps_head(b, id, {count = count, size = size, token = head.token, waits_for = head.waits_for})
  return nil, head
end

function L.note_steps(b, id, s)
  if not L.has(s.flags, HAS_STEPS) then
    s.flags = s.flags + HAS_STEPS
    L.put_state(b, id, s)
  end
end

function L.delete_steps(b, id)
  call('DEL', L.step_key(b, id))
  call('HDEL', b.base .. ':steps', id)
end

-- job, lease, token, name, value: 1 if it was stored; 0 and the earlier value
verbs.record_step = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local id, field = args[4], L.STEP .. args[7]
  if not b.there then return {'E', OUTCOME.GONE} end
  local s, no = L.judge(b, call('HGET', b.base .. ':state', id), id, args[5], tonumber(args[6]), {})
  if not s then return {'E', no} end
  local before = call('HGET', L.step_key(b, id), field)
  if before then
    local value = L.step_value(id, field, before)
    return value and {0, value} or L.damaged_steps(id)
  end
  local refused = L.put_step(b, id, field, args[8])
  if refused then return refused end
  L.note_steps(b, id, s)
  return L.finish(b, {1})
end

-- job, name, payload: 1 if it was stored; 0 if the job has one of that name; -1 if there is no such job, or it is done
verbs.signal = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local id, name = args[4], args[5]
  local value = b.there and call('HGET', b.base .. ':state', id)
  if not value then return {-1} end
  local s = L.state_of(id, value)
  if not s then return {'E', 'corrupt', id, 'its state is damaged'} end
  if s.state == DONE then return {-1} end
  if call('HEXISTS', L.step_key(b, id), L.SIGNAL .. name) == 1 then return {0} end
  local refused, head = L.put_step(b, id, L.SIGNAL .. name, args[6])
  if refused then return refused end
  L.note_steps(b, id, s)
  local waits = head.waits_for == name and head.token == s.token
  if waits and s.state == WAITING and s.visible > b.now then L.wake(b, id, s) end
  return L.finish(b, {1})
end

-- Make a waiting job that is not due yet ready now.
function L.wake(b, id, s)
  L.unwait(b, id, s)
  s.visible = b.now
  s.last = L.event(b, CHANGE.SIGNALLED, id, s, {at = b.now})
  L.put_state(b, id, s)
  L.wait(b, id, s)
  b.wake = b.wake + 1
end

-- Called before a delivery is released until a signal or a delay: ready now if the signal is already stored.
function L.wait_for_signal(b, id, s, signal, delay)
  if call('HEXISTS', L.step_key(b, id), L.SIGNAL .. signal) == 1 then
    s.visible = b.now
    return
  end
  -- A damaged summary row is left for check: the job is then ready after its delay.
  local head = L.steps_head(b, id)
  if head then
    head.token, head.waits_for = s.token, signal
    L.put_steps_head(b, id, head)
  end
  s.visible, s.flags = b.now + (delay or 0), L.with(s.flags, HAS_STEPS)
end

-- job: its steps and signals, for each its kind (one letter) and name, and the row
readers.steps = function(keys, args)
  return call('HGETALL', keys[1] .. ':steps:' .. args[4])
end

-- ── check ──

-- How many steps a job has, their total bytes, and the fields that cannot be read.
function L.count_steps(b, id)
  local all, count, size, damaged = call('HGETALL', L.step_key(b, id)), 0, 0, {}
  for i = 1, #all, 2 do
    local value = L.step_value(id, all[i], all[i + 1])
    if value then count, size = count + 1, size + #value else damaged[#damaged + 1] = all[i] end
  end
  return count, size, damaged
end

-- Add what is wrong with a job's steps to the findings.
function L.step_problems(b, id, s, found)
  local there = call('HEXISTS', b.base .. ':steps', id) == 1
  if there ~= L.has(s.flags, HAS_STEPS) then found[#found + 1] = 'flags' end
  if there or L.has(s.flags, HAS_STEPS) then
    local head, count, size, damaged = L.steps_head(b, id), L.count_steps(b, id)
    if not head or #damaged > 0 or head.count ~= count or head.size ~= size then found[#found + 1] = 'steps' end
  end
end

-- Remove the unreadable steps of a job, and count the others again.
function L.repair_steps(b, id)
  local head, count, size, damaged = L.steps_head(b, id), L.count_steps(b, id)
  for _, field in ipairs(damaged) do call('HDEL', L.step_key(b, id), field) end
  if count == 0 and not (head and head.token > 0) then return L.delete_steps(b, id) end
  head = head or {token = 0, waits_for = ''}
  L.put_steps_head(b, id, {count = count, size = size, token = head.token, waits_for = head.waits_for})
end
