-- ── flows: jobs that wait for jobs of the same shard, as in queueing/flows.py ────────────────────────────────────────
-- A job with parents lists them in :parents, and each parent lists it in :children. While a parent has not ended, the
-- job is in :blocked, and :waits counts the open parents. The step that ends the last parent makes the job ready.

function L.waits_row(id, open, policy)
  local row = pack(FORMAT.WAITS, open, policy)
  return row .. L.seal(id, row)
end

-- nil: none; false: damaged
function L.waits_of(b, id)
  local value = call('HGET', b.base .. ':waits', id)
  if not value then return nil end
  local row = sub(value, 1, -SEAL - 1)
  if #row ~= BYTES.WAITS or L.seal(id, row) ~= sub(value, -SEAL) then return false end
  local open, policy = unpack_(FORMAT.WAITS, row)
  return {open = open, policy = policy}
end

-- ── enqueue ──

-- A parent as encoded in a request: an id, or twelve zeros and the index of a job of the same call.
local NO_PREFIX = sub(NO_ID, 1, 12)

-- Check the links of a call (FORMAT.LINKS and the parents, for each job that has any) against the stored jobs. Writes
-- nothing. `first`: duplicates by index, as L.enqueue finds them; `settled`: a job that the same step acks, or nil.
-- Returns a refusal; or nil and the plan: for each job its parents and how many of them are open.
function L.plan_links(b, links, first, id_of, settled)
  local plan = {jobs = {}, here = {}, children = {}, stored = {}, blocked = 0}
  local at = 1
  while at <= #links do
    local index, policy, count = unpack_(FORMAT.LINKS, links, at)
    at = at + BYTES.LINKS
    if not first[index] then -- a duplicate keeps the parents of its first enqueue
      local no, link = L.plan_job(b, plan, sub(links, at, at + 16 * count - 1), policy, first, id_of, settled)
      if no then return no end
      link.id = id_of(index)
      plan.jobs[index] = link
      if link.open > 0 then plan.blocked = plan.blocked + 1 end
      for _, parent in ipairs(link.told_by) do
        local children = plan.children[parent]
        if not children then children = {} plan.children[parent] = children end
        children[#children + 1] = link.id
      end
    end
    at = at + 16 * count
  end
  return nil, plan
end

function L.plan_job(b, plan, named, policy, first, id_of, settled)
  local link, seen = {policy = policy, open = 0, parents = {}, told_by = {}}, {}
  for _, given in ipairs(L.split(named)) do
    local id, state = given, nil
    if sub(given, 1, 12) == NO_PREFIX then
      local _, index = unpack_(FORMAT.PARENT_HERE, given)
      local there = first[index]
      if type(there) == 'number' then index, there = there, nil end -- an earlier job of this call has its key
      id = there or id_of(index)
      if not there then
        plan.here[index] = true
        state = WAITING
      end
    end
    if not seen[id] then
      seen[id] = true
      if not state then
        local s, no = L.stored_parent(b, plan, id)
        if not s then return no end
        state = id == settled and DONE or s.state
      end
      local dead = state == DEAD
      if dead and policy == ON_PARENT_DEAD.CANCEL then return {'E', 'dead', id} end
      link.parents[#link.parents + 1] = id
      -- A dead parent that counts as ended counts now: if it is done after a replay, it must not count again.
      if not (dead and policy == ON_PARENT_DEAD.RUN) then link.told_by[#link.told_by + 1] = id end
      if (not dead and state ~= DONE) or (dead and policy == ON_PARENT_DEAD.WAIT) then link.open = link.open + 1 end
    end
  end
  return nil, link
end

function L.stored_parent(b, plan, id)
  local s = plan.stored[id]
  if s then return s end
  local value = call('HGET', b.base .. ':state', id)
  if not value then return nil, {'E', 'parent', id} end
  s = L.state_of(id, value)
  if not s then return nil, {'E', 'corrupt', id, 'its state is damaged'} end
  plan.stored[id] = s
  return s
end

-- The flags of a new job of the call.
function L.linked_flags(plan, index, flags)
  if plan.jobs[index] then flags = flags + HAS_PARENTS end
  return plan.here[index] and flags + HAS_CHILDREN or flags
end

function L.write_links(b, plan, settled)
  local base, parents, children, waits, blocked = b.base, {}, {}, {}, {}
  for _, link in pairs(plan.jobs) do
    parents[#parents + 1], parents[#parents + 2] = link.id, concat(link.parents)
    if link.open > 0 then
      waits[#waits + 1], waits[#waits + 2] = link.id, L.waits_row(link.id, link.open, link.policy)
      blocked[#blocked + 1], blocked[#blocked + 2] = 0, link.id
    end
  end
  for parent, ids in pairs(plan.children) do
    local before = plan.stored[parent] and call('HGET', base .. ':children', parent) or ''
    children[#children + 1], children[#children + 2] = parent, before .. concat(ids)
  end
  L.bulk('HSET', base .. ':parents', parents)
  L.bulk('HSET', base .. ':children', children)
  L.bulk('HSET', base .. ':waits', waits)
  L.bulk('ZADD', base .. ':blocked', blocked)
  for id, s in pairs(plan.stored) do
    if id ~= settled and not L.has(s.flags, HAS_CHILDREN) then -- settling writes the state of a settled job
      s.flags = s.flags + HAS_CHILDREN
      L.put_state(b, id, s)
    end
  end
end

-- as enqueue, and last the links
verbs.enqueue_flow = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local no, prefix, there = L.enqueue(b, args, {links = args[#args]})
  if no then return no end
  return L.finish(b, {prefix, there})
end

-- ── the end of a parent ──

-- Record that a job ended or is removed: `outcome` is DONE, DEAD, GONE, or nil for one that was done before. `gone`:
-- not kept.
function L.parent_ended(b, id, outcome, gone)
  b.parents_ended = b.parents_ended or {}
  insert(b.parents_ended, {id = id, outcome = outcome, gone = gone})
end

-- Notify the children of the jobs that have ended in this step so far: at its end, and before it reads other jobs. A
-- removed child ends its own children in turn.
function L.end_parents(b)
  local ends, waits, at = b.parents_ended, {}, 1
  if not ends then return end
  while at <= #ends do
    local to, ids = #ends, {}
    for i = at, to do ids[#ids + 1] = ends[i].id end
    local rows = L.hmget(b.base .. ':children', ids)
    for i = at, to do
      if rows[i - at + 1] then L.end_parent(b, ends[i], rows[i - at + 1], waits) end
    end
    at = to + 1
  end
  b.parents_ended = nil
  for child, w in pairs(waits) do
    if w and w.open > 0 then
      call('HSET', b.base .. ':waits', child, L.waits_row(child, w.open, w.policy))
    elseif w then
      L.unblock(b, child)
    end
  end
end

function L.end_parent(b, parent, children, waits)
  local outcome, kept, dropped = parent.outcome, {}, false
  for _, child in ipairs(L.split(children)) do
    if outcome and waits[child] == nil then waits[child] = L.waits_of(b, child) or false end
    local w, keep = outcome and waits[child], true
    if w then
      if outcome == DONE or w.policy == ON_PARENT_DEAD.RUN then
        w.open = w.open - 1
        keep = outcome ~= DEAD -- it counts now; if it is done after a replay, it must not count again
      elseif outcome == GONE or w.policy == ON_PARENT_DEAD.CANCEL then
        waits[child] = false
        L.cancel_blocked(b, child)
      end
    end
    if keep then kept[#kept + 1] = child else dropped = true end
  end
  if parent.gone or #kept == 0 then
    call('HDEL', b.base .. ':children', parent.id)
  elseif dropped then
    call('HSET', b.base .. ':children', parent.id, concat(kept))
  end
end

function L.blocked_state(b, id)
  local value = call('HGET', b.base .. ':state', id)
  local s = value and L.state_of(id, value)
  return s and s.state == BLOCKED and s or nil
end

function L.cancel_blocked(b, id)
  local s = L.blocked_state(b, id)
  if s then L.remove_waiting(b, id, s, CHANGE.CANCELLED) end
end

function L.leave_blocked(b, id)
  call('ZREM', b.base .. ':blocked', id)
  call('HDEL', b.base .. ':waits', id)
end

-- From blocked to waiting: ready now, or at its scheduled time, if that is later.
function L.unblock(b, id)
  local s = L.blocked_state(b, id)
  if not s then return end
  L.leave_blocked(b, id)
  s.state, s.visible = WAITING, max(b.now, s.visible)
  s.last = L.event(b, CHANGE.UNBLOCKED, id, s, {at = s.visible})
  L.put_state(b, id, s)
  L.wait_again(b, id, s)
end

-- ── queries ──

-- Whether a done job past its retention stays, because a child that may read its result has not ended.
function L.keep_for_children(b, id, s)
  for _, child in ipairs(L.split(call('HGET', b.base .. ':children', id) or '')) do
    local value = call('HGET', b.base .. ':state', child)
    local c = value and L.state_of(child, value)
    if value and not (c and c.state == DONE) then
      s.due = b.now + LIMIT.KEPT_FOR_CHILDREN_MS
      L.put_state(b, id, s)
      call('ZADD', b.base .. ':retention', s.due, id)
      return true
    end
  end
  return false
end

-- job, the first parent's position, how many parents, about how many bytes: the time; for each parent id, state, error,
-- result
readers.parents = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local raw, begin = call('HGET', b.base .. ':parents', args[4]) or '', tonumber(args[5])
  local ids = L.split(sub(raw, 16 * begin + 1, 16 * (begin + tonumber(args[6]))))
  local reply, bytes = {b.now}, 0
  for _, id in ipairs(ids) do
    local n, value = #reply, call('HGET', b.base .. ':state', id)
    local notes = value and call('HMGET', b.base .. ':notes', id .. 'e', id .. 'r') or {}
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, value or '', notes[1] or false, notes[2] or false
    bytes = bytes + #(notes[2] or '')
    if bytes >= tonumber(args[7]) then break end
  end
  return reply
end

-- job, how many: the time; for each child id and state
readers.children = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local ids = L.split(sub(call('HGET', b.base .. ':children', args[4]) or '', 1, 16 * tonumber(args[5])))
  local reply = {b.now}
  for _, id in ipairs(ids) do
    local n = #reply
    reply[n + 1], reply[n + 2] = id, call('HGET', b.base .. ':state', id) or ''
  end
  return reply
end

-- ── check ──

-- Recount a job's open parents. One whose state cannot be read counts as open.
function L.open_parents(b, id)
  local open = 0
  for _, parent in ipairs(L.split(call('HGET', b.base .. ':parents', id) or '')) do
    for _, child in ipairs(L.split(call('HGET', b.base .. ':children', parent) or '')) do
      local value = child == id and call('HGET', b.base .. ':state', parent)
      local s = value and L.state_of(parent, value)
      if value and not (s and s.state == DONE) then open = open + 1 end
    end
  end
  return open
end

-- Add what is wrong with the links of a job to the findings.
function L.link_problems(b, id, s, found)
  local w = L.waits_of(b, id)
  if s.state == BLOCKED then
    if not w or w.open ~= L.open_parents(b, id) then found[#found + 1] = 'waits' end
  elseif w ~= nil then
    found[#found + 1] = 'waits'
  end
  local above = call('HEXISTS', b.base .. ':parents', id) == 1
  local below = call('HEXISTS', b.base .. ':children', id) == 1
  if above ~= L.has(s.flags, HAS_PARENTS) or (below and not L.has(s.flags, HAS_CHILDREN)) then
    found[#found + 1] = 'flags'
  end
end

-- The flags that a job should have, by its rows.
function L.flags_of_links(b, id)
  return (call('HEXISTS', b.base .. ':parents', id) == 1 and HAS_PARENTS or 0)
    + (call('HEXISTS', b.base .. ':children', id) == 1 and HAS_CHILDREN or 0)
    + (call('HEXISTS', b.base .. ':steps', id) == 1 and HAS_STEPS or 0)
end

-- Correct a job's flags and its count of open parents; one without open parents becomes ready.
function L.repair_links(b, id, s)
  local flags = s.flags % HAS_CHILDREN + L.flags_of_links(b, id)
  if flags ~= s.flags then
    s.flags = flags
    L.put_state(b, id, s)
  end
  if s.state ~= BLOCKED then
    call('HDEL', b.base .. ':waits', id)
    return
  end
  local open, w = L.open_parents(b, id), L.waits_of(b, id)
  if open == 0 then return L.unblock(b, id) end
  call('HSET', b.base .. ':waits', id, L.waits_row(id, open, w and w.policy or ON_PARENT_DEAD.CANCEL))
end
