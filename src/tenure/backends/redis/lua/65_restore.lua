-- ── restore: jobs as they were in another store, or in an archive ────────────────────────────────────────────────────

-- Decide which of the new jobs hold their key; those that must and cannot are refused. Jobs that have not ended come
-- first.
function L.restored_keys(b, new, refused)
  local held, taken = {}, {}
  for pass = 1, 2 do
    for _, job in ipairs(new) do
      local waits = job.s.state == WAITING or job.s.state == BLOCKED
      if job.keyed ~= '' and waits == (pass == 1) then
        local digest = sub(job.keyed, 1, 16)
        local holder = taken[digest] or L.holder(b, digest, call('HGET', b.base .. ':dedup', digest))
        if not holder or holder == job.id then
          taken[digest] = job.id
          held[#held + 1] = job
        elseif waits and job.s.replays == 0 then
          refused[job.id] = 'k' .. holder
        end
      end
    end
  end
  return held
end

-- ── parents, as in queueing/restored_links.py ──

function L.restored_parents(packed)
  local found = {}
  for at = 2, #packed, BYTES.RESTORED_PARENT do
    local id, ended = unpack_(FORMAT.RESTORED_PARENT, packed, at)
    found[#found + 1] = {id = id, ended = ended == 1}
  end
  return found, byte(packed, 1) or 0
end

-- The state of a parent: of the same call, or stored. nil if it does not exist
function L.restored_parent(b, plan, refused, id)
  local job = plan.here[id]
  if job and not refused[id] then return job.s.state end
  local s = L.stored_parent(b, plan, id)
  return s and s.state
end

function L.refused_link(b, plan, refused, job)
  for _, parent in ipairs(job.parents) do
    local state = L.restored_parent(b, plan, refused, parent.id)
    if not state and not parent.ended then return 'p' .. parent.id end
    if state == DEAD and job.policy == ON_PARENT_DEAD.CANCEL then return 'x' .. parent.id end
  end
end

-- Decide which rows of `children` to write, and how many parents each job waits for. Blocked jobs without their parents
-- are refused, and those that wait for them.
function L.plan_restored(b, new, refused)
  local plan, again = {here = {}, stored = {}, children = {}}, true
  for _, job in ipairs(new) do plan.here[job.id] = job end
  while again do
    again = false
    for _, job in ipairs(new) do
      if job.s.state == BLOCKED and not refused[job.id] then
        refused[job.id] = L.refused_link(b, plan, refused, job)
        again = again or refused[job.id] ~= nil
      end
    end
  end
  for _, job in ipairs(new) do
    if not refused[job.id] then L.plan_restored_job(b, plan, refused, job) end
  end
  return plan
end

function L.plan_restored_job(b, plan, refused, job)
  local blocked = job.s.state == BLOCKED
  job.open, job.named = 0, {}
  for _, parent in ipairs(job.parents) do
    local state = L.restored_parent(b, plan, refused, parent.id)
    if state or parent.ended then job.named[#job.named + 1] = parent.id end
    local leads = state == DONE and job.s.state ~= DONE
    if blocked then leads = state and (state ~= DEAD or job.policy == ON_PARENT_DEAD.WAIT) end
    if leads then
      local children = plan.children[parent.id]
      if not children then children = {} plan.children[parent.id] = children end
      children[#children + 1] = job.id
      if state ~= DONE then job.open = job.open + 1 end
    end
  end
end

-- Add the new children to stored parents; those of the call get their flag when their state is written.
function L.write_restored_children(b, plan, refused)
  for parent, ids in pairs(plan.children) do
    local s = (not plan.here[parent] or refused[parent]) and plan.stored[parent]
    local before = s and call('HGET', b.base .. ':children', parent) or ''
    call('HSET', b.base .. ':children', parent, before .. concat(ids))
    if s and not L.has(s.flags, HAS_CHILDREN) then
      s.flags = s.flags + HAS_CHILDREN
      L.put_state(b, parent, s)
    end
  end
end

-- Write a job's own rows of flows and steps, before its state, whose flags name them.
function L.restore_beside(b, plan, job)
  local id, s = job.id, job.s
  if s.state == BLOCKED and job.open == 0 then s.state, s.visible = WAITING, max(b.now, s.visible) end
  if #job.named > 0 then
    call('HSET', b.base .. ':parents', id, concat(job.named))
    s.flags = L.with(s.flags, HAS_PARENTS)
  end
  if plan.children[id] then s.flags = L.with(s.flags, HAS_CHILDREN) end
  if s.state == BLOCKED then call('HSET', b.base .. ':waits', id, L.waits_row(id, job.open, job.policy)) end
  if job.steps ~= '' or job.waits_for ~= '' then
    L.restore_steps(b, id, s, job.steps, job.waits_for)
    s.flags = L.with(s.flags, HAS_STEPS)
  end
end

function L.restore_steps(b, id, s, packed, waits_for)
  local at, count, size = 1, 0, 0
  while at <= #packed do
    local kind, name, bytes, stored = unpack_(FORMAT.RESTORED_STEP, packed, at)
    at = at + BYTES.RESTORED_STEP
    local field = kind .. sub(packed, at, at + name - 1)
    at = at + name
    local row = pack(FORMAT.STEP, count, stored) .. sub(packed, at, at + bytes - 1)
    call('HSET', L.step_key(b, id), field, row .. L.seal(id .. field, row))
    at, count, size = at + bytes, count + 1, size + bytes
  end
  local token = waits_for ~= '' and s.token or 0
  L.put_steps_head(b, id, {count = count, size = size, token = token, waits_for = waits_for})
end

-- text of the queue's creation, its first rules, how long a done job stays at least, then for each job:
-- id, state, body, digests of key and payload or '', error, progress, result ("0", or "1" and the text), on_parent_dead
-- (one byte) and the parents, or '', the steps, the signal it waits for
verbs.restore = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local rules = b.there and L.rules(b) or L.rules_of(args[5])
  local added, there, refused, new, seen = {}, {}, {}, {}, {}
  for at = 7, #args, 10 do
    local id, row = args[at], args[at + 1]
    local s = L.state_of(id, row)
    local value = call('HGET', b.base .. ':state', id)
    if seen[id] then
      -- given twice: the first one counts
    elseif not value then
      new[#new + 1] = {id = id, s = s, body = args[at + 2], keyed = args[at + 3],
        notes = {e = args[at + 4], p = args[at + 5], r = args[at + 6]}, steps = args[at + 8], waits_for = args[at + 9]}
      new[#new].parents, new[#new].policy = L.restored_parents(args[at + 7])
    else
      local now = L.state_of(id, value)
      if not now then return {'E', 'corrupt', id, 'its state is damaged'} end
      if now.state == s.state and now.priority == s.priority and now.attempt == s.attempt and now.token == s.token
        and now.replays == s.replays and now.created == s.created
        and call('HGET', b.base .. ':jobs', id) == args[at + 2] then
        there[#there + 1] = id
      else
        refused[id] = 'd'
      end
    end
    seen[id] = true
  end
  local held = L.restored_keys(b, new, refused)
  local plan = L.plan_restored(b, new, refused)
  L.make(b, args[5], args[4])
  L.write_restored_children(b, plan, refused)
  for _, job in ipairs(new) do
    if not refused[job.id] then
      local id, s = job.id, job.s
      if s.state == DONE and s.due <= b.now then
        local keep = max(rules.retention, job.notes.r ~= '0' and rules.result_retention or 0)
        s.due = b.now + (keep > 0 and keep or tonumber(args[6]))
      end
      for name, flag in pairs({e = HAS_ERROR, p = HAS_PROGRESS, r = HAS_RESULT}) do
        if job.notes[name] ~= '0' then
          call('HSET', b.base .. ':notes', id .. name, sub(job.notes[name], 2))
          s.flags = L.with(s.flags, flag)
        end
      end
      L.restore_beside(b, plan, job)
      local text = job.notes.e ~= '0' and sub(job.notes.e, 2) or ''
      s.last = L.event(b, CHANGE.RESTORED, id, s, {at = s.visible, text = text})
      call('HSET', b.base .. ':jobs', id, job.body)
      L.join_group(b, id, s, job.body)
      L.put_state(b, id, s)
      L.index(b, id, s)
      local name = ({[WAITING] = 'waiting', [DONE] = 'done', [DEAD] = 'dead'})[s.state]
      if name then b[name] = b[name] + 1 end -- blocked jobs are counted by their index
      b.enqueued = b.enqueued + 1
      if s.state == WAITING then
        b.wake = s.visible > b.now and LIMIT.WAKE_ALL or b.wake + 1
      end
      added[#added + 1] = id
    end
  end
  for _, job in ipairs(held) do
    local untils = job.s.created + rules.dedup
    if not refused[job.id] and (untils > b.now or job.s.state == WAITING or job.s.state == BLOCKED) then
      if untils <= b.now then untils = b.now + 1 end
      local digest = sub(job.keyed, 1, 16)
      call('HSET', b.base .. ':dedup', digest, job.id .. sub(job.keyed, 17) .. pack(FORMAT.TIME, untils))
      call('ZADD', b.base .. ':dedupdue', untils, digest)
    end
  end
  local reply = {concat(added), concat(there)}
  for id, why in pairs(refused) do
    reply[#reply + 1] = id
    reply[#reply + 1] = why
  end
  return L.finish(b, reply)
end
