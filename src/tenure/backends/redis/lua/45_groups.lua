-- ── groups: the groups of one priority take turns, and each has its own limits ───────────────────────────────────────
--
-- A group with a ready job of a priority, and below its limits, has a place in :turn<priority>, ordered by virtual
-- time: the jobs it was given, divided by its weight. The group with the least is next. A group whose next job is ready
-- later is in :parked. A group at its limit has a bit for each priority in its row (at_limit), and gets its places back
-- when one of its jobs is settled. The jobs without a group are one more member, with the name ''; only claims give it
-- a place.
--
-- Verbs note their changes (L.wait, L.unwait, L.let_go); L.flush_groups writes them, once for each group and call.

-- waiting leased at_limit; its rate's bucket: a time, and the nanoseconds after it until the bucket is full
L.GROUP_ROW = '>I8I8I4I8d'
L.GROUP_BYTES = 36
-- The fraction of a job by which an arriving group comes before groups that are served again at the same virtual time.
L.SOONER = 1e-6
-- Used instead of a priority in :parked: delete the row of an idle group; revise the groups after this name.
L.FORGET, L.REVISE = LIMIT.FORGET_GROUP, LIMIT.REVISE_GROUPS

-- The tier (:t0 .. :t19) of a waiting job.
function L.tier(s) return L.has(s.flags, HAS_GROUP) and s.priority + LIMIT.PRIORITIES or s.priority end

function L.has_groups(b) return b.tiers >= 2 ^ LIMIT.PRIORITIES end
function L.group_key(b, priority, name) return b.base .. ':g' .. priority .. ':' .. name end
function L.group_name(b, id) return call('HGET', b.base .. ':groupof', id) end

-- The group's name in a body of version 2: after the key and a zero byte.
function L.group_in(body)
  if byte(body) ~= LIMIT.GROUP_BODY then return nil end
  local _, key = unpack_(FORMAT.BODY, body)
  return string.match(sub(body, BYTES.BODY + 1, BYTES.BODY + key), '%z([^%z]+)$')
end

-- ── changes that verbs note ──

function L.group_change(b, name)
  b.changed = b.changed or {}
  local c = b.changed[name]
  if not c then
    c = {waiting = 0, leased = 0, taken = 0, offers = {}}
    b.changed[name] = c
  end
  return c
end

-- Add the row of a waiting job that has a group, and note when its group has it to give.
function L.group_waits(b, name, id, priority, visible)
  local c = L.group_change(b, name)
  c.waiting = c.waiting + call('ZADD', L.group_key(b, priority, name), visible, id)
  c.offers[priority] = min(c.offers[priority] or visible, visible)
end

-- Add a waiting job to the indexes of its priority and of its group.
function L.wait(b, id, s)
  local tier = L.tier(s)
  call('ZADD', b.base .. ':t' .. tier, s.visible, id)
  b.tiers = L.with(b.tiers, 2 ^ tier)
  L.has_work(b, s.visible)
  if tier ~= s.priority then
    local name = L.group_name(b, id)
    if name then L.group_waits(b, name, id, s.priority, s.visible) end
  end
end

-- Remove a job from the indexes of waiting jobs.
function L.unwait(b, id, s)
  local tier = L.tier(s)
  call('ZREM', b.base .. ':t' .. tier, id)
  if tier ~= s.priority then
    local name = L.group_name(b, id)
    if name then
      local c = L.group_change(b, name)
      c.waiting = c.waiting - call('ZREM', L.group_key(b, s.priority, name), id)
    end
  end
end

-- Note that a job of a group is no longer leased.
function L.let_go(b, id, s)
  b.leased = b.leased - 1
  if L.has(s.flags, HAS_GROUP) then
    local name = L.group_name(b, id)
    if name then
      local c = L.group_change(b, name)
      c.leased = c.leased - 1
    end
  end
end

-- Store a new job's group, from its body; nil: it has none.
function L.join_group(b, id, s, body)
  if not L.has(s.flags, HAS_GROUP) then return nil end
  local name = L.group_in(body)
  call('HSET', b.base .. ':groupof', id, name)
  return name
