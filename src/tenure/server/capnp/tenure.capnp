# Tenure's RPC for clients in other languages. docs/capnp.md explains it.
#
#   Door.login(token) -> Session.queue(name) -> Queue.add, poll, remove, extend   as Queueber has them
#                                               Queue.nack, settle, parents,
#                                               recordStep, steps, signal         ours
#
# Numbers of fields and methods are never used again. A field that is not set is 0 or empty, and means what it meant
# before the field was there, so older clients go on working.
#
# A call that fails says so in `problem`; the code is one of docs/errors.md. An RPC exception is a lost connection or a bug.

@0xe1b6f0a94c27d385;

struct Problem {
  code @0 :Text;             # "lease_lost", "forbidden", "too_large", ...: stable
  message @1 :Text;          # for people
  retryAfterSecs @2 :Float64; # more than 0: worth trying again after this
}

interface Door {
  login @0 (token :Text, tenant :Text) -> (session :Session, problem :Problem);
  # A token as for HTTP; empty where the server asks for none. `tenant` is for operators: whose queues these are.
}

interface Session {
  queue @0 (queueName :Text) -> (queue :Queue, problem :Problem);
  # What may be done with it depends on the token's scopes, and ends with the token.
}

interface Queue {
  add @0 (items :List(Item)) -> (ids :List(Data), problem :Problem);
  # All of them in one transaction; ids in order. An item whose key was seen before has the first one's id.

  poll @1 (leaseValiditySecs :UInt64, numItems :UInt32, timeoutSecs :UInt64, worker :Text, leaseValidityMillis :UInt64,
           timeoutMillis :UInt64)
      -> (lease :Data, items :List(PolledItem), untilMillis :UInt64, problem :Problem);
  # One lease over up to numItems (0: 1). Waits up to the timeout for the first; 0 does not wait. No items: no lease.
  # A validity of 0 is the queue's policy. Milliseconds, where given, go before seconds.

  remove @2 (id :Data, lease :Data) -> (removed :Bool, problem :Problem);
  # Done: an ack. Not removed: the item is no longer this lease's, and problem says why.

  extend @3 (lease :Data, leaseValiditySecs :UInt64, leaseValidityMillis :UInt64)
      -> (extended :Bool, untilMillis :UInt64, lost :List(Data), problem :Problem);
  # At least until then, for the whole lease. `lost` are items of it that were cancelled.

  nack @4 (id :Data, lease :Data, error :Text, delayMillis :Int64 = -1) -> (returned :Bool, problem :Problem);
  # Failed: back after the delay (-1: the policy's), or dead if it was the last attempt.

  settle @5 (settlements :List(Settlement)) -> (outcomes :List(Problem), problem :Problem);
  # Many at once, each whole or not at all. Outcomes in order: an empty code is a success.

  parents @6 (id :Data, begin :UInt32, limit :UInt32) -> (parents :List(Parent), problem :Problem);
  # What became of the items that this one waits or waited for, in the order in which it named them. From place `begin`
  # on, up to `limit` (0: 100); fewer where results are large: go on behind the last.

  recordStep @7 (id :Data, lease :Data, token :UInt64, stepName :Text, value :Data) -> (stored :Data, problem :Problem);
  # Keep a value under a polled item, by a name, once: `stored` is this value, or the one that was there before.
  # The token is as polled; 0: looked up, at the cost of a read.

  steps @8 (id :Data) -> (steps :List(Step), problem :Problem);
  # What is kept under an item, in the order in which it was stored.

  signal @9 (id :Data, signalName :Text, payload :Data) -> (given :Bool, problem :Problem);
  # Give an item a signal; one that waits for it is ready now. Not given, without a problem: it has one of that name.
}

struct Item {
  contents @0 :Data;
  visibilityTimeoutSecs @1 :UInt64; # not before then
  visibilityTimeoutMillis @2 :UInt64; # the same, finer; goes before seconds where given
  priority @3 :UInt8;  # 0 to 9, which is claimed first
  key @4 :Text;        # idempotency key
  maxAttempts @5 :UInt32; # 0: the queue's policy
  ttlMillis @6 :UInt64;   # 0: none
  headers @7 :List(Header);
  queue @8 :Text;      # the queue it goes to; empty: the one that is called
  group @9 :Text;      # items of one queue take turns by their group
  name @10 :Text;      # by which `after` of other items of the same call refers to it
  after @11 :List(Text); # its parents: ids in hexadecimal, or "#" and a name of this call. Blocked until all are done
  onParentDead @12 :OnParentDead; # what a parent means that is dead, or was removed
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
  hasResult @4 :Bool;  # false: there is none, or it may not be seen
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
  signal @1;           # given by anybody
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
  then @7 :List(Item); # with ack: items that are added in the same transaction
  untilSignal @8 :Text; # with release and a delay: ready before it, as soon as the item has this signal
}

enum Verb {
  ack @0;
  nack @1;
  fail @2;
  release @3;
}
