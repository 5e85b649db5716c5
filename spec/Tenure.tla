------------------------------------------------ MODULE Tenure ------------------------------------------------
(* Tenure's queue: what may happen to a job, while processes crash, clocks step and requests are repeated.

   An action is one transaction. Its name is the event that it writes to the journal (model/specification.py has
   the same names; tests/proofs/test_specification.py compares them). docs/specification.md maps each to its code.

       db            the newest state, in the memory of the process that owns the store
       disk          the state that survives a power loss: an earlier, complete db. `Synced` copies db to disk.
       given         the proofs (job, lease, token) that workers hold. Workers keep them for ever and use them at any
                     time, so a worker that pauses past its lease, or repeats a request, needs no action of its own.
       pending       answers that callers get at the next sync
       acknowledged  by job: the newest version whose caller has its answer

   Time is relative: a job counts down to its visibility time (wait), a lease to its end (left). `Tick` counts down.
   disk does not count down: when a store is opened again, the time since its last write has passed by the calendar,
   or none, if the calendar was set back: the store's time never goes back behind its last write. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Jobs,         \* ids of jobs that producers may enqueue: 1, 2, ...
    Keys,         \* idempotency keys that producers may use; 0 is no key
    Child,        \* the job that is enqueued `after` job 1; 0: there is none
    MaxAttempts,
    LeaseTime,    \* ticks
    Delay,        \* ticks that a retried job waits; a new job may wait too
    Budget,       \* the total number of releases, replays, extensions, cancellations, pauses and power losses
    Signals,      \* TRUE: a delivery may be released until its job has a signal, which is sent at most once
    SoftClaims,   \* a claim is answered before it is durable (ADR 0037); the epoch then keeps tokens distinct
    Broken        \* "nothing", or the name of a deliberate defect

VARIABLES db, disk, given, pending, acknowledged, twice, budget, lastLease, epoch

vars == <<db, disk, given, pending, acknowledged, twice, budget, lastLease, epoch>>

None == 0
EpochSize == 100
\* Enough for every run: a power loss may undo all claims, a release or replay allows more.
MaxLease == Cardinality(Jobs) * MaxAttempts * (Budget + 1) + Budget
Leases == 1..MaxLease
NoJob == [state |-> "gone", token |-> 0, attempt |-> 0, wait |-> 0, lease |-> None, key |-> None, version |-> 0,
          signal |-> FALSE,    \* it has the signal
          awaits |-> 0,        \* the token of the delivery that was released until the signal
          \* Read by the invariants only:
          deliveries |-> 0,    \* since it was enqueued or replayed, without released ones
          by |-> 0,            \* the token of the proof that settled it last
          wrong |-> "no",      \* how its last step violated an invariant
          succeeded |-> FALSE] \* it has been done

Init ==
    /\ db = [job |-> [j \in Jobs |-> NoJob], left |-> [l \in Leases |-> 0], paused |-> FALSE]
    /\ disk = db
    /\ given = {}
    /\ pending = {}
    /\ acknowledged = [j \in Jobs |-> 0]
    /\ twice = FALSE
    /\ budget = Budget
    /\ lastLease = 0
    /\ epoch = 1

---------------------------------------------------------------------------------------------------------------
(* The check of a proof: a job is settled only by the holder of its live lease. *)

Live(l) == db.left[l] > 0 \/ Broken = "settles after the end"
Holds(p) ==
    LET job == db.job[p.job] IN
    /\ job.state = "leased" \/ (Broken = "settles twice" /\ job.state = "done")
    /\ (job.lease = p.lease /\ job.token = p.token) \/ Broken = "settles by job id"
    /\ Live(p.lease) \/ (Broken = "settles by job id" /\ db.left[job.lease] > 0)

(* A transaction: the changed jobs, and the answers that the caller gets once it is durable. *)
Commit(jobs, answers) ==
    /\ db' = [db EXCEPT !.job = [j \in Jobs |-> IF jobs[j] = db.job[j] THEN jobs[j]
                                                ELSE [jobs[j] EXCEPT !.version = db.job[j].version + 1]]]
    /\ IF Broken = "answers before the sync"
       THEN /\ acknowledged' = [j \in Jobs |-> IF jobs[j] = db.job[j] THEN acknowledged[j] ELSE db.job[j].version + 1]
            /\ UNCHANGED pending
       ELSE /\ pending' = pending \cup answers
            /\ UNCHANGED acknowledged
    /\ UNCHANGED <<disk, epoch>>

