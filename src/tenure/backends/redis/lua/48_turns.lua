-- ── claims by turns: the groups of one priority, the least served first ──────────────────────────────────────────────

-- A heap of members, by virtual time; at equal times, those that the claim has not served yet come first.
function L.before(x, y)
  if x.time ~= y.time then return x.time < y.time end
  return x.order < y.order
end

function L.push(heap, member)
  local at = #heap + 1
  while at > 1 do
    local above = floor(at / 2)
    if not L.before(member, heap[above]) then break end
    heap[at], at = heap[above], above
  end
  heap[at] = member
end

function L.pop(heap)
  local first, last = heap[1], table.remove(heap)
  local size, at = #heap, 1
  if size == 0 then return first end
  while 2 * at <= size do
    local below = 2 * at
    if below < size and L.before(heap[below + 1], heap[below]) then below = below + 1 end
    if not L.before(heap[below], last) then break end
    heap[at], at = heap[below], below
  end
  heap[at] = last
  return first
end

function L.member(b, priority, name, time, order)
  local rules, room = L.group_rules(b, name), LIMIT.WAKE_ALL
  if rules.max_leased > 0 or rules.burst > 0 then
    local g = L.group_of(b.base, name)
    room = g and L.group_room(b, rules, g) or g == nil and room or 0
  end
  local key = name == '' and b.base .. ':t' .. priority or L.group_key(b, priority, name)
  return {name = name, key = key, start = time, time = time, order = order, step = 1 / rules.weight, room = room, ids = {},
    picked = 0, taken = 0, fetch = 1}
end

-- The next ready job of a member; nil if it has none, or no room for one more.
function L.next_of(b, m)
  if m.picked >= m.room then return nil end
  if m.picked == #m.ids and m.fetch > 0 then
    local found = call('ZRANGEBYSCORE', m.key, '-inf', b.now, 'LIMIT', #m.ids, m.fetch)
    for _, id in ipairs(found) do m.ids[#m.ids + 1] = id end
    m.fetch = #found == m.fetch and min(2 * m.fetch, LIMIT.GROUP_PAGE) or 0
  end
  return m.ids[m.picked + 1]
end

-- Select jobs in turn: returns the members read, and the order of the picks.
function L.turns(b, t, priority, wanted)
  local turn = b.base .. ':turn' .. priority
  local page, place, from, step = {}, 1, 0, 2
  local function coming()
    if place > #page and step > 0 then
      page, place, from = call('ZRANGE', turn, from, from + step - 1, 'WITHSCORES'), 1, from + step
      step = #page == 2 * step and LIMIT.GROUP_PAGE or 0
    end
    if page[place] then return page[place], tonumber(page[place + 1]) end
  end
  local heap, members, picks, seen = {}, {}, {}, 0
  local function join(name, time, order)
    local m = L.member(b, priority, name, time, order)
    members[#members + 1] = m
    L.push(heap, m)
  end
  local _, first = coming()
  if L.has(b.tiers, 2 ^ priority) and not call('ZSCORE', turn, '')
    and #call('ZRANGEBYSCORE', b.base .. ':t' .. priority, '-inf', b.now, 'LIMIT', 0, 1) > 0 then
    join('', (first or 0) + 1, -1)
  end
  while #picks < wanted and t.inspect > 0 do
    local name, time = coming()
    -- At equal virtual times, one that was not served yet waits for no other: there may be thousands.
    while name and (#heap == 0 or time < heap[1].time or (time == heap[1].time and heap[1].order > LIMIT.WAKE_ALL)) do
      place, seen = place + 2, seen + 1
      join(name, time, seen)
      name, time = coming()
    end
    local m = L.pop(heap)
    if not m then break end
    local id = L.next_of(b, m)
    if id then
      m.picked, m.time = m.picked + 1, m.time + m.step
      picks[#picks + 1] = {m, id}
      m.order = LIMIT.WAKE_ALL + #picks
      L.push(heap, m)
    elseif m.picked == 0 then
      t.inspect = t.inspect - 1
    end
  end
  return members, picks
end

-- Claim the picked jobs; false: `max_bytes` or t.inspect is reached.
function L.take_picks(b, t, priority, members, picks)
  local function take(m, ids)
    local before = #t.ids
    local on = L.take_tier(b, t, priority, ids, L.hmget(b.base .. ':state', ids), m.name ~= '' and m.name)
    m.taken = m.taken + #t.ids - before
    return on
  end
  if t.max_bytes > 0 then -- in turn, one by one: the claim may end at any of them
    for _, pick in ipairs(picks) do
      if not take(pick[1], {pick[2]}) then return false end
    end
    return true
  end
  for _, m in ipairs(members) do
    while #m.ids > m.picked do table.remove(m.ids) end
    if m.picked > 0 and not take(m, m.ids) then return false end
  end
  return true
end

-- Update the places of the members.
function L.settle_places(b, priority, members)
  for _, m in ipairs(members) do
    local left = tonumber(call('ZRANGE', m.key, 0, 0, 'WITHSCORES')[2] or -1)
    local time = m.start + m.taken * m.step
    if m.name ~= '' then
      local c = L.group_change(b, m.name)
      c.taken, c.served = m.taken, {priority = priority, time = time, left = left >= 0 and left or nil}
    elseif left >= 0 and left <= b.now then
      call('ZADD', b.base .. ':turn' .. priority, time, '')
    else
      call('ZREM', b.base .. ':turn' .. priority, '')
    end
  end
  L.flush_groups(b)
end

-- Claim the first jobs of a priority with groups; false: the claim must stop.
function L.pick_by_turns(b, t, priority, limit)
  while #t.ids < limit do
    local wanted = min(limit - #t.ids, LIMIT.TURNS_AT_ONCE)
    local members, picks = L.turns(b, t, priority, wanted)
    local on = L.take_picks(b, t, priority, members, picks)
    L.settle_places(b, priority, members)
    if not on or t.inspect <= 0 then return false end
    if #picks < wanted then break end
  end
  if call('EXISTS', b.base .. ':t' .. (priority + LIMIT.PRIORITIES)) == 0 then
    b.tiers = b.tiers - 2 ^ (priority + LIMIT.PRIORITIES)
  end
  return true
end
