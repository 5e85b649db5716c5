-- Tenure on Redis and Valkey: every verb is one function, and one atomic step.
--
-- A shard is a queue, or one partition of it; all its keys share the hash tag in KEYS[1], the shard's base:
-- <prefix>:{tenant/queue} or <prefix>:{tenant/queue/partition}. Ids are 16 raw bytes, times milliseconds.
--
--   :books      string   counters, journal position, last time stored, last id made (L.COUNTERS, 20_step.lua), sealed
--   :rules      string   paused, then the policy in numbers (FORMAT.RULES)
--   :policy     string   the policy as the client wrote it; none: the default
--   :jobs       hash     job -> what never changes: key, headers, payload; sealed by the client (CRC-32)
--   :state      hash     job -> what changes, fixed-width (FORMAT.STATE), sealed
--   :notes      hash     job .. "e" | "p" | "r" -> last error, progress, result
--   :t0 .. :t9  zset     waiting jobs of a priority by visible_at; equal times in the order of their ids
--   :t10 .. :t19 zset    the same of jobs that have a group, of priority 0 to 9
--   :done :dead zset     jobs by when they ended
--   :blocked    zset     jobs that wait for jobs, all with score 0: in the order of their ids
--   :waits      hash     blocked job -> how many of its parents have not ended, what a dead one means (FORMAT.WAITS), sealed
--   :parents    hash     job -> the jobs that it waits or waited for, in the order in which it named them
--   :children   hash     job -> the jobs to tell when it ends
--   :steps      hash     job -> how many steps and signals, their bytes, the signal it waits for (FORMAT.STEPS), sealed
--   :steps:<job> hash    "s" .. step | "g" .. signal -> its place, time and value (FORMAT.STEP), sealed
--   :ttl        zset     jobs never claimed by when their ttl passes
--   :retention  zset     done jobs by when they may go
--   :leases     zset     lease by when it ends
--   :lease      hash     lease -> granted, given, open, lost, claim digest (FORMAT.LEASE), worker; sealed
--   :held       hash     lease -> the jobs it was given, written once
--   :lost       hash     lease -> jobs cancelled under it
--   :claims     hash     digest of a claim's id -> lease, digest of what it asked for, whether it expired
--   :claimdue   zset     digest of a claim's id by when it may be forgotten
--   :bucket     string   of a rate: a moment, and how many nanoseconds after it the bucket is full again
--   :dedup      hash     digest of an idempotency key -> job, digest of its payload, until when it is held
--   :dedupdue   zset     digest of an idempotency key by when it may be forgotten
--   :damaged    hash     job -> "w" | "l": taken out of its index because it cannot be read
--   :groupof    hash     job -> its group; its body has it too
--   :group      hash     group -> its counts, and what its limits need (L.GROUP_ROW, 45_groups.lua), sealed
--   :groups     zset     the names in :group, in their order
--   :grouprules hash     group, or '' for the others -> its policy in numbers (FORMAT.GROUP_RULES)
--   :g<n>:<group> zset   waiting jobs of a group and priority by visible_at
--   :turn0 .. 9 zset     groups that have a job of a priority to give, by virtual time; '' the jobs without a group
--   :parked     zset     priority (one byte), then a group that has none to give, by when it has one
--   :journal    stream   commit-0 -> e: the events of one step (20_step.lua), at most 1,000 a row
--   :consumers  hash     name -> the first commit it has yet to read
--   :l:<lane>   string   the last request of one lane of a client, or one with an id, and its answer (95_requests.lua)
--   :w:<write>  hash     chunk of a staged write -> jobs, duplicates
--
-- Beside the shards, under <prefix>:{registry}:
--
--   :format     string   "tenure 1"
--   :cursorkey  string   what the journal's cursors are sealed with (cursor_seal.py)
--   :names      hash     tenant/queue -> number, partitions       :next  string  the last number given
--   :requests   hash     digest of a request's id -> digest of what it asks for
--   :requestdue zset     digest of a request's id by when it may be forgotten
--   :schedules  set      tenants that have schedules
--   :schedules:<tenant> hash  name -> paused, when it was made and resumed (FORMAT.SCHEDULE), the schedule; sealed
--   :write:<id> hash     a staged write: id, manifest, chunk, jobs, duplicates, finished, begun, until, keep
--   :writedue   zset     a staged write's digest by when it may be forgotten
--
-- Channels: a shard's base (WOKEN: how many to wake, when something is due, jobs that ended), and the registry's.
--
-- Redis does not undo a function that fails half-way. So every verb reads and decides first, and then only writes.

-- The names in capitals (CHANGE, FORMAT, LIMIT, …) and the checksums are made by constants.py, from Python's values.

local verbs, readers = {}, {}
local call, sha = redis.call, redis.sha1hex
local pack, unpack_ = struct.pack, struct.unpack
local sub, byte, char, concat, insert = string.sub, string.byte, string.char, table.concat, table.insert
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local NO_ID = string.rep('\0', 16)

function L.has(flags, flag) return floor(flags / flag) % 2 == 1 end
function L.with(flags, flag) return L.has(flags, flag) and flags or flags + flag end

-- redis.call takes about 8,000 arguments; a batch may have more. Returns the sum of the answers.
function L.bulk(command, key, args, step)
  local n = #args
  local sum = 0
  step = step or 4000
  for from = 1, n, step do
    sum = sum + call(command, key, unpack(args, from, min(from + step - 1, n)))
  end
  return sum
end

function L.hmget(key, fields)
  local n = #fields
  if n == 0 then return {} end
  if n <= 4000 then return call('HMGET', key, unpack(fields)) end
  local found = {}
  for from = 1, n, 4000 do
    local part = call('HMGET', key, unpack(fields, from, min(from + 3999, n)))
    for i = 1, #part do found[from + i - 1] = part[i] end
  end
  return found
end

function L.split(ids)
  local found = {}
  for at = 1, #ids, 16 do found[#found + 1] = sub(ids, at, at + 15) end
  return found
end