Acknowledges(j) == [verb |-> "written", job |-> j, version |-> db.job[j].version + 1, proof |-> [job |-> j, lease |-> None, token |-> 0]]
Spend == budget > 0 /\ budget' = budget - 1
Keep == UNCHANGED budget

---------------------------------------------------------------------------------------------------------------
(* Producers *)

Blocked(j) == j = Child /\ ~db.job[1].succeeded /\ Broken # "a child does not wait"

Enqueued(j, k, w) ==
    /\ db.job[j].version = 0
    /\ k # None => \A i \in Jobs : db.job[i].key # k \/ Broken = "a key is not looked up"
    /\ j = Child => db.job[1].version > 0
    /\ Commit([db.job EXCEPT ![j] = [NoJob EXCEPT !.state = IF Blocked(j) THEN "blocked" ELSE "waiting",
                                                  !.wait = w, !.key = k]], {Acknowledges(j)})
    /\ Keep /\ UNCHANGED <<given, twice, lastLease>>

---------------------------------------------------------------------------------------------------------------
(* Workers *)

Ready(j) == db.job[j].state = "waiting" /\ (db.job[j].wait = 0 \/ Broken = "delivers early")
NextToken(j) ==
    LET before == db.job[j].token
        base == IF SoftClaims /\ Broken # "soft claims without epochs" THEN epoch * EpochSize ELSE 0 IN
    IF Broken = "a token is used twice" /\ before > 0 THEN before
    ELSE base + (before % EpochSize) + 1

(* One lease over several jobs. *)
Claimed(taken) ==
    LET l == lastLease + 1
        proofs == {[job |-> j, lease |-> l, token |-> NextToken(j)] : j \in taken} IN
    /\ l \in Leases
    /\ ~db.paused \/ Broken = "delivers while paused"
    /\ \A j \in taken : Ready(j)
    \* A soft claim waits until the jobs that it delivers are durable.
    /\ SoftClaims => \A j \in taken : disk.job[j].version = db.job[j].version
    /\ db' = [db EXCEPT
           !.job = [j \in Jobs |-> IF j \notin taken THEN db.job[j] ELSE
               [db.job[j] EXCEPT !.state = "leased", !.lease = l, !.token = NextToken(j), !.attempt = @ + 1,
                   !.deliveries = @ + 1, !.by = 0, !.version = @ + 1,
                   !.wrong = CASE db.job[j].wait > 0 -> "early"
                               [] db.paused -> "paused"
                               [] OTHER -> "no"]],
           !.left = [@ EXCEPT ![l] = LeaseTime]]
    /\ IF SoftClaims
       THEN /\ given' = given \cup proofs
            /\ UNCHANGED pending
       ELSE /\ pending' = pending \cup {[verb |-> "claimed", job |-> p.job, version |-> db.job[p.job].version + 1, proof |-> p] :
                                           p \in proofs}
            /\ UNCHANGED given
    /\ lastLease' = l
    /\ Keep /\ UNCHANGED <<disk, acknowledged, twice, epoch>>

Settle(p, job) ==
    LET before == db.job[p.job]
        late == db.left[before.lease] = 0 IN
    /\ Commit([db.job EXCEPT ![p.job] = [job EXCEPT !.by = p.token, !.wrong = IF late THEN "late" ELSE "no"]],
              {[verb |-> "settled", job |-> p.job, version |-> before.version + 1, proof |-> p]})
    /\ twice' = (twice \/ \E a \in pending : a.verb = "settled" /\ a.proof = p)
    /\ UNCHANGED <<given, lastLease>>

