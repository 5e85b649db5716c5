-- ── checks of the invariants, in pages, and their repair ─────────────────────────────────────────────────────────────

L.INDEXES = {'done', 'dead', 'blocked'}
for tier = 0, LIMIT.TOP_TIER do insert(L.INDEXES, 't' .. tier) end

function L.index_sizes(base)
  local waiting = 0
  for tier = 0, LIMIT.TOP_TIER do waiting = waiting + call('ZCARD', base .. ':t' .. tier) end
  local aside = 0
  for _, where in ipairs(call('HVALS', base .. ':damaged')) do
    if where == 'w' then aside = aside + 1 end
  end
  local done, dead = call('ZCARD', base .. ':done'), call('ZCARD', base .. ':dead')
  local all, blocked = call('HLEN', base .. ':state'), call('ZCARD', base .. ':blocked')
  return {waiting = waiting + aside, done = done, dead = dead, all = all,
    leased = all - waiting - aside - done - dead - blocked}
end

readers.numbers = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local base, c = b.base, L.index_sizes(keys[1])
  return {b.there and 1 or 0, b.commit, b.events, b.waiting, b.leased, b.done, b.dead, b.enqueued, b.removed,
    c.waiting, c.leased, c.done, c.dead, c.all, call('HLEN', base .. ':jobs'), call('ZCARD', base .. ':leases'),
    call('HLEN', base .. ':lease'), call('HLEN', base .. ':held'), call('HLEN', base .. ':notes'),
    L.first_commit(base) or 0, call('HLEN', base .. ':parents') + call('HLEN', base .. ':children')
      + call('HLEN', base .. ':waits') + call('HLEN', base .. ':steps')}
end

