-- ── turns of the store: tenants take turns, and so do the queues of each tenant (for claim_any) ──────────────────────
--
-- Weighted start-time fair queueing, as in queueing/turns.py. A queue with work has a place, in one of three states:
--
--   IN_TURN   it stands in <registry>:turns:<tenant>, and its tenant in <registry>:turns, by virtual time
--   PARKED    nothing of it can be claimed before a moment: it is in <registry>:parked, by that moment
--   BLOCKED   it is paused: the verb that resumes it brings it back
--
-- While it is parked or blocked, <registry>:places:<tenant> has its virtual time, and under '' that of the tenant's last
-- queue in turn. Each shard's counters hold the state that the shard knows (b.turn), so a verb that adds work to a queue
-- in turn reads and writes nothing here. IN_TURN there is always true: claim_any changes the counters of all shards of
-- a queue when it takes its place away. PARKED may be late: the queue is perhaps in turn again.
--
-- Verbs note from when on a shard has work (L.has_work); L.finish offers the queue. Claims by name change nothing here.
-- On a cluster (not ANY_QUEUE) only queues in the registry's slot have places.

-- Stored in the counters, above the bits of the tiers: do not renumber.
local NO_TURN, IN_TURN, PARKED, BLOCKED_TURN = 0, 1, 2, 3
L.TURN_UNIT = 2 ^ (LIMIT.TOP_TIER + 1)

-- Note that a job of the shard can be claimed from `at` on.
function L.has_work(b, at)
  if not b.work or at < b.work then b.work = at end
end

-- Note that a pause or a limit no longer holds the shard up.
function L.lift(b)
  b.lifted = true
  L.has_work(b, b.now)
end

-- Note that a shard is deleted: it is not paused when it is created again.
function L.hold_back_no_more(b)
  if b.turn ~= BLOCKED_TURN then return end
  local p = L.place_of(b.base)
  call('HDEL', p.kept, p.queue)
  b.turn = NO_TURN
end

-- Whether a step on the registry reaches a shard.
function L.in_reach(base) return ANY_QUEUE or string.find(base, ':{registry}:q:', 1, true) ~= nil end

-- The place of a shard's queue: the registry's base, tenant, queue, and the key of the tenant's turns.
function L.place_of(base)
  local prefix, tenant, queue = string.match(base, '^([^:]+):{([^/}]+)/([^/}]+)')
  if not prefix then prefix, tenant, queue = string.match(base, '^([^:]+):{registry}:q:([^/]+)/(.+)$') end
  return L.place(prefix .. ':{registry}', tenant, queue)
end

function L.place(registry, tenant, queue)
  return {registry = registry, tenant = tenant, queue = queue, name = tenant .. '/' .. queue,
    turns = registry .. ':turns:' .. tenant, kept = registry .. ':places:' .. tenant}
end

-- The virtual time of the next in a sorted set; nil: it is empty.
function L.first_time(turns) return tonumber(call('ZRANGE', turns, 0, 0, 'WITHSCORES')[2]) end

-- Put a queue in turn. One that was idle starts at the virtual time of the next, so that it saves up no turns.
function L.put_in_turn(p)
  if not call('ZSCORE', p.turns, p.queue) then
    local kept = call('HMGET', p.kept, p.queue, '')
    local time = L.first_time(p.turns) or tonumber(kept[2] or 0)
    if kept[1] then
      time = max(time, tonumber(kept[1]))
      call('HDEL', p.kept, p.queue)
    end
    call('ZREM', p.registry .. ':parked', p.name)
    call('ZADD', p.turns, time, p.queue)
  end
  local tenants = p.registry .. ':turns'
  if not call('ZSCORE', tenants, p.tenant) then call('ZADD', tenants, L.first_time(tenants) or 0, p.tenant) end
end