end

-- Delete the group of a removed job.
function L.leave_group(b, id, s)
  if L.has(s.flags, HAS_GROUP) then call('HDEL', b.base .. ':groupof', id) end
end

-- ── the row of a group ──

-- A group's row; nil: there is none; false: it is damaged.
function L.group_of(base, name)
  local value = call('HGET', base .. ':group', name)
  if not value then return nil end
  local row = sub(value, 1, -SEAL - 1)
  if #row ~= L.GROUP_BYTES or L.seal(name, row) ~= sub(value, -SEAL) then return false end
  local waiting, leased, at_limit, moment, ns = unpack_(L.GROUP_ROW, row)
  return {waiting = waiting, leased = leased, at_limit = at_limit, moment = moment, ns = ns}
end

-- A group's policy: max_leased and burst (0: no limit), the rate's interval, its weight.
function L.group_rules(b, name)
  b.group_rules = b.group_rules or {}
  local rules = b.group_rules[name]
  if not rules then
    local found = name == '' and {} or call('HMGET', b.base .. ':grouprules', name, '')
    local raw = found[1] or found[2]
    rules = {max_leased = 0, burst = 0, interval = 0, weight = 1}
    if raw then rules.max_leased, rules.burst, rules.interval, rules.weight = unpack_(FORMAT.GROUP_RULES, raw) end
    b.group_rules[name] = rules
  end
  return rules
end

-- The nanoseconds until a group's bucket is full.
function L.group_taken_ns(b, g) return max(0, (g.moment - b.now) * 1e6 + g.ns) end

-- How many of a group's jobs may be claimed now.
function L.group_room(b, rules, g)
  local room = LIMIT.WAKE_ALL
  if rules.max_leased > 0 then room = rules.max_leased - g.leased end
  if rules.burst > 0 then
    room = min(room, floor((rules.burst * rules.interval - L.group_taken_ns(b, g)) / rules.interval))
  end
  return max(room, 0)
end

-- Write a group's row. An idle group has none, except until its bucket is full.
function L.save_group(b, name, g, new)
  local left = L.group_taken_ns(b, g)
  if g.waiting + g.leased == 0 and left == 0 then
    if not new then
      call('HDEL', b.base .. ':group', name)
      call('ZREM', b.base .. ':groups', name)
    end
    return
  end
  if g.waiting + g.leased == 0 then
    g.at_limit = 0
    call('ZADD', b.base .. ':parked', b.now + ceil(left / 1e6), char(L.FORGET) .. name)
  end
  local row = pack(L.GROUP_ROW, g.waiting, g.leased, g.at_limit, g.moment, g.ns)
  call('HSET', b.base .. ':group', name, row .. L.seal(name, row))
  if new then call('ZADD', b.base .. ':groups', 0, name) end
end

-- ── places in turn ──

-- The virtual time of the next member. All members that arrive in one call are placed after the same one.
function L.turn_time(b, priority)
  b.times = b.times or {}
  local time = b.times[priority]
  if not time then
    time = tonumber(call('ZRANGE', b.base .. ':turn' .. priority, 0, 0, 'WITHSCORES')[2] or 0)
    b.times[priority] = time
  end
  return time
end

-- The virtual time of an arriving member: after the next turn of each other member and before their second. So no
-- member saves up turns, and one that always has a single job is served as often as the others.
function L.give_turn(b, priority, name, rules)
  local time = L.turn_time(b, priority) + (1 - L.SOONER) / rules.weight
  call('ZREM', b.base .. ':parked', char(priority) .. name)
  call('ZADD', b.base .. ':turn' .. priority, time, name)
end