-- The faults of a job's rows, as joined codes.
function L.problems(b, id, s, held_by)
  local base, found = b.base, {}
  if call('HEXISTS', base .. ':jobs', id) == 0 then found[#found + 1] = 'body' end
  local aside = call('HGET', base .. ':damaged', id)
  if aside then found[#found + 1] = 'aside' end
  local right = ({[WAITING] = 't' .. L.tier(s), [DONE] = 'done', [DEAD] = 'dead', [BLOCKED] = 'blocked'})[s.state]
  local when = s.state == WAITING and s.visible or s.state == BLOCKED and 0 or s.ended
  for _, name in ipairs(L.INDEXES) do
    local score = call('ZSCORE', base .. ':' .. name, id)
    if name == right and not aside and tonumber(score or -1) ~= when then found[#found + 1] = 'index' end
    if name ~= right and score then found[#found + 1] = 'twice' end
  end
  if L.wrong_group(b, id, s, aside) then found[#found + 1] = 'group' end
  local ttl, retention = call('ZSCORE', base .. ':ttl', id), call('ZSCORE', base .. ':retention', id)
  local due_ttl = (s.state == WAITING or s.state == BLOCKED) and s.due > 0 and s.due or nil
  local due_end = s.state == DONE and s.due > 0 and s.due or nil
  if tonumber(ttl or -1) ~= (due_ttl or -1) or tonumber(retention or -1) ~= (due_end or -1) then
    found[#found + 1] = 'due'
  end
  if s.state == LEASED then
    if not held_by[s.lease] then
      local jobs = {}
      for _, job in ipairs(L.split(call('HGET', base .. ':held', s.lease) or '')) do jobs[job] = true end
      held_by[s.lease] = L.lease_of(base, s.lease) and jobs or {}
    end
    if not held_by[s.lease][id] then found[#found + 1] = 'lease' end
  end
  L.link_problems(b, id, s, found)
  L.step_problems(b, id, s, found)
  return concat(found, ' ')
end

-- Arguments: cursor. Returns the next cursor, then for each job: id, state, body, faults.
readers.check_jobs = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local page = call('HSCAN', b.base .. ':state', args[4], 'COUNT', 500)
  local reply, held_by = {page[1]}, {}
  for i = 1, #page[2], 2 do
    local id, value = page[2][i], page[2][i + 1]
    local s = L.state_of(id, value)
    local n = #reply
    reply[n + 1], reply[n + 2] = id, value
    reply[n + 3] = call('HGET', b.base .. ':jobs', id) or ''
    reply[n + 4] = s and L.problems(b, id, s, held_by) or 'state'
  end
  return reply
end

-- Hashes by job that are not indexes.
L.HASHES = {jobs = true, waits = true, parents = true, children = true, steps = true}

-- Arguments: index, cursor. Returns the next cursor, then members without a job.
readers.check_index = function(keys, args)
  local base = keys[1]
  local name, page = args[4], nil
  if L.HASHES[name] then
    page = call('HSCAN', base .. ':' .. name, args[5], 'COUNT', 100)
  else
    page = call('ZSCAN', base .. ':' .. name, args[5], 'COUNT', 500)
  end
  local reply = {page[1]}
  for i = 1, #page[2], 2 do
    if call('HEXISTS', base .. ':state', page[2][i]) == 0 then reply[#reply + 1] = page[2][i] end
  end
  return reply
end

-- Arguments: cursor. Returns the next cursor, then notes without a job, or whose job lacks the flag.
readers.check_notes = function(keys, args)
  local base, of = keys[1], {e = HAS_ERROR, p = HAS_PROGRESS, r = HAS_RESULT}
  local page = call('HSCAN', base .. ':notes', args[4], 'COUNT', 200)
  local reply = {page[1]}
  for i = 1, #page[2], 2 do
    local note = page[2][i]
    local id, flag = sub(note, 1, 16), of[sub(note, 17)]
    local value = call('HGET', base .. ':state', id)
    local s = value and L.state_of(id, value)
    -- an unreadable state is another finding
    if not flag or not value or (s and not L.has(s.flags, flag)) then reply[#reply + 1] = note end
  end
  return reply
end

-- Arguments: "dedup" or "claims", cursor. Returns the next cursor, then for each faulty entry: digest, fault.
readers.check_remembered = function(keys, args)
  local rows, due = keys[1] .. ':' .. args[4], keys[1] .. ':' .. L.REMEMBERED[args[4]]
  local bytes = ({dedup = 40, claims = 33})[args[4]]
  local page = call('HSCAN', rows, args[5], 'COUNT', 200)
  local reply = {page[1]}
  for i = 1, #page[2], 2 do
    local wrong = #page[2][i + 1] ~= bytes and 'damaged' or not call('ZSCORE', due, page[2][i]) and 'undue'
    if wrong then
      reply[#reply + 1] = page[2][i]
      reply[#reply + 1] = wrong
    end
  end
  return reply
end

-- Arguments: "dedup" or "claims", cursor. Returns the next cursor, then due digests without an entry.
readers.check_remembered_due = function(keys, args)
  local page = call('ZSCAN', keys[1] .. ':' .. L.REMEMBERED[args[4]], args[5], 'COUNT', 200)
  local reply = {page[1]}
  for i = 1, #page[2], 2 do
    if call('HEXISTS', keys[1] .. ':' .. args[4], page[2][i]) == 0 then reply[#reply + 1] = page[2][i] end
  end
  return reply
end

-- Returns "1" if the rate's bucket is invalid.
readers.check_bucket = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  return {L.wrong_bucket(b) and 1 or 0}
end

-- Arguments: cursor. Returns the next cursor, then for each faulty lease: id, fault.
readers.check_leases = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local page = call('HSCAN', b.base .. ':lease', args[4], 'COUNT', 100)
  local reply = {page[1]}
  for i = 1, #page[2], 2 do
    local id = page[2][i]
    local l = L.lease_of(b.base, id)
    local score = call('ZSCORE', b.base .. ':leases', id)
    local held, damaged = L.held(b, id)
    local wrong
    if not l then
      wrong = 'damaged'
    elseif tonumber(score or -1) ~= l.expires then
      wrong = 'due'
    elseif #held == 0 and #damaged == 0 then
      wrong = 'empty_lease'
    elseif #held ~= l.open and #damaged == 0 then
      wrong = 'open'
    end
    if wrong then
      reply[#reply + 1] = id
      reply[#reply + 1] = wrong
    end
  end
  return reply
end

function L.recount(b)
  local c = L.index_sizes(b.base)
  b.waiting, b.leased, b.done, b.dead = c.waiting, c.leased, c.done, c.dead
  b.tiers = 0
  for tier = 0, LIMIT.TOP_TIER do
    if call('ZCARD', b.base .. ':t' .. tier) > 0 then b.tiers = b.tiers + 2 ^ tier end
  end
  b.removed = max(0, b.enqueued - c.all)
  b.enqueued = c.all + b.removed
end

function L.unindex(b, id)
  for _, name in ipairs(L.INDEXES) do call('ZREM', b.base .. ':' .. name, id) end
  call('ZREM', b.base .. ':ttl', id)
  call('ZREM', b.base .. ':retention', id)
  call('HDEL', b.base .. ':damaged', id)
  L.unindex_group(b, id)
end

function L.index(b, id, s)
  L.unindex(b, id)
  if s.state == WAITING then L.wait(b, id, s) end
  if s.state == DONE then call('ZADD', b.base .. ':done', s.ended, id) end
  if s.state == DEAD then call('ZADD', b.base .. ':dead', s.ended, id) end
  if s.state == BLOCKED then call('ZADD', b.base .. ':blocked', 0, id) end
  if s.due > 0 and (s.state == WAITING or s.state == BLOCKED) then call('ZADD', b.base .. ':ttl', s.due, id) end
  if s.due > 0 and s.state == DONE then call('ZADD', b.base .. ':retention', s.due, id) end
end

function L.repair_leases(b)
  for _, id in ipairs(call('HKEYS', b.base .. ':lease')) do
    local l = L.lease_of(b.base, id)
    local held = L.held(b, id)
    if not l or #held == 0 then
      for _, job in ipairs(held) do
        local s = job[2]
        s.visible = b.now
        L.give_back(b, job[1], s, CHANGE.REPAIRED, NO_ID, '')
      end
      L.end_lease(b, id, l or {lost = 1})
    else
      l.open = #held
      call('HSET', b.base .. ':lease', id, L.lease_row(id, l))
      call('ZADD', b.base .. ':leases', l.expires, id)
    end
  end
  for _, id in ipairs(call('ZRANGE', b.base .. ':leases', 0, -1)) do
    if call('HEXISTS', b.base .. ':lease', id) == 0 then
      call('ZREM', b.base .. ':leases', id)
      call('HDEL', b.base .. ':held', id)
    end
  end
end

-- Repairs that do not concern a lease.
L.WITHOUT_LEASES = {orphan = true, groups = true, note = true, bucket = true, forget = true, due = true,
  turn = true}

-- Arguments: fault, id, reference of the job's last event (0: unknown), its new state ('' or FORMAT.STATE).
verbs.repair = function(keys, args)
  local what, id, last, given = args[4], args[5], tonumber(args[6]), args[7]
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local base = b.base
  local value = #id == 16 and call('HGET', base .. ':state', id)
  local s = value and L.state_of(id, value)
  if what == 'orphan' then
    call(L.HASHES[given] and 'HDEL' or 'ZREM', base .. ':' .. given, id)
    if given == 'steps' then L.delete_steps(b, id) end
  elseif what == 'note' then
    call('HDEL', base .. ':notes', id)
  elseif what == 'bucket' then
    call('DEL', base .. ':bucket')
  elseif what == 'forget' then
    call('HDEL', base .. ':' .. given, id)
    call('ZREM', base .. ':' .. L.REMEMBERED[given], id)
  elseif what == 'due' then
    call('ZADD', base .. ':' .. L.REMEMBERED[given], b.now, id)
  elseif what == 'remove' then
    L.unindex(b, id)
    call('HDEL', base .. ':jobs', id)
    call('HDEL', base .. ':state', id)
    call('HDEL', base .. ':groupof', id)
    call('HDEL', base .. ':notes', id .. 'e', id .. 'p', id .. 'r')
    call('HDEL', base .. ':waits', id)
    s = s or {state = GONE, priority = 0, reason = REASON.NONE, max_attempts = 0, token = 0, attempt = 0}
    s.last, s.flags = last, L.flags_of_links(b, id)
    call('HDEL', base .. ':parents', id)
    L.delete_steps(b, id)
    L.event(b, CHANGE.REPAIRED, id, s, {state = GONE})
    L.ended(b, id, s, GONE, true)
  elseif what == 'index' and s then
    L.join_group_again(b, id, s)
    if s.state == LEASED then
      s.state, s.lease, s.visible = WAITING, NO_ID, b.now
      s.last = L.event(b, CHANGE.REPAIRED, id, s, {at = s.visible})
      L.put_state(b, id, s)
    end
    L.index(b, id, s)
    L.repair_steps(b, id)
    L.repair_links(b, id, s)
  elseif what == 'rebuild' then
    s = L.state_of(id, given)
    s.last = last
    L.join_group_again(b, id, s)
    if s.state == WAITING then s.visible = b.now end
    s.last = L.event(b, CHANGE.REPAIRED, id, s, {at = s.visible})
    L.put_state(b, id, s)
    L.index(b, id, s)
    L.repair_steps(b, id)
    L.repair_links(b, id, s)
  end
  if not L.WITHOUT_LEASES[what] then L.repair_leases(b) end
  L.recount(b)
  L.recount_groups(b)
  L.repair_turn(b)
  return L.finish(b, {1})
end

-- Rebuild unreadable counters by a recount.
verbs.repair_counters = function(keys, args)
  local base = keys[1]
  local last = call('XREVRANGE', base .. ':journal', '+', '-', 'COUNT', 1)[1]
  local b = {base = base, commit = 0, events = 0, time = 0, id_time = 0, id_seq = 0, turn = NO_TURN, enqueued = 0, removed = 0}
  if last then
    local _, time, first, count = unpack_(FORMAT.ROW, last[2][2], SEAL + 1)
    b.commit, b.events, b.time, b.id_time = L.commit_of(last), first + count - 1, time, time + 1
  end
  L.recount(b)
  b.removed = tonumber(args[4])
  b.enqueued = b.enqueued + b.removed
  call('SET', base .. ':books', L.counters_row(b))
  return {1}
end
