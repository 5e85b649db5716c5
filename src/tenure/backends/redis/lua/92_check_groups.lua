-- ── the invariants of groups, and their repair ───────────────────────────────────────────────────────────────────────

-- Whether a job's group differs from its body's, or its row there is missing or at another time.
function L.wrong_group(b, id, s, aside)
  local name = L.group_name(b, id)
  if not L.has(s.flags, HAS_GROUP) then return name end
  if name ~= L.group_in(call('HGET', b.base .. ':jobs', id) or '') then return true end
  local score = name and call('ZSCORE', L.group_key(b, s.priority, name), id)
  local right = s.state == WAITING and not aside and s.visible or -1
  return tonumber(score or -1) ~= right
end

function L.waiting_of_group(b, name)
  local waiting, priorities = 0, {}
  for priority = 0, LIMIT.TOP_PRIORITY do
    local count = call('ZCARD', L.group_key(b, priority, name))
    if count > 0 then priorities[#priorities + 1] = priority end
    waiting = waiting + count
  end
  return waiting, priorities
end

-- What is wrong with a group, or nil. Its places (turn, parked, at a limit) are checked by priority.
function L.wrong_with_group(b, name, g)
  if not g then return 'damaged' end
  if not call('ZSCORE', b.base .. ':groups', name) then return 'name' end
  local waiting, priorities = L.waiting_of_group(b, name)
  if waiting ~= g.waiting then return 'waiting' end
  for _, priority in ipairs(priorities) do
    if not (call('ZSCORE', b.base .. ':turn' .. priority, name) or L.has(g.at_limit, 2 ^ priority)
      or call('ZSCORE', b.base .. ':parked', char(priority) .. name)) then
      return 'turn'
    end
  end
  return nil
end

-- cursor: (next cursor, then for each group its name, how many are leased, what is wrong or '')
readers.check_groups = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local page = call('HSCAN', b.base .. ':group', args[4], 'COUNT', 200)
  local reply = {page[1]}
  for i = 1, #page[2], 2 do
    local name, n = page[2][i], #reply
    local g = L.group_of(b.base, name)
    reply[n + 1], reply[n + 2], reply[n + 3] = name, g and g.leased or 0, L.wrong_with_group(b, name, g) or ''
  end
  return reply
end

-- cursor: (next cursor, then names in :groups without any other row)
readers.check_group_names = function(keys, args)
  local page = call('ZSCAN', keys[1] .. ':groups', args[4], 'COUNT', 500)
  local reply = {page[1]}
  for i = 1, #page[2], 2 do
    if call('HEXISTS', keys[1] .. ':group', page[2][i]) == 0 then reply[#reply + 1] = page[2][i] end
  end
  return reply
end

-- Remove a job from the rows of its group, whatever its priority was.
function L.unindex_group(b, id)
  local name = L.group_name(b, id)
  if not name then return end
  for priority = 0, LIMIT.TOP_PRIORITY do call('ZREM', L.group_key(b, priority, name), id) end
end

-- A job's group, by its body.
function L.join_group_again(b, id, s)
  local body = call('HGET', b.base .. ':jobs', id)
  L.unindex_group(b, id)
  call('HDEL', b.base .. ':groupof', id)
  if body and L.group_in(body) then
    s.flags = L.with(s.flags, HAS_GROUP)
    L.join_group(b, id, s, body)
  elseif L.has(s.flags, HAS_GROUP) then
    s.flags = s.flags - HAS_GROUP
  end
  L.put_state(b, id, s)
end

-- Count the groups again, and give a turn to each that has jobs: the next claim that finds one without any removes it.
function L.recount_groups(b)
  b.changed = nil
  local leased, names = {}, {}
  for _, lease in ipairs(call('HKEYS', b.base .. ':held')) do
    for _, job in ipairs((L.held(b, lease))) do
      local name = L.has(job[2].flags, HAS_GROUP) and L.group_name(b, job[1])
      if name then leased[name] = (leased[name] or 0) + 1 end
    end
  end
  for name in pairs(leased) do names[name] = true end
  for _, name in ipairs(call('HKEYS', b.base .. ':group')) do names[name] = true end
  for _, name in ipairs(call('HVALS', b.base .. ':groupof')) do names[name] = true end
  call('DEL', b.base .. ':groups')
  for name in pairs(names) do
    local g = L.group_of(b.base, name) or {moment = 0, ns = 0}
    local waiting, priorities = L.waiting_of_group(b, name)
    g.waiting, g.leased, g.at_limit = waiting, leased[name] or 0, 0
    call('HDEL', b.base .. ':group', name)
    L.save_group(b, name, g, true)
    local c = L.group_change(b, name)
    for _, priority in ipairs(priorities) do c.offers[priority] = b.now end
  end
  L.flush_groups(b)
end