-- Place a group that has a job of that priority from `at` on.
function L.offer(b, g, priority, name, at, rules, room)
  if call('ZSCORE', b.base .. ':turn' .. priority, name) then return end
  local parked, member = b.base .. ':parked', char(priority) .. name
  local score = call('ZSCORE', parked, member)
  if not room then
    if not score then g.at_limit = L.with(g.at_limit, 2 ^ priority) end
  elseif at <= b.now then
    L.give_turn(b, priority, name, rules)
  elseif not score or at < tonumber(score) then
    call('ZADD', parked, at, member)
  end
end

-- Update the place of a group that a claim served; c.served: priority, virtual time, when its next job is ready or nil.
function L.place_again(b, g, name, served, rules, room, opens)
  local turn, at = b.base .. ':turn' .. served.priority, served.left and max(served.left, opens)
  if at and room and at <= b.now then return call('ZADD', turn, served.time, name) end
  call('ZREM', turn, name)
  if at and not room then
    g.at_limit = L.with(g.at_limit, 2 ^ served.priority)
  elseif at then
    call('ZADD', b.base .. ':parked', at, char(served.priority) .. name)
  end
end

function L.flush_group(b, name, c, found)
  local g = found or {waiting = 0, leased = 0, at_limit = 0, moment = 0, ns = 0}
  local rules, opens = L.group_rules(b, name), 0
  g.waiting, g.leased = max(0, g.waiting + c.waiting), max(0, g.leased + c.leased)
  local room = rules.max_leased == 0 or g.leased < rules.max_leased
  if room and g.at_limit > 0 and (c.leased < 0 or c.revised) then
    for priority = 0, LIMIT.TOP_PRIORITY do
      if L.has(g.at_limit, 2 ^ priority) then c.offers[priority] = b.now end
    end
    g.at_limit = 0
    b.wake = b.wake + 1
    L.has_work(b, b.now)
  end
  if rules.burst > 0 then
    if c.taken > 0 then g.ns, g.moment = L.group_taken_ns(b, g) + c.taken * rules.interval, b.now end
    local wait = ceil((L.group_taken_ns(b, g) - (rules.burst - 1) * rules.interval) / 1e6)
    if wait > 0 then opens = b.now + wait end
  end
  if c.served then L.place_again(b, g, name, c.served, rules, room, opens) end
  for priority, at in pairs(c.offers) do L.offer(b, g, priority, name, max(at, opens), rules, room) end
  L.save_group(b, name, g, not found)
end

-- Write this call's changes of groups. A group whose row is damaged is not written, and claims take none of its jobs,
-- until it is repaired: the number of its leased jobs is unknown.
function L.flush_groups(b)
  local changed = b.changed
  if not changed then return end
  b.changed, b.times = nil, nil
  for name, c in pairs(changed) do
    local g = L.group_of(b.base, name)
    if g ~= false then
      L.flush_group(b, name, c, g)
    elseif c.served then
      call('ZREM', b.base .. ':turn' .. c.served.priority, name)
    end
  end
end

-- ── time and policies ──

-- Move parked groups whose time has come to the turns, at most `most` of them.
-- Returns whether there are more, and whether groups have to be revised after a change of the policy.
function L.bring_back(b, most)
  local due = call('ZRANGEBYSCORE', b.base .. ':parked', '-inf', b.now, 'LIMIT', 0, most)
  local more, revising = #due == most, false
  b.times = nil
  for _, member in ipairs(due) do
    local priority, name = byte(member), sub(member, 2)
    call('ZREM', b.base .. ':parked', member)
    if priority == L.FORGET then
      local g = L.group_of(b.base, name)
      if g and g.waiting + g.leased == 0 then L.save_group(b, name, g, false) end
    elseif priority == L.REVISE then
      revising = L.revise_groups(b, name, most)
    elseif not call('ZSCORE', b.base .. ':turn' .. priority, name) then
      L.give_turn(b, priority, name, L.group_rules(b, name))
    end
  end
  return more or revising, revising
end

