# Tenure's RPC for clients in other languages. docs/capnp.md explains it.
#
#   Door.login(token) -> Session.queue(name) -> Queue.add, poll, remove, extend   as Queueber has them
#                                               Queue.nack, settle, parents,
#                                               recordStep, steps, signal         ours
#
# Numbers of fields and methods are never reused. A field that is not set is 0 or empty, which means the behaviour
# from before the field existed, so older clients continue to work.
#
# A call that fails says so in `problem`; the code is one of docs/errors.md. An RPC exception is a lost connection or a bug.

@0xe1b6f0a94c27d385;

struct Problem {
  code @0 :Text;             # "lease_lost", "forbidden", "too_large", ...: stable
  message @1 :Text;          # for people
  retryAfterSecs @2 :Float64; # more than 0: a retry after this may succeed
}

interface Door {
  login @0 (token :Text, tenant :Text) -> (session :Session, problem :Problem);
  # A token as for HTTP; empty if the server needs none. `tenant`, for operators only, selects the tenant.
}

interface Session {
  queue @0 (queueName :Text) -> (queue :Queue, problem :Problem);
  # The token's scopes limit what may be done; the session ends with the token.
}

interface Queue {
  add @0 (items :List(Item)) -> (ids :List(Data), problem :Problem);
  # Adds all items in one transaction; ids in order. An item whose key is held gets the id of the holder.

  poll @1 (leaseValiditySecs :UInt64, numItems :UInt32, timeoutSecs :UInt64, worker :Text, leaseValidityMillis :UInt64,
           timeoutMillis :UInt64)
      -> (lease :Data, items :List(PolledItem), untilMillis :UInt64, problem :Problem);
  # Claims up to numItems (0: 1) under one lease, waiting up to the timeout for the first. No items: no lease.
  # A validity of 0 is the queue's policy. Milliseconds, if given, take precedence over seconds.

  remove @2 (id :Data, lease :Data) -> (removed :Bool, problem :Problem);
  # Acks the item. Not removed: the lease no longer holds the item, and problem says why.

  extend @3 (lease :Data, leaseValiditySecs :UInt64, leaseValidityMillis :UInt64)
      -> (extended :Bool, untilMillis :UInt64, lost :List(Data), problem :Problem);
  # Extends the whole lease to at least then. `lost` are its items that were cancelled.

  nack @4 (id :Data, lease :Data, error :Text, delayMillis :Int64 = -1) -> (returned :Bool, problem :Problem);
  # Reports a failure: retried after the delay (-1: the policy's), or dead if it was the last attempt.

  settle @5 (settlements :List(Settlement)) -> (outcomes :List(Problem), problem :Problem);
  # Settles many at once, each completely or not at all. Outcomes in order: an empty code is a success.

  parents @6 (id :Data, begin :UInt32, limit :UInt32) -> (parents :List(Parent), problem :Problem);
  # Returns the item's parents in the order in which it named them, from position `begin` on, up to `limit` (0: 100);
  # fewer if results are large: continue after the last.

  recordStep @7 (id :Data, lease :Data, token :UInt64, stepName :Text, value :Data) -> (stored :Data, problem :Problem);
  # Stores a value under a polled item, by name, once: `stored` is this value, or an earlier one.
  # The token is as polled; 0: looked up, at the cost of a read.

  steps @8 (id :Data) -> (steps :List(Step), problem :Problem);
  # Returns the steps and signals of an item, in the order in which they were stored.

  signal @9 (id :Data, signalName :Text, payload :Data) -> (given :Bool, problem :Problem);
  # Sends a signal to an item; one that waits for it becomes ready. Not given, without a problem: it has one already.
}

struct Item {
  contents @0 :Data;
  visibilityTimeoutSecs @1 :UInt64; # not before then
  visibilityTimeoutMillis @2 :UInt64; # the same in milliseconds; takes precedence over seconds
  priority @3 :UInt8;  # 0 to 9; 9 is claimed first
  key @4 :Text;        # idempotency key
  maxAttempts @5 :UInt32; # 0: the queue's policy
  ttlMillis @6 :UInt64;   # 0: none
  headers @7 :List(Header);
  queue @8 :Text;      # the queue it goes to; empty: the one that is called
  group @9 :Text;      # items of one queue take turns by their group
  name @10 :Text;      # by which `after` of other items of the same call refers to it
  after @11 :List(Text); # its parents: ids in hexadecimal, or "#" and a name of this call. Blocked until all are done
  onParentDead @12 :OnParentDead; # what to do if a parent is dead, or was removed
}

enum OnParentDead {
  cancel @0;
  run @1;
  wait @2;
}

struct Parent {
  id @0 :Data;
  queue @1 :Text;
  state @2 :Text;      # "done", "dead", "ready", ...; "gone": no longer kept
  result @3 :Data;
  hasResult @4 :Bool;  # false: there is none, or the token may not see it
  error @5 :Text;
}

struct Step {
  name @0 :Text;
  kind @1 :StepKind;
  value @2 :Data;
  storedMillis @3 :UInt64;
}

enum StepKind {
  step @0;             # stored by the holder of the item's lease
  signal @1;           # sent by anyone
}

struct Header {
  name @0 :Text;
  value @1 :Text;
}

struct PolledItem {
  contents @0 :Data;
  id @1 :Data;
  attempt @2 :UInt32;
  maxAttempts @3 :UInt32;
  token @4 :UInt64;    # the fencing token: it grows with every delivery of the item
  priority @5 :UInt8;
  createdMillis @6 :UInt64;
  key @7 :Text;
  headers @8 :List(Header);
  group @9 :Text;
}

struct Settlement {
  verb @0 :Verb;
  id @1 :Data;
  lease @2 :Data;
  token @3 :UInt64;    # as polled; 0: looked up, at the cost of a read
  result @4 :Data;     # with ack; empty: none
  error @5 :Text;      # with nack and fail
  delayMillis @6 :Int64 = -1; # with nack; -1: the policy's. With release, 0 or more: a snooze
  then @7 :List(Item); # with ack: items to add in the same transaction
  untilSignal @8 :Text; # with release and a delay: this signal makes the item ready earlier
}

enum Verb {
  ack @0;
  nack @1;
  fail @2;
  release @3;
}
