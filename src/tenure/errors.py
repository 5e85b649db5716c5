"""Every error Tenure raises, in one tree.

    TenureError
    ├── InvalidArgument         a value is outside what the store accepts              (also a ValueError)
    ├── SettingsError           an unknown or malformed setting, named                 (also a ValueError)
    ├── LeaseLost               the delivery no longer holds its job
    │   └── AlreadySettled      … because this delivery has already settled it
    ├── KeyConflict             an idempotency key is held by a job with another payload
    ├── QueueFull               the queue's max_waiting is reached
    ├── QueueNotEmpty           a queue cannot be deleted: it has jobs
    ├── QuotaExceeded           the tenant's waiting jobs or bytes have reached its quota
    ├── RateLimited             the tenant exceeds the rate of its quota
    ├── TooLarge                a payload, result or batch over its limit
    ├── WaitTimeout             wait_for ran out of time                               (also a TimeoutError)
    ├── JournalTrimmed          the requested events have been trimmed
    ├── SnapshotExpired         a named snapshot was not used for its time to live, or dropped
    ├── Unauthenticated         a server did not accept the caller: no token, or an invalid one
    ├── Forbidden               the caller's token does not allow this
    ├── TaskFailed              the result will never arrive: the job is dead, or was removed
    ├── NotFound                there is nothing at that address
    ├── StoreError              the store itself
    │   ├── OpenError           it could not be opened, and nothing on disk was changed
    │   │   ├── UnknownEngine
    │   │   ├── StoreLocked     another process owns it
    │   │   └── FormatError     it was written by a newer Tenure, or needs an upgrade, or is not ours
    │   ├── StoreClosed         it was closed, or this process is a fork of its owner
    │   ├── Unavailable         it cannot write any more (disk full, failed sync): reopen it
    │   └── Corrupt             stored bytes are damaged; never shown as an empty or a good answer
    └── (engines only)
        ├── Conflict            a transaction must run again
        └── CommitUnknown       whether it committed is not known

Errors carry facts as attributes; each docstring says what the caller should do next.
"""

from __future__ import annotations

from collections.abc import Sequence


class TenureError(Exception):
    """Base of every error raised by Tenure."""

    #: A stable name for programs (the server's problem details, the command line's exit code).
    code = "error"
    #: Seconds after which a retry may succeed. None: unknown, or a retry cannot succeed.
    retry_after: float | None = None


class InvalidArgument(TenureError, ValueError):
    """A value is outside what the store accepts. Nothing was written: correct the call."""

    code = "invalid_argument"


class SettingsError(TenureError, ValueError):
    """A setting is unknown or malformed. The message names it and where it came from."""

    code = "settings"


class LeaseLost(TenureError):
    """The delivery no longer holds its job: the lease expired, the job was cancelled, or another worker has claimed it.

    Stop working on the job and do not settle it again. Use `token` to fence writes to other systems.
    """

    code = "lease_lost"

    def __init__(
        self, job_id: str | None = None, token: int | None = None, detail: str = "its lease has ended"
    ) -> None:
        self.job_id = job_id
        self.token = token
        what = "the claim" if job_id is None else f"job {job_id} (token {token})"
        super().__init__(f"{what}: {detail}")


class AlreadySettled(LeaseLost):
    """This delivery has already settled its job. Nothing to do: the first call took effect."""

    code = "already_settled"

    def __init__(self, job_id: str | None = None, token: int | None = None) -> None:
        super().__init__(job_id, token, "this delivery was settled before")


class KeyConflict(TenureError):
    """An idempotency key is held by a job with another payload. Nothing of the call was written.

    `index` is the position of the rejected job in the call, `existing` the id of the job that holds the key.
    `conflicts` lists (index, existing) for every conflicting job of the call, including this one.
    """

    code = "key_conflict"

    def __init__(self, index: int, key: str, existing: str, conflicts: Sequence[tuple[int, str]] = ()) -> None:
        self.index = index
        self.key = key
        self.existing = existing
        #: One "index existing" line for each conflict: the protocol sends an error's attributes as text and numbers
        #: only.
        self.listed: str | None = "\n".join([f"{at} {job}" for at, job in conflicts or [(index, existing)]])
        super().__init__(
            f"job {index} of the call: key {key!r} belongs to job {existing}, which has another payload"
            " (on_conflict='keep' returns that job instead)"
        )

    @property
    def conflicts(self) -> list[tuple[int, str]]:
        if not self.listed:  # an older server does not send it
            return [(self.index, self.existing)]
        pairs = [line.split(" ", 1) for line in self.listed.split("\n")]
        return [(int(index), existing) for index, existing in pairs]

    def at(self, indexes: Sequence[int]) -> KeyConflict:
        """Return the same conflict with positions translated: the caller's i-th job has index `indexes[i]`."""
        conflicts = [(indexes[index], existing) for index, existing in self.conflicts]
        return KeyConflict(indexes[self.index], self.key, self.existing, conflicts)


class QueueFull(TenureError):
    """The queue's `max_waiting` is reached. Nothing was written: try again later, or raise the limit."""

    code = "queue_full"

    def __init__(self, queue: str, waiting: int, limit: int) -> None:
        self.queue = queue
        self.waiting = waiting
        self.limit = limit
        super().__init__(f"queue {queue!r} is full: it has {waiting} waiting jobs, and its limit is {limit}")


class QueueNotEmpty(TenureError):
    """The queue still has jobs, so it was not deleted.

    Settle the leased jobs. Replay or purge the others, or drop them with `force`.
    """

    code = "queue_not_empty"

    def __init__(self, queue: str, leased: int, waiting: int, dead: int, done: int = 0) -> None:
        self.queue = queue
        self.leased = leased
        self.waiting = waiting
        self.dead = dead
        by_state = {"held": leased, "waiting": waiting, "dead": dead, "done": done}
        counts = ", ".join(f"{count} {what}" for what, count in by_state.items() if count)
        super().__init__(f"queue {queue!r} is not deleted: it has jobs ({counts})")


