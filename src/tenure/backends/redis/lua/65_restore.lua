-- ── restore: jobs as they stood in another store, or in an archive ───────────────────────────────────────────────────

-- Which of the new jobs are to hold their key; those that must and cannot are refused. Jobs that have not ended first.
function L.restored_keys(b, new, refused)
  local held, taken = {}, {}
  for pass = 1, 2 do
    for _, job in ipairs(new) do
      local waits = job.s.state == WAITING
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

-- text of the queue's creation, its first rules, how long a done job stays at least, then of each job:
-- id, state, body, digests of key and payload or '', error, progress, result ("0", or "1" and the text)
verbs.restore = function(keys, args)
  local b, answer = L.begin(keys, args)
  if not b then return answer end
  local rules = b.there and L.rules(b) or L.rules_of(args[5])
  local added, there, refused, new, seen = {}, {}, {}, {}, {}
  for at = 7, #args, 7 do
    local id, row = args[at], args[at + 1]
    local s = L.state_of(id, row)
    local value = call('HGET', b.base .. ':state', id)
    if seen[id] then
      -- given twice: the first counts
    elseif not value then
      new[#new + 1] = {id = id, s = s, body = args[at + 2], keyed = args[at + 3],
        notes = {e = args[at + 4], p = args[at + 5], r = args[at + 6]}}
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
  L.make(b, args[5], args[4])
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
      local text = job.notes.e ~= '0' and sub(job.notes.e, 2) or ''
      s.last = L.event(b, CHANGE.RESTORED, id, s, {at = s.visible, text = text})
      call('HSET', b.base .. ':jobs', id, job.body)
      L.join_group(b, id, s, job.body)
      L.put_state(b, id, s)
      L.index(b, id, s)
      local name = ({[WAITING] = 'waiting', [DONE] = 'done', [DEAD] = 'dead'})[s.state]
      b[name], b.enqueued = b[name] + 1, b.enqueued + 1
      if s.state == WAITING then
        b.wake = s.visible > b.now and LIMIT.WAKE_ALL or b.wake + 1
      end
      added[#added + 1] = id
    end
  end
  for _, job in ipairs(held) do
    local untils = job.s.created + rules.dedup
    if not refused[job.id] and (untils > b.now or job.s.state == WAITING) then
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