-- Whether a group has a job of any priority; not for the jobs without a group.
function L.group_has_turn(b)
  for priority = 0, LIMIT.TOP_PRIORITY do
    if L.has(b.tiers, 2 ^ (priority + LIMIT.PRIORITIES)) then
      for _, name in ipairs(call('ZRANGE', b.base .. ':turn' .. priority, 0, 1)) do
        if name ~= '' then return true end
      end
    end
  end
  return false
end

-- After a change of the policy: groups after this name that were at a limit get their places back, and the next claim
-- removes the place of a group that is still at its limit. Buckets depend on the old rate: they start full. What a group
-- was given by a lower weight counts as one job of now.
function L.revise_groups(b, name, most)
  local names = call('ZRANGEBYLEX', b.base .. ':groups', '(' .. name, '+', 'LIMIT', 0, most)
  for _, found in ipairs(names) do
    local g = L.group_of(b.base, found)
    if g then
      L.revise_places(b, found, g.moment > 0)
      if g.at_limit > 0 or g.moment > 0 then
        g.moment, g.ns = 0, 0
        L.save_group(b, found, g, false)
        L.group_change(b, found).revised = true
      end
    end
  end
  if #names < most then return false end
  call('ZADD', b.base .. ':parked', 0, char(L.REVISE) .. names[#names])
  return true
end

-- Bring a group's places forward. `rated`: it may be parked because of its rate.
function L.revise_places(b, name, rated)
  local rules = L.group_rules(b, name)
  for priority = 0, LIMIT.TOP_PRIORITY do
    if L.has(b.tiers, 2 ^ (priority + LIMIT.PRIORITIES)) then
      local time = call('ZSCORE', b.base .. ':turn' .. priority, name)
      local late = time and tonumber(time) > L.turn_time(b, priority) + (1 - L.SOONER) / rules.weight
      if late or rated and call('ZSCORE', b.base .. ':parked', char(priority) .. name) then
        L.give_turn(b, priority, name, rules)
      end
    end
  end
end

-- Arguments from args[from] on: pairs of a group's name ('': all others) and its rules (FORMAT.GROUP_RULES).
function L.set_group_rules(b, args, from)
  call('DEL', b.base .. ':grouprules')
  for at = from, #args, 2 do call('HSET', b.base .. ':grouprules', args[at], args[at + 1]) end
  if call('EXISTS', b.base .. ':groups') == 1 then
    call('ZADD', b.base .. ':parked', 0, char(L.REVISE))
    b.wake = LIMIT.WAKE_ALL
    L.lift(b)
  end
end

function L.delete_groups(b)
  for _, name in ipairs({'group', 'groups', 'groupof', 'grouprules', 'parked'}) do call('DEL', b.base .. ':' .. name) end
  for priority = 0, LIMIT.TOP_PRIORITY do call('DEL', b.base .. ':turn' .. priority) end
  b.tiers = b.tiers % 2 ^ LIMIT.PRIORITIES
end

-- ── queries ──

-- When a group's oldest ready job became ready, or -1.
function L.oldest_of_group(b, name)
  local oldest = -1
  for priority = 0, LIMIT.TOP_PRIORITY do
    if L.has(b.tiers, 2 ^ (priority + LIMIT.PRIORITIES)) then
      local at = tonumber(call('ZRANGE', L.group_key(b, priority, name), 0, 0, 'WITHSCORES')[2] or -1)
      if at >= 0 and at <= b.now and (oldest < 0 or at < oldest) then oldest = at end
    end
  end
  return oldest
end

-- Arguments: the last name or '', limit. Returns for each group: name, waiting, leased, oldest ready time, at limit.
readers.groups = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local reply = {}
  for _, name in ipairs(call('ZRANGEBYLEX', b.base .. ':groups', '(' .. args[4], '+', 'LIMIT', 0, args[5])) do
    local g = L.group_of(b.base, name)
    if not g then return {'E', 'corrupt', '', 'the row of group ' .. name .. ' is damaged: run check with repair'} end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = name, g.waiting, g.leased
    reply[n + 4], reply[n + 5] = L.oldest_of_group(b, name), g.at_limit > 0 and 1 or 0
  end
  return reply
end
