-- Tenure on Redis and Valkey: every verb is one function, which Redis runs atomically.
--
-- A shard is a queue, or one partition of it; all its keys share the hash tag in KEYS[1], the shard's base:
-- <prefix>:{tenant/queue}, <prefix>:{tenant/queue/partition}, or <prefix>:{registry}:q:tenant/queue (one_slot).
-- Ids are 16 raw bytes, times milliseconds.
--
--   :books      string   counters, journal position, last stored time, last id (L.COUNTERS, 20_step.lua), sealed
--   :rules      string   paused, then the policy as numbers (FORMAT.RULES)
--   :policy     string   the policy as the client encoded it; without it, the default
--   :jobs       hash     job -> the immutable fields: key, headers, payload; sealed by the client (CRC-32)
--   :state      hash     job -> the mutable fields, fixed-width (FORMAT.STATE), sealed
--   :notes      hash     job .. "e" | "p" | "r" -> last error, progress, result
--   :t0 .. :t9  zset     waiting jobs of a priority by visible_at, then by id
--   :t10 .. :t19 zset    the same for jobs that have a group, of priority 0 to 9
--   :done :dead zset     jobs by the time they ended
--   :blocked    zset     blocked jobs, all with score 0: ordered by id
--   :waits      hash     blocked job -> the number of its open parents, on_parent_dead (FORMAT.WAITS), sealed
--   :parents    hash     job -> its parents, in the order in which it named them
--   :children   hash     job -> the jobs that wait for it
--   :steps      hash     job -> number and bytes of its steps and signals, the awaited signal (FORMAT.STEPS), sealed
--   :steps:<job> hash    "s" .. step | "g" .. signal -> its index, time and value (FORMAT.STEP), sealed
--   :ttl        zset     jobs that were never claimed, by the end of their ttl
--   :retention  zset     done jobs by the end of their retention
--   :leases     zset     leases by their end
--   :lease      hash     lease -> granted, given, open, lost, claim digest (FORMAT.LEASE), worker; sealed
--   :held       hash     lease -> its jobs, written once
--   :lost       hash     lease -> its jobs that were cancelled while it held them
--   :claims     hash     digest of a claim's id -> lease, digest of its arguments, whether it expired
--   :claimdue   zset     digest of a claim's id by when it is deleted
--   :bucket     string   a rate's bucket: a time, and the nanoseconds after it until the bucket is full
--   :dedup      hash     digest of an idempotency key -> job, digest of its payload, end of its window
--   :dedupdue   zset     digest of an idempotency key by when it is deleted
--   :damaged    hash     job -> "w" | "l": removed from its index because it cannot be read
--   :groupof    hash     job -> its group, which is also in its body
--   :group      hash     group -> its counts and the state of its limits (L.GROUP_ROW, 45_groups.lua), sealed
--   :groups     zset     the names in :group, sorted
--   :grouprules hash     group, or '' for all others -> its policy as numbers (FORMAT.GROUP_RULES)
--   :g<n>:<group> zset   waiting jobs of a group and priority by visible_at
--   :turn0 .. 9 zset     groups with a ready job of that priority, by virtual time; '' stands for jobs without a group
--   :parked     zset     priority (one byte) and a group without a ready job of it, by when it has one
--   :journal    stream   commit-0 -> e: the events of one step (20_step.lua), at most 1,000 a row
--   :consumers  hash     name -> the first commit that it has not read
--   :l:<lane>   string   the last request of one lane of a client, or one with an id, and its answer (95_requests.lua)
--   :w:<write>  hash     chunk of a staged write -> jobs, duplicates
--
-- Beside the shards, under <prefix>:{registry}:
--
--   :format     string   "tenure 1"
--   :cursorkey  string   the key that seals the journal's cursors (cursor_seal.py)
--   :names      hash     tenant/queue -> number, partitions, 1 if it is in this slot
--   :next       string   the last number given
--   :turns      zset     tenants that have a queue in turn, by virtual time (49_queue_turns.lua)
--   :turns:<tenant> zset its queues in turn, by virtual time
--   :parked     zset     tenant/queue without a job for claim_any before a moment, by that moment
--   :places:<tenant> hash  queue that is parked or paused -> its virtual time; '' -> that of the tenant's last in turn
--   :indexed    string   "1": every queue with work has its place in these
--   :claims     hash     digest of the id of a claim_any -> the shard that served it
--   :claimdue   zset     digest of the id of a claim_any by when it is deleted
--   :requests   hash     digest of a request's id -> digest of its verb and arguments
--   :requestdue zset     digest of a request's id by when it is deleted
--   :schedules  set      tenants that have schedules
--   :schedules:<tenant> hash  name -> paused, times of creation and resumption (FORMAT.SCHEDULE), the schedule; sealed
--   :write:<id> hash     a staged write: id, manifest, chunk, jobs, duplicates, finished, begun, until, keep
--   :writedue   zset     a staged write's digest by when it is deleted
--
-- Channels: a shard's base (WOKEN: how many waiters to wake, the next due time, ended jobs), the registry's, and its
-- :turns (for callers that wait in claim_any).
--
-- Redis does not roll back a function that fails. So every verb first reads and decides, and then only writes.

-- constants.py generates the names in capitals (CHANGE, FORMAT, LIMIT, …) and the checksum tables from Python's values.

local verbs, readers = {}, {}
local call, sha = redis.call, redis.sha1hex
local pack, unpack_ = struct.pack, struct.unpack
local sub, byte, char, concat, insert = string.sub, string.byte, string.char, table.concat, table.insert
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local NO_ID = string.rep('\0', 16)

function L.has(flags, flag) return floor(flags / flag) % 2 == 1 end
function L.with(flags, flag) return L.has(flags, flag) and flags or flags + flag end

-- Call in portions: redis.call takes about 8,000 arguments, and a batch may have more. Returns the sum of the answers.
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

-- Write a field as it is stored. A verb that answers for an earlier one ends so: WAIT waits for the last write of its own
-- connection, and the earlier one's write, on another connection, may not have reached the replicas yet.
function L.write_again(key, field, value) call('HSET', key, field, value) end

function L.split(ids)
  local found = {}
  for at = 1, #ids, 16 do found[#found + 1] = sub(ids, at, at + 15) end
  return found
end
