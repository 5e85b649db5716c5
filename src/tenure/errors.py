"""Every error Tenure raises, in one tree.

    TenureError
    ├── InvalidArgument         a value no store would take; nothing was written       (also a ValueError)
    ├── SettingsError           an unknown or malformed setting, named                 (also a ValueError)
    ├── LeaseLost               the delivery no longer holds its job
    │   └── AlreadySettled      … because this very delivery settled it before
    ├── KeyConflict             an idempotency key was seen with another payload
    ├── QueueFull               the queue's max_waiting is reached
    ├── QueueNotEmpty           a queue cannot be deleted: it has jobs
    ├── QuotaExceeded           the tenant has as much waiting as it may
    ├── RateLimited             the tenant is faster than it may be
    ├── TooLarge                a payload, result or batch over its limit
    ├── WaitTimeout             wait_for ran out of time                               (also a TimeoutError)
    ├── JournalTrimmed          the events asked for are no longer kept
    ├── SnapshotExpired         a named snapshot was not used for its time to live, or dropped
    ├── Unauthenticated         a server does not know the caller: no token, or one it does not take
    ├── Forbidden               a server knows the caller, and the token does not allow this
    ├── TaskFailed              the result asked for will not come: the job is dead, or was removed
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
    #: Seconds after which it is worth trying again; None: nobody knows, or it is not.
    retry_after: float | None = None


class InvalidArgument(TenureError, ValueError):
    """A value no store would take. Nothing was written: correct the call."""

    code = "invalid_argument"


class SettingsError(TenureError, ValueError):
    """A setting is unknown or malformed. The message names it and where it came from."""

    code = "settings"


class LeaseLost(TenureError):
    """The delivery no longer holds its job: it expired, was cancelled, or another worker has it.

    Stop working on the job and do not settle it again. Effects elsewhere should be fenced by `token`.
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
    """This very delivery settled its job before. Nothing to do: the first call took effect."""

    code = "already_settled"

    def __init__(self, job_id: str | None = None, token: int | None = None) -> None:
        super().__init__(job_id, token, "this delivery was settled before")


class KeyConflict(TenureError):
    """An idempotency key was seen with another payload. Nothing of the call was written.

    `index` is the job's place in the call, `existing` the id of the job that holds the key. `conflicts` lists (index,
    existing) of every job of the call whose key is held that way, the first one included.
    """

    code = "key_conflict"

    def __init__(self, index: int, key: str, existing: str, conflicts: Sequence[tuple[int, str]] = ()) -> None:
        self.index = index
        self.key = key
        self.existing = existing
        #: One line a conflict, "index existing": facts of errors travel as text and numbers.
        self.listed: str | None = "\n".join([f"{at} {job}" for at, job in conflicts or [(index, existing)]])
        super().__init__(f"job {index} of the call: key {key!r} belongs to job {existing}, which has another payload")

    @property
    def conflicts(self) -> list[tuple[int, str]]:
        if not self.listed:  # told by an older server
            return [(self.index, self.existing)]
        pairs = [line.split(" ", 1) for line in self.listed.split("\n")]
        return [(int(index), existing) for index, existing in pairs]

    def at(self, indexes: Sequence[int]) -> KeyConflict:
        """The same conflict for a caller whose i-th job stands at `indexes[i]`."""
        conflicts = [(indexes[index], existing) for index, existing in self.conflicts]
        return KeyConflict(indexes[self.index], self.key, self.existing, conflicts)


class QueueFull(TenureError):
    """The queue's `max_waiting` is reached. Nothing was written: try again later, or raise the limit."""

    code = "queue_full"

    def __init__(self, queue: str, waiting: int, limit: int) -> None:
        self.queue = queue
        self.waiting = waiting
        self.limit = limit
        super().__init__(f"queue {queue!r} has {waiting} waiting jobs and takes {limit}")


class QueueNotEmpty(TenureError):
    """A queue has jobs, and is not deleted. Settle those that are held; drop the others with `force`, or replay or purge them."""

    code = "queue_not_empty"

    def __init__(self, queue: str, leased: int, waiting: int, dead: int, done: int = 0) -> None:
        self.queue = queue
        self.leased = leased
        self.waiting = waiting
        self.dead = dead
        told = {"held": leased, "waiting": waiting, "dead": dead, "done": done}
        counts = ", ".join(f"{count} {what}" for what, count in told.items() if count)
        super().__init__(f"queue {queue!r} is not deleted: it has jobs ({counts})")