Unblocked(jobs) == [j \in Jobs |-> IF j = Child /\ jobs[j].state = "blocked" THEN [jobs[j] EXCEPT !.state = "waiting"] ELSE jobs[j]]

Done(p) ==
    LET job == [db.job[p.job] EXCEPT !.state = "done", !.succeeded = TRUE]
        after == [db.job EXCEPT ![p.job] = [job EXCEPT !.by = p.token,
                     !.wrong = IF db.left[db.job[p.job].lease] = 0 THEN "late" ELSE "no"]] IN
    /\ Holds(p)
    \* The transaction that ends the parent makes its child ready.
    /\ IF p.job = 1
       THEN /\ Commit(Unblocked(after), {[verb |-> "settled", job |-> p.job, version |-> db.job[p.job].version + 1, proof |-> p]})
            /\ twice' = (twice \/ \E a \in pending : a.verb = "settled" /\ a.proof = p)
            /\ UNCHANGED <<given, lastLease>>
       ELSE Settle(p, job)
    /\ Keep

Retried(p) ==
    /\ Holds(p)
    /\ db.job[p.job].attempt < MaxAttempts
    /\ Settle(p, [db.job[p.job] EXCEPT !.state = "waiting", !.wait = Delay])
    /\ Keep

(* `release`, or `snooze` with a delay w. `until`: ready earlier, as soon as the job has the signal. *)
Released(p, w, until) ==
    LET job == db.job[p.job]
        has == until /\ job.signal IN
    /\ Holds(p)
    /\ Settle(p, [job EXCEPT !.state = "waiting", !.deliveries = @ - 1,
                      !.wait = IF has /\ Broken # "a signal that came before is missed" THEN 0 ELSE w,
                      !.awaits = IF until THEN job.token ELSE @,
                      !.attempt = IF Broken = "a release counts" THEN @ ELSE @ - 1])
    /\ Spend

(* `fail`, or a nack at the last attempt. *)
DiedSettled(p) ==
    /\ Holds(p)
    /\ Settle(p, [db.job[p.job] EXCEPT !.state = "dead"])
    /\ Keep

Extended(l) ==
    /\ db.left[l] > 0
    /\ db.left[l] < LeaseTime
    /\ \E j \in Jobs : db.job[j].state = "leased" /\ db.job[j].lease = l
    /\ db' = [db EXCEPT !.left[l] = LeaseTime]
    /\ Spend /\ UNCHANGED <<disk, given, pending, acknowledged, twice, lastLease, epoch>>