-- Take a queue out of the turns. `turn`: its new state; `at`: until when it is parked.
function L.take_from_turns(p, turn, at)
  local time = call('ZSCORE', p.turns, p.queue)
  if time and turn ~= NO_TURN then call('HSET', p.kept, p.queue, time) end
  call('ZREM', p.turns, p.queue)
  if turn == PARKED then call('ZADD', p.registry .. ':parked', at, p.name) end
  if call('EXISTS', p.turns) == 0 then
    call('ZREM', p.registry .. ':turns', p.tenant)
    local kept = call('HLEN', p.kept) - call('HEXISTS', p.kept, '')
    if kept == 0 then call('DEL', p.kept) elseif time then call('HSET', p.kept, '', time) end
  end
end

-- Wake callers that wait in claim_any. A queue in turn needs no message: a caller that waits has seen none in turn.
function L.tell_claimers(p, count, at) call('PUBLISH', p.registry .. ':turns', pack(FORMAT.WOKEN, count, at)) end

-- Give the queue of a shard with work its place.
function L.offer_queue(b)
  local at = b.work
  if not at or b.turn == IN_TURN or (b.turn == BLOCKED_TURN and not b.lifted) or not L.in_reach(b.base) then return end
  local p = L.place_of(b.base)
  if at <= b.now then
    L.put_in_turn(p)
    b.turn = IN_TURN
    return L.tell_claimers(p, max(b.wake, 1), 0)
  end
  local parked = call('ZSCORE', p.registry .. ':parked', p.name)
  if not parked and call('ZSCORE', p.turns, p.queue) then
    b.turn = IN_TURN
    return
  end
  b.turn = PARKED
  if not parked or at < tonumber(parked) then
    call('ZADD', p.registry .. ':parked', at, p.name)
    L.tell_claimers(p, 0, at)
  end
end

-- Queues whose moment has come get their turn, at most `most`. Returns whether there are more.
function L.return_queues(registry, now, most)
  local due = call('ZRANGEBYSCORE', registry .. ':parked', '-inf', now, 'LIMIT', 0, most)
  for _, name in ipairs(due) do
    local tenant, queue = string.match(name, '^([^/]+)/(.+)$')
    L.put_in_turn(L.place(registry, tenant, queue))
  end
  return #due == most
end

-- Offer a shard's queue by what the shard has, whatever its counters say of its place. Changes b.turn only.
function L.offer_again(b, grace)
  local rules = b.there and L.rules(b)
  if not rules or rules.burst > 0 and L.wrong_bucket(b) then return end
  local due = L.next_due(b, rules, grace)
  b.turn = NO_TURN
  if due >= 0 or rules.paused and b.waiting > 0 then
    b.work = max(due, b.now)
    L.offer_queue(b)
  end
end

-- Arguments: cursor, grace. Give the queues of a store that was written without an index their places, page by page.
-- Returns the next cursor.
verbs.index_queues = function(keys, args)
  local registry = keys[1]
  local page = call('HSCAN', registry .. ':names', args[4], 'COUNT', LIMIT.BATCH)
  for i = 1, #page[2], 2 do
    for _, base in ipairs(L.shards_of(registry, page[2][i], page[2][i + 1])) do
      local b = L.in_reach(base) and L.begin({base}, args)
      if b and b.waiting + b.leased > 0 then
        L.offer_again(b, tonumber(args[5]))
        call('SET', base .. ':books', L.counters_row(b))
      end
    end
  end
  if page[1] == '0' then call('SET', registry .. ':indexed', '1') end
  return {page[1]}
end

-- The bases of a queue's shards, by its row in :names.
function L.shards_of(registry, name, row)
  local prefix = string.match(registry, '^[^:]+')
  local partitions, one_slot = string.match(row, ' (%d+)(.*)')
  partitions = tonumber(partitions)
  if one_slot ~= '' then return {registry .. ':q:' .. name} end
  if partitions == 1 then return {prefix .. ':{' .. name .. '}'} end
  local bases = {}
  for n = 0, partitions - 1 do bases[n + 1] = prefix .. ':{' .. name .. '/' .. n .. '}' end
  return bases
end
