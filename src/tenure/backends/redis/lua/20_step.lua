-- ── the common part of every verb: its time, events and counters; L.begin reads them, L.finish writes them ───────────

-- commit events time id_time id_seq tiers waiting leased done dead enqueued removed. Only Lua reads this record. Above
-- the bits of the tiers (L.TURN_UNIT) is the state of the queue's place among the turns (49_queue_turns.lua).
L.COUNTERS = '>I8I8I8I8I8I8I8I8I8I8I8I8'
L.COUNTERS_BYTES = 96

function L.now(given, stored)
  local now
  if given ~= '' then
    now = tonumber(given) -- a test's clock: only clients that were opened with a ManualClock send it
  else
    local time = call('TIME')
    now = time[1] * 1000 + floor(time[2] / 1000)
  end
  return max(now, stored or 0)
end

-- Every request's arguments: a test's time or '', lane, number in the lane (95_requests.lua), then the verb's own.
function L.begin(keys, args)
  local base = keys[1]
  local found = call('MGET', base .. ':books', base .. ':rules')
  local b = {base = base, rows = {}, groups = {}, events_in_row = 0}
  if found[1] then
    local row = sub(found[1], 1, L.COUNTERS_BYTES)
    if #row ~= L.COUNTERS_BYTES or L.seal('', row) ~= sub(found[1], -SEAL) then b.damaged = true end
    if not b.damaged then
      b.commit, b.events, b.time, b.id_time, b.id_seq, b.tiers, b.waiting, b.leased, b.done, b.dead, b.enqueued,
        b.removed = unpack_(L.COUNTERS, row)
      b.turn, b.tiers = floor(b.tiers / L.TURN_UNIT), b.tiers % L.TURN_UNIT
      b.there = true
    end
  end
  if not b.there then
    b.commit, b.events, b.time, b.id_time, b.id_seq, b.tiers, b.turn = 0, 0, 0, 0, 0, 0, 0
    b.waiting, b.leased, b.done, b.dead, b.enqueued, b.removed = 0, 0, 0, 0, 0, 0
  end
  if b.damaged then
    return nil, {'E', 'corrupt', '', 'the counters of ' .. base .. ' are damaged: run check with repair'}
  end
  b.now = L.now(args[1], b.time)
  b.rules_row = found[2]
  if not b.rules_row then b.there = nil end -- deleted: counters and journal continue when it is created again
  b.wake, b.held_before = 0, b.leased
  return b
end

function L.rules(b)
  if not b.rules then b.rules = L.rules_of(b.rules_row) end
  return b.rules
end

-- Create the queue if it does not exist.
function L.make(b, rules_row, text)
  if b.there then return end
  b.there, b.rules_row, b.new_rules = true, rules_row, true
  L.event(b, CHANGE.QUEUE_CREATED, NO_ID, nil, {text = text})
end

-- Add an event; returns its reference. Events that differ only in job, token, attempt and predecessor share a group.
function L.event(b, change, id, s, more)
  if b.events_in_row >= LIMIT.EVENTS_A_ROW then L.close_row(b) end
  local state, priority, reason, max_attempts, token, attempt, previous = GONE, 0, REASON.NONE, 0, 0, 0, 0
  if s then
    state, priority, reason, max_attempts = more and more.state or s.state, s.priority, s.reason, s.max_attempts
    token, attempt, previous = s.token, s.attempt, s.last
  end
  local at, lease, text = 0, NO_ID, ''
  if more then at, lease, text = more.at or 0, more.lease or NO_ID, more.text or '' end
  local g = L.group(b, change, state, priority, reason, max_attempts, at, lease, text)
  local n = #g.ids + 1
  g.ids[n] = id
  if token ~= 0 or attempt ~= 0 or previous ~= 0 or g.rest then
    L.rest(g)[n] = pack(FORMAT.REST, token, attempt, previous)
  end
  local ref = L.next_ref(b)
  b.events_in_row = b.events_in_row + 1
  return ref
end

-- The reference of the next event.
function L.next_ref(b) return (b.commit + #b.rows + 1) * LIMIT.PLACES + b.events_in_row end

-- The group to which an event with these fields is added: the last one, or a new one.
function L.group(b, change, state, priority, reason, max_attempts, at, lease, text)
  local g = b.groups[#b.groups]
  if not g or g.change ~= change or g.state ~= state or g.priority ~= priority or g.reason ~= reason
    or g.max_attempts ~= max_attempts or g.at ~= at or g.lease ~= lease or g.text ~= text then
    g = {change = change, state = state, priority = priority, reason = reason, max_attempts = max_attempts, at = at,
      lease = lease, text = text, ids = {}}
    b.groups[#b.groups + 1] = g
  end
  return g
end

-- Encode token, attempt and predecessor of a group's events, from the first event that has any.
function L.rest(g)
  if not g.rest then
    g.rest = {}
    for i = 1, #g.ids - 1 do g.rest[i] = pack(FORMAT.REST, 0, 0, 0) end
  end
  return g.rest
end

function L.close_row(b)
  local parts = {}
  for i, g in ipairs(b.groups) do
    parts[#parts + 1] = pack(FORMAT.GROUP, g.change, g.state, g.priority, g.reason, g.max_attempts, g.at,
      g.lease, #g.ids, #g.text, g.rest and 1 or 0) .. g.text .. concat(g.ids)
    if g.rest then parts[#parts + 1] = concat(g.rest) end
  end
  local row = pack(FORMAT.ROW, LIMIT.VERSION, b.now, b.events + 1, b.events_in_row) .. concat(parts)
  b.rows[#b.rows + 1] = L.seal('', row) .. row
  b.events = b.events + b.events_in_row
  b.groups, b.events_in_row = {}, 0
end

function L.counters_row(b)
  local row = pack(L.COUNTERS, b.commit, b.events, b.time, b.id_time, b.id_seq, b.tiers + b.turn * L.TURN_UNIT, b.waiting,
    b.leased, b.done, b.dead, b.enqueued, b.removed)
  return row .. L.seal('', row)
end

-- Write the journal and the counters, and publish whom to wake. Every verb that writes ends with this.
function L.finish(b, reply)
  local base = b.base
  L.end_parents(b)
  L.flush_groups(b)
  if b.events_in_row > 0 then L.close_row(b) end
  -- Settled jobs make room for claims that wait at a limit.
  if b.leased < b.held_before and b.rules_row and L.rules(b).limited then
    b.wake = max(b.wake, b.held_before - b.leased)
    L.has_work(b, b.now)
  end
  L.offer_queue(b)
  for i, row in ipairs(b.rows) do call('XADD', base .. ':journal', string.format("%.0f-0", b.commit + i), 'e', row) end
  b.commit = b.commit + #b.rows
  b.time = b.now
  if b.new_rules then call('SET', base .. ':rules', b.rules_row) end
  call('SET', base .. ':books', L.counters_row(b))
  if #b.rows > 0 then call('PUBLISH', base, pack(FORMAT.WOKEN, b.wake, b.plan or 0) .. concat(b.ended or {})) end
  return reply
end