(* A signal is sent to a job. If the job still waits for it (no later delivery), it becomes ready. *)
Signalled(j) ==
    LET job == db.job[j]
        mine == job.awaits = job.token \/ Broken = "a signal wakes any job"
        wakes == job.state = "waiting" /\ job.awaits > 0 /\ mine /\ job.wait > 0 IN
    /\ Signals
    /\ job.state \notin {"gone", "done"}
    /\ ~job.signal
    /\ Commit([db.job EXCEPT ![j] = [job EXCEPT !.signal = TRUE, !.wait = IF wakes THEN 0 ELSE @,
                   !.wrong = IF wakes /\ job.awaits # job.token THEN "early" ELSE @]], {Acknowledges(j)})
    /\ Keep /\ UNCHANGED <<given, twice, lastLease>>

---------------------------------------------------------------------------------------------------------------
(* Time: any claim, or the sweeper, takes over expired leases. *)

Over(j) == db.job[j].state = "leased" /\ (db.left[db.job[j].lease] = 0 \/ Broken = "takes over early") /\ Broken # "nobody takes over"
Cut(j) == IF db.left[db.job[j].lease] > 0 THEN "cut short" ELSE "no"

Expired(j) ==
    /\ Over(j)
    /\ db.job[j].attempt < MaxAttempts
    /\ Commit([db.job EXCEPT ![j] = [@ EXCEPT !.state = "waiting", !.lease = None, !.wrong = Cut(j),
                   !.attempt = IF Broken = "an expiry does not count" THEN @ - 1 ELSE @]], {})
    /\ Keep /\ UNCHANGED <<given, twice, lastLease>>

DiedExpired(j) ==
    /\ Over(j)
    /\ db.job[j].attempt >= MaxAttempts
    /\ Commit([db.job EXCEPT ![j] = [@ EXCEPT !.state = "dead", !.lease = None, !.wrong = Cut(j)]], {})
    /\ Keep /\ UNCHANGED <<given, twice, lastLease>>

Died == (\E p \in given : DiedSettled(p)) \/ (\E j \in Jobs : DiedExpired(j))

Gone(j, from) ==
    /\ db.job[j].state \in from
    /\ Commit([db.job EXCEPT ![j] = [@ EXCEPT !.state = "gone", !.lease = None]], {Acknowledges(j)})
    /\ UNCHANGED <<given, twice, lastLease>>

Retired(j) == Gone(j, {"done"}) /\ Keep
TtlPassed(j) == db.job[j].token = 0 /\ Gone(j, {"waiting"}) /\ Spend

Tick ==
    /\ \E l \in Leases : db.left[l] > 0
       \/ \E j \in Jobs : db.job[j].state = "waiting" /\ db.job[j].wait > 0
    /\ db' = [db EXCEPT !.left = [l \in Leases |-> IF @[l] > 0 THEN @[l] - 1 ELSE 0],
                        !.job = [j \in Jobs |-> [@[j] EXCEPT !.wait = IF @ > 0 THEN @ - 1 ELSE 0]]]
    /\ UNCHANGED <<disk, given, pending, acknowledged, twice, budget, lastLease, epoch>>

---------------------------------------------------------------------------------------------------------------
(* Administrators *)

Cancelled(j) == Gone(j, {"waiting", "leased"}) /\ Spend
Purged(j) == Gone(j, {"dead"}) /\ Spend

Replayed(j) ==
    /\ db.job[j].state = "dead"
    /\ Commit([db.job EXCEPT ![j] = [@ EXCEPT !.state = "waiting", !.attempt = 0, !.deliveries = 0, !.wait = 0, !.by = 0,
                   !.token = IF Broken = "a replay starts tokens again" THEN 0 ELSE @]], {Acknowledges(j)})
    /\ Spend /\ UNCHANGED <<given, twice, lastLease>>

QueuePaused ==
    /\ ~db.paused
    /\ db' = [db EXCEPT !.paused = TRUE]
    /\ Spend /\ UNCHANGED <<disk, given, pending, acknowledged, twice, lastLease, epoch>>

QueueResumed ==
    /\ db.paused
    /\ db' = [db EXCEPT !.paused = FALSE]
    /\ Keep /\ UNCHANGED <<disk, given, pending, acknowledged, twice, lastLease, epoch>>

---------------------------------------------------------------------------------------------------------------
(* Syncs and power losses *)

(* A sync: all waiting callers get their answers. *)
Synced ==
    /\ disk # db \/ pending # {}
    /\ disk' = db
    /\ acknowledged' = [j \in Jobs |-> LET mine == {a.version : a \in {b \in pending : b.job = j}} \cup {acknowledged[j]} IN
                   CHOOSE v \in mine : \A w \in mine : w <= v]
    /\ given' = given \cup {a.proof : a \in {b \in pending : b.verb = "claimed"}}
    /\ pending' = {}
    /\ UNCHANGED <<db, twice, budget, lastLease, epoch>>

(* A power loss; then the store is opened again. By the calendar, `passed` ticks have passed since its last write:
   perhaps none, if the calendar was set back, or too many, if it was set forward. *)
Crash(passed) ==
    /\ db' = [disk EXCEPT !.left = [l \in Leases |-> IF @[l] > passed THEN @[l] - passed ELSE 0],
                          !.job = [j \in Jobs |-> [@[j] EXCEPT !.wait = IF @ > passed THEN @ - passed ELSE 0]]]
    /\ disk' = db'
    /\ pending' = {}
    /\ epoch' = epoch + 1
    /\ Spend /\ UNCHANGED <<given, acknowledged, twice, lastLease>>