class QuotaExceeded(TenureError):
    """The tenant's waiting jobs or bytes have reached its quota.

    Nothing was written: try again once some jobs are done.
    """

    code = "quota_exceeded"
    #: A guess: when room becomes free is unknown.
    retry_after = 1.0

    def __init__(self, tenant: str, what: str, used: int, limit: int) -> None:
        self.tenant = tenant
        self.what = what
        self.used = used
        self.limit = limit
        super().__init__(f"tenant {tenant!r} has {used:,} {what}, and its quota is {limit:,}")


class RateLimited(TenureError):
    """The tenant exceeds the request rate of its quota. Nothing was written.

    Try again, as a new request, after `retry_after` seconds.
    """

    code = "rate_limited"

    retry_after: float

    def __init__(self, tenant: str, retry_after: float) -> None:
        self.tenant = tenant
        self.retry_after = retry_after
        super().__init__(f"tenant {tenant!r} is over its rate: try again in {retry_after:g} s")


class TooLarge(TenureError):
    """A payload, result or batch exceeds its size limit, in bytes; "the number of …" its limit.

    Nothing was written: keep large data elsewhere and enqueue a reference to it.
    """

    code = "too_large"

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what = what
        self.size = size
        self.limit = limit
        unit = "" if what.startswith("the number of") else " bytes"
        super().__init__(f"{what} {'are' if what.endswith('s') else 'is'} {size:,}{unit}, over the limit of {limit:,}")


class WaitTimeout(TenureError, TimeoutError):
    """`wait_for` ran out of time. The job has not ended: wait again, or read its state with `get`."""

    code = "wait_timeout"

    def __init__(self, job_id: str, seconds: float) -> None:
        self.job_id = job_id
        self.seconds = seconds
        super().__init__(f"job {job_id} had not ended after {seconds:g} s")


class JournalTrimmed(TenureError):
    """The requested events have been trimmed from the journal.

    Read the current state, then continue from the cursor `oldest`.
    """

    code = "journal_trimmed"

    def __init__(self, oldest: str) -> None:
        self.oldest = oldest
        super().__init__(f"the journal begins at cursor {oldest!r}: earlier events have been trimmed")


class Unauthenticated(TenureError):
    """The request had no token, or the server rejected it.

    Get a new token (`tenure token` makes them for development).
    """

    code = "unauthenticated"


class Forbidden(TenureError):
    """The token is valid but lacks the scope that the message names.

    Nothing was done: ask for a token with that scope.
    """

    code = "forbidden"


class SnapshotExpired(TenureError):
    """A named snapshot has expired or was dropped. Take a new one with a longer `ttl`, and read from it."""

    code = "snapshot_expired"

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"snapshot {id!r} is no longer kept: it was not used for its time to live, or was dropped")


class TaskFailed(TenureError):
    """The result of a task will never arrive.

    `reason` says why: the job is dead (`failed` or `max_attempts`; `error` is its last error), `removed`, or `unknown`.
    Replay a dead job once its cause is fixed. An unknown job may be in a queue that was not searched.
    """

    code = "task_failed"

    def __init__(self, job_id: str, task: str, reason: str, error: str | None) -> None:
        self.job_id = job_id
        self.task = task
        self.reason = reason
        self.error = error
        what = {
            "removed": "was removed",
            "unknown": "is unknown: the queues it may be in have no trace of it",
            "max_attempts": "failed at its last attempt",
        }.get(reason, "failed")
        super().__init__(f"task {task} (job {job_id}) {what}" + (f": {error}" if error else ""))


class NotFound(TenureError):
    """Nothing exists at that address, or the caller may not see it."""

    code = "not_found"


class StoreError(TenureError):
    """The store failed, not the call."""

    code = "store"


class OpenError(StoreError):
    """The store could not be opened. Nothing on disk was changed."""

    code = "open"


class UnknownEngine(OpenError):
    """No storage engine has that name."""

    code = "unknown_engine"


class StoreLocked(OpenError):
    """Another process owns the store. `owner` names that process: stop it, or use the store through it."""

    code = "store_locked"

    def __init__(self, path: str, owner: str, advice: str) -> None:
        self.path = path
        self.owner = owner
        super().__init__(f"{path} is in use by {owner}. {advice}")


class FormatError(OpenError):
    """The folder is in another format: written by a newer Tenure, by an older one (run `tenure upgrade`), or not a
    store.
    """

    code = "format"


class StoreClosed(StoreError):
    """The store was closed, or this process is a fork of the one that opened it. Open the store again."""

    code = "store_closed"


class Unavailable(StoreError):
    """The store can no longer serve (disk full, failed sync, lost connection).

    Fix the cause, then open the store again.
    """

    code = "unavailable"


class Corrupt(StoreError):
    """Stored bytes are damaged. `job_id` names the job if it is known. Run `check`, or restore a snapshot."""

    code = "corrupt"

    def __init__(self, detail: str, job_id: str | None = None, key: bytes | None = None) -> None:
        self.job_id = job_id
        self.detail = detail
        #: The damaged row's key, if the engine knows it: a scan can continue after it.
        self.key = key
        super().__init__(detail if job_id is None else f"job {job_id}: {detail}")


class Conflict(TenureError):
    """Raised by engines only: the transaction conflicts with another write and must run again."""

    code = "conflict"


class CommitUnknown(TenureError):
    """Raised by engines only: the connection was lost during a commit, which may have succeeded.

    The caller finds out by looking for the ids that it chose before the commit.
    """

    code = "commit_unknown"