class QuotaExceeded(TenureError):
    """The tenant has as much waiting as its quota lets it. Nothing was written: try again once some of it is done."""

    code = "quota_exceeded"
    #: Seconds after which to try again: nobody knows when there is room, and a second is soon enough.
    retry_after = 1.0

    def __init__(self, tenant: str, what: str, used: int, limit: int) -> None:
        self.tenant = tenant
        self.what = what
        self.used = used
        self.limit = limit
        super().__init__(f"tenant {tenant!r} has {used:,} {what}, and its quota is {limit:,}")


class RateLimited(TenureError):
    """The tenant is faster than its quota lets it. Nothing was written: try again, as a new request, in `retry_after` seconds."""

    code = "rate_limited"

    retry_after: float

    def __init__(self, tenant: str, retry_after: float) -> None:
        self.tenant = tenant
        self.retry_after = retry_after
        super().__init__(f"tenant {tenant!r} is over its rate: try again in {retry_after:g} s")


class TooLarge(TenureError):
    """Something is over its size limit. Nothing was written: keep large data elsewhere and enqueue a reference."""

    code = "too_large"

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what = what
        self.size = size
        self.limit = limit
        super().__init__(f"{what} is {size:,} bytes, and at most {limit:,} are taken")


class WaitTimeout(TenureError, TimeoutError):
    """`wait_for` ran out of time. The job is still on its way: wait again, or look with `get`."""

    code = "wait_timeout"

    def __init__(self, job_id: str, seconds: float) -> None:
        self.job_id = job_id
        self.seconds = seconds
        super().__init__(f"job {job_id} had not ended after {seconds:g} s")


class JournalTrimmed(TenureError):
    """The events asked for are no longer kept. Start again from `oldest`, after reading the tables' state."""

    code = "journal_trimmed"

    def __init__(self, oldest: str) -> None:
        self.oldest = oldest
        super().__init__(f"the journal is kept from cursor {oldest!r} on; what was before it has been trimmed")


class Unauthenticated(TenureError):
    """A server did not take the token, or there was none. Get a new one (`tenure token` makes them for development)."""

    code = "unauthenticated"


class Forbidden(TenureError):
    """The token is good and does not allow this. Nothing was done: ask for a token with the scope the message names."""

    code = "forbidden"


class SnapshotExpired(TenureError):
    """A named snapshot is no longer kept. Take a new one, with a longer time to live, and read again from it."""

    code = "snapshot_expired"

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"snapshot {id!r} is no longer kept: it was not used for its time to live, or was dropped")


class TaskFailed(TenureError):
    """A task's result will not come: its job is dead (`reason` failed or max_attempts, `error` the last one), removed or unknown.

    A dead job can be replayed once its cause is mended; a removed one is gone; an unknown one may be in a queue that was not
    looked at.
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
    """There is nothing at that address, or nothing the caller may know of."""

    code = "not_found"


class StoreError(TenureError):
    """Something is wrong with the store, not with the call."""

    code = "store"


class OpenError(StoreError):
    """The store could not be opened. Nothing on disk was changed."""

    code = "open"


class UnknownEngine(OpenError):
    """No engine goes by that name."""

    code = "unknown_engine"


class StoreLocked(OpenError):
    """Another process owns the store. `owner` says who; stop it, or use the store through it."""

    code = "store_locked"

    def __init__(self, path: str, owner: str, advice: str) -> None:
        self.path = path
        self.owner = owner
        super().__init__(f"{path} is in use by {owner}. {advice}")


class FormatError(OpenError):
    """The folder holds another format: a newer Tenure's, an older one's (`tenure upgrade`), or not a store."""

    code = "format"


class StoreClosed(StoreError):
    """The store was closed, or this process is a fork of the one that opened it. Open it anew."""

    code = "store_closed"


class Unavailable(StoreError):
    """The store cannot go on (disk full, failed sync, lost connection). Mend the cause, then open it again."""

    code = "unavailable"


class Corrupt(StoreError):
    """Stored bytes are damaged. `job_id` names the job where one is known. Run `check`, or restore a snapshot."""

    code = "corrupt"

    def __init__(self, detail: str, job_id: str | None = None, key: bytes | None = None) -> None:
        self.job_id = job_id
        self.detail = detail
        #: The stored key, where an engine could tell: a scan may go on behind it.
        self.key = key
        super().__init__(detail if job_id is None else f"job {job_id}: {detail}")


class Conflict(TenureError):
    """Raised by engines only: the transaction met another's write and must run again."""

    code = "conflict"


class CommitUnknown(TenureError):
    """Raised by engines only: the connection was lost while committing. Find out by the ids chosen before."""

    code = "commit_unknown"