---------------------------------------------------------------------------------------------------------------

Claims == \E taken \in (SUBSET Jobs) \ {{}} : Claimed(taken)
Expiries == \E j \in Jobs : Expired(j) \/ DiedExpired(j)

Next ==
    \/ \E j \in Jobs, k \in Keys \cup {None}, w \in {0, Delay} : Enqueued(j, k, w)
    \/ Claims
    \/ \E p \in given : Done(p) \/ Retried(p) \/ \E w \in {0, Delay}, until \in {FALSE, Signals} : Released(p, w, until)
    \/ \E l \in Leases : Extended(l)
    \/ Died
    \/ \E j \in Jobs : Expired(j) \/ Retired(j) \/ TtlPassed(j) \/ Cancelled(j) \/ Purged(j) \/ Replayed(j) \/ Signalled(j)
    \/ QueuePaused
    \/ QueueResumed
    \/ Tick
    \/ Synced
    \/ \E passed \in 0..LeaseTime : Crash(passed)

Fairness == WF_vars(Claims) /\ WF_vars(Expiries) /\ WF_vars(Tick) /\ WF_vars(Synced) /\ WF_vars(QueueResumed)

Spec == Init /\ [][Next]_vars /\ Fairness

---------------------------------------------------------------------------------------------------------------
(* The promises of the README *)

(* "A job is settled only by the holder of its live lease." *)
OnlyTheHolderSettles == \A j \in Jobs : db.job[j].by \in {0, db.job[j].token}
OnlyWhileItLives == \A j \in Jobs : db.job[j].wrong # "late"

(* "At any time one delivery of a job is live." *)
OneLiveDelivery == \A p, q \in given : p.job = q.job /\ Holds(p) /\ Holds(q) => p = q

(* Fencing tokens: no two deliveries of a job have the same token. *)
TokensNeverRepeat == \A p, q \in given : p.job = q.job /\ p.token = q.token => p = q

(* A lease lasts as long as it was granted for. *)
LeasesAreKept == \A j \in Jobs : db.job[j].wrong # "cut short"

(* A delivery is settled once. *)
SettledOnce == ~twice

(* "max_attempts=3 is three deliveries, whatever ends each of them." *)
AttemptsAreDeliveries == \A j \in Jobs : db.job[j].attempt = db.job[j].deliveries /\ db.job[j].attempt <= MaxAttempts

(* "Every acknowledged write is there", also after a power loss. *)
AcknowledgedIsThere == \A j \in Jobs : db.job[j].version >= acknowledged[j]

(* "An idempotency key makes one job." *)
OneJobPerKey == \A i, j \in Jobs : i # j /\ db.job[i].key # None => db.job[i].key # db.job[j].key

(* "No job is delivered early", nor while its queue is paused. *)
NotEarly == \A j \in Jobs : db.job[j].wrong \notin {"early", "paused"}

(* A job is not delivered before its parent is done. *)
ParentsFirst == Child \in Jobs /\ db.job[Child].token > 0 => db.job[1].succeeded

(* A job that waits for a signal and has it is ready. *)
SignalsAreHeard == \A j \in Jobs :
    LET job == db.job[j] IN job.state = "waiting" /\ job.signal /\ job.awaits > 0 /\ job.awaits = job.token => job.wait = 0

(* "If a worker dies, its lease ends, and another worker gets the job": no job stays leased or waiting for ever. *)
EveryJobIsServed == \A j \in Jobs :
    /\ db.job[j].state = "waiting" ~> db.job[j].state # "waiting"
    /\ db.job[j].state = "leased" ~> db.job[j].state # "leased"

===============================================================================================================
