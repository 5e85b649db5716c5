"""Every stored key. Format 2; numbers are big-endian, times are milliseconds. `docs/keyspace.md` explains it.

    space        key                                             value
    meta         name (ASCII)                                    settings: clock, next queue number, consumers
                 "write/", digest of the write's id 16, part u16 the progress of a staged write; its manifest (parts 1…)
                 "load/", digest of the write's id 16            a bulk load that must be finished first
                 "schedule/", tenant (length-prefixed), name     a schedule
    queues       tenant, queue (each length-prefixed)            number, policy, paused
    jobs         queue u32, job 16                               the immutable fields, and the payload's first part
    payload      queue u32, job 16, part u16                     further parts (1…), and a result's (0x8000…)
    state        queue u32, job 16                               the mutable fields, fixed-width
    notes        queue u32, job 16                               last error, progress, result
    ready        queue u32, 9-priority u8, visible_at u64, job   – (an index row has no value); jobs that have a group
                 queue u32, 25-priority u8, visible_at u64, job  – have tiers of their own
    leases       queue u32, lease 16                             expiry, worker, open, lost: fixed-width
    lease_jobs   queue u32, lease 16                             the jobs under the lease, written once
                 queue u32, lease 16, job 16                     – : one of them that was cancelled while leased
    claims       queue u32, digest of the claim's id 16          its lease, and a digest of its arguments
    due          kind u8, time u64, queue u32, reference 16      – : the sweeper's work, earliest first
    done, dead   queue u32, ended_at u64, job                    –
    dedup        queue u32, digest of the key 16                 job, digest of the payload, expiry
    counters     queue u32, counter u8                           u64
    journal      commit u64                                      the events of one transaction
    requests     digest of the request's id 16, part u16         its outcome, for ten minutes; further parts (1…)
    limits       kind u8, queue or meter u32                     a rate's bucket: when it is full again
    segments     queue u32, last job 16                          ids and payloads of jobs that were enqueued together
    segment_state  queue u32, last job 16                        the mutable fields that all of them share
    segment_ready  as ready, for its first job                   its last job, while it waits
    job_queues   job 16                                          queue u32, for jobs whose id does not hold it
    turns        0 u8, scope 8, virtual time u64, sub-queue      – : sub-queues with work, in the order of their turns
                 1 u8, scope 8, sub-queue                        its status, virtual time, and when it has work again;
                                                                 those of groups are in `groups`
    group_ready  queue u32, group 16, 9-priority u8, visible_at u64, job   – : waiting jobs that have a group, by group
    groups       queue u32, group 16                             counts, the state of its limits, its name, its turns
    blocked      queue u32, job 16                               how many of its parents have not ended
    children     queue u32, job 16, queue u32, child 16          – : a job, and a job that waits for it
                 0 u32, queue u32, last job 16, queue u32, child 16   which of up to 100 jobs are its parents
    parents      queue u32, job 16, place u32                    up to 500 of its parents, from that index on
                 queue u32, job 16, place u32, queue u32, parent 16   – : one parent; older stores only
    segment_groups  as group_ready, for its first job            its last job, while it waits and its jobs have a group
    steps        queue u32, job 16                               number of its steps and signals, the awaited signal
                 queue u32, job 16, kind u8, digest of the name 16   a step, or a signal: its name and value

`due` starts with the kind, so that a claim finds expired leases without scanning retention rows (ADR 0003).
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

Space = int
"""A part of the keyspace, which an engine maps to a column family, a named database or a prefix."""

META: Space = 0
QUEUES: Space = 1
JOBS: Space = 2
PAYLOAD: Space = 3
STATE: Space = 4
NOTES: Space = 5
READY: Space = 6
LEASES: Space = 7
LEASE_JOBS: Space = 8
CLAIMS: Space = 9
DUE: Space = 10
DONE: Space = 11
DEAD: Space = 12
DEDUP: Space = 13
COUNTERS: Space = 14
JOURNAL: Space = 15
REQUESTS: Space = 16
LIMITS: Space = 17
SEGMENTS: Space = 18
SEGMENT_STATE: Space = 19
SEGMENT_READY: Space = 20
JOB_QUEUES: Space = 21
TURNS: Space = 22
GROUP_READY: Space = 23
GROUPS: Space = 24
BLOCKED: Space = 25
CHILDREN: Space = 26
PARENTS: Space = 27
STEPS: Space = 28
SEGMENT_GROUPS: Space = 29

#: Names by number. Stored (as column families and named databases): do not rename, only append.
NAMES = (
    "meta", "queues", "jobs", "payload", "state", "notes", "ready", "leases", "lease_jobs", "claims", "due",
    "done", "dead", "dedup", "counters", "journal", "requests", "limits",
    "segments", "segment_state", "segment_ready", "job_queues", "turns", "group_ready", "groups",
    "blocked", "children", "parents", "steps", "segment_groups",
)  # fmt: skip

#: Used only by engines with one writer (`storage.segments`); empty in the others.
SEGMENT_SPACES = (SEGMENTS, SEGMENT_STATE, SEGMENT_READY, SEGMENT_GROUPS)
#: The spaces that every engine uses.
EVERYWHERE = tuple(space for space in range(len(NAMES)) if space not in SEGMENT_SPACES)

#: Spaces that are consumed in key order, and how many bytes of a key are the prefix of its front. Engines that leave
#: tombstones cache where each front starts (`scan_heads`).
FRONTS = {READY: 5, DUE: 1, JOURNAL: 0, SEGMENT_READY: 5, TURNS: 9, GROUP_READY: 21, SEGMENT_GROUPS: 21}

FORMAT = 2
LAST = b"\xff" * 48  # greater than every key of every space: the longest key that may begin like this has 45 bytes


class Due(IntEnum):
    """Kinds of due rows. Stored on disk: do not renumber."""

    LEASE = 1
    TTL = 2
    RETENTION = 3
    DEDUP = 4
    CLAIM = 5
    WRITE = 6
    REQUEST = 7
    TURN = 8


class Limit(IntEnum):
    """Kinds of rows of `limits`. Stored on disk: do not renumber."""

    QUEUE_RATE = 1
    TENANT_RATE = 2
    TENANT_REQUESTS = 3


class Counter(IntEnum):
    """Counters of a queue. Stored on disk: do not renumber."""

    WAITING = 1
    LEASED = 2
    DONE = 3
    DEAD = 4
    ENQUEUED = 5
    REMOVED = 6
    BLOCKED = 10


class Usage(IntEnum):
    """Counters of a tenant with a quota, kept under its meter's number. Stored on disk: do not renumber."""

    JOBS = 7
    #: Bytes of waiting jobs only. Stores from before 2026-11 have it instead of STORED, until they are next opened.
    BYTES = 8
    STORED = 9


_QUEUE = Struct(">I")
_QUEUE_ID = Struct(">I16s")
_QUEUE_ID_PART = Struct(">I16sH")
_READY = Struct(">IBQ16s")
_READY_TIME = Struct(">IBQ")
_DUE = Struct(">BQI16s")
_DUE_TIME = Struct(">BQ")
_ENDED = Struct(">IQ16s")
_ENDED_TIME = Struct(">IQ")
_COUNTER = Struct(">IB")
_COMMIT = Struct(">Q")
_REQUEST = Struct(">16sH")
_LIMIT = Struct(">BI")

#: Part numbers in `payload`: a payload's further parts start at 1, a result's here.
RESULT_PARTS = 0x8000
MAX_TIME = 2**64 - 1
MAX_QUEUE = 2**32 - 1


def queue_row(tenant: str, queue: str) -> bytes:
    t, q = tenant.encode(), queue.encode()
    return bytes((len(t),)) + t + bytes((len(q),)) + q


def split_queue_row(key: bytes) -> tuple[str, str]:
    size = key[0]
    return key[1 : 1 + size].decode(), key[2 + size :].decode()


def tenant_range(tenant: str) -> tuple[bytes, bytes]:
    t = tenant.encode()
    prefix = bytes((len(t),)) + t
    return prefix, prefix + b"\xff"


def queue_prefix(queue: int) -> bytes:
    return _QUEUE.pack(queue)


def queue_of(key: bytes) -> int:
    """The number of the queue that a key starts with."""
    number: int = _QUEUE.unpack_from(key)[0]
    return number


def queue_range(queue: int) -> tuple[bytes, bytes]:
    """All rows of one queue, in any space whose key starts with its number."""
    return _QUEUE.pack(queue), _QUEUE.pack(queue + 1) if queue < MAX_QUEUE else LAST


#: jobs, state, notes, leases, lease_jobs, claims, dedup: queue number and 16 bytes.
of_queue = _QUEUE_ID.pack
split_of_queue = _QUEUE_ID.unpack

payload_part = _QUEUE_ID_PART.pack


def lost_job(queue: int, lease: bytes, job: bytes) -> bytes:
    return _QUEUE_ID.pack(queue, lease) + job


def lost_range(queue: int, lease: bytes) -> tuple[bytes, bytes]:
    at = _QUEUE_ID.pack(queue, lease)
    return at + b"\0", at + b"\xff" * 17


def payload_range(queue: int, job: bytes, first: int, count: int) -> tuple[bytes, bytes]:
    return payload_part(queue, job, first), payload_part(queue, job, first + count)


#: Added to the tier of a job that has a group: equal to the flag in its state (`records.HAS_GROUP`).
GROUPED = 16


#: As `ready`, of a tier: 9 - priority, and `GROUPED` more for a job that has a group.
pack_ready = _READY.pack


def ready(queue: int, priority: int, visible_at_ms: int, job: bytes, grouped: int = 0) -> bytes:
    """A row of `ready`. `grouped`: 0, or `GROUPED` for a job that has a group."""
    return _READY.pack(queue, 9 - priority + grouped, visible_at_ms, job)


def ready_from(queue: int, priority: int, visible_at_ms: int, grouped: int = 0) -> bytes:
    """The prefix of the rows of one priority and visibility time; the job follows. `grouped` as in `ready`."""
    return _READY_TIME.pack(queue, 9 - priority + grouped, visible_at_ms)


class ReadyKey(NamedTuple):
    queue: int
    priority: int
    visible_at_ms: int
    job: bytes
    #: 0, or `GROUPED`.
    grouped: int = 0


def split_ready(key: bytes) -> ReadyKey:
    queue, tier, visible_at_ms, job = _READY.unpack(key)
    return ReadyKey(queue, 9 - tier % GROUPED, visible_at_ms, job, tier - tier % GROUPED)


READY_JOB = slice(13, 29)  # the job's id in a ready key


def ready_prefix(queue: int, priority: int, grouped: int = 0) -> bytes:
    return _COUNTER.pack(queue, 9 - priority + grouped)


def ready_until(queue: int, priority: int, time_ms: int, grouped: int = 0) -> bytes:
    """The end of the rows of this tier that are visible at `time_ms`."""
    return _READY_TIME.pack(queue, 9 - priority + grouped, time_ms + 1)


def ready_tier_end(queue: int, priority: int, grouped: int = 0) -> bytes:
    return _COUNTER.pack(queue, 10 - priority + grouped)


#: Kind, time, queue number, reference.
due = _DUE.pack


class DueKey(NamedTuple):
    kind: int
    time_ms: int
    queue: int
    reference: bytes


def split_due(key: bytes) -> DueKey:
    return DueKey(*_DUE.unpack(key))


def due_prefix(kind: Due) -> bytes:
    return bytes((kind,))


def due_until(kind: int, time_ms: int) -> bytes:
    return _DUE_TIME.pack(kind, time_ms + 1)


def due_end(kind: Due) -> bytes:
    return bytes((kind + 1,))


def ended(queue: int, ended_at_ms: int, job: bytes) -> bytes:
    """A row of `done` or `dead`."""
    return _ENDED.pack(queue, ended_at_ms, job)


def ended_from(queue: int, ended_at_ms: int) -> bytes:
    return _ENDED_TIME.pack(queue, ended_at_ms)


def split_ended(key: bytes) -> tuple[int, int, bytes]:
    return _ENDED.unpack(key)


#: Queue number and counter.
counter = _COUNTER.pack


commit = _COMMIT.pack


def split_commit(key: bytes) -> int:
    number: int = _COMMIT.unpack(key)[0]
    return number


_WRITE = Struct(">6s16sH")


def write_row(write: bytes, part: int) -> bytes:
    """A row of `meta`: part 0 is the progress of a staged write, parts 1… are its manifest."""
    return _WRITE.pack(b"write/", write, part)


def write_range(write: bytes) -> tuple[bytes, bytes]:
    return write_row(write, 0), write_row(write, 0xFFFF)


_REFUSALS = Struct(">8s16sQ")


def refusals_row(write: bytes, chunk: int) -> bytes:
    """A row of `meta`: the jobs left out of a chunk of a staged write."""
    return _REFUSALS.pack(b"refused/", write, chunk)


def refusals_range(write: bytes) -> tuple[bytes, bytes]:
    return refusals_row(write, 0), refusals_row(write, 2**64 - 1)


_QUOTA = b"quota/"


def write_rows() -> tuple[bytes, bytes]:
    """The range of all staged writes' rows."""
    return b"write/", b"write0"


def is_write_head(key: bytes) -> bool:
    """Whether a row of `write_rows` is part 0, the progress of the write."""
    return len(key) == _WRITE.size and key.endswith(b"\0\0")


def quota_row(tenant: str) -> bytes:
    """A row of `meta`: a tenant's quota."""
    return _QUOTA + tenant.encode()


def is_quota_row(key: bytes) -> bool:
    return key.startswith(_QUOTA)


def split_quota_row(key: bytes) -> str:
    return key[len(_QUOTA) :].decode()


def quota_range() -> tuple[bytes, bytes]:
    return _QUOTA, _QUOTA + b"\xff"


_SCHEDULE = b"schedule/"


def schedule_row(tenant: str, name: str) -> bytes:
    """A row of `meta`: a schedule."""
    return _SCHEDULE + tenant_range(tenant)[0] + name.encode()


def schedule_range(tenant: str | None) -> tuple[bytes, bytes]:
    """The range of one tenant's schedules, or of all."""
    prefix = _SCHEDULE if tenant is None else _SCHEDULE + tenant_range(tenant)[0]
    return prefix, prefix + b"\xff"


# ── parents and children ─────────────────────────────────────────────────────────────────────────────────────────────

_CHILD = Struct(">I16sI16s")
_CHILD_BLOCK = Struct(">II16sI16s")
_PARENTS = Struct(">I16sI")
_PARENT = Struct(">I16sII16s")

#: Queue number and id of a job, then of its child.
child = _CHILD.pack


def child_block(last: bytes) -> bytes:
    """The prefix of the blocks with this last job (a key of `of_queue`); the child's key of `of_queue` follows."""
    return b"\0\0\0\0" + last


def is_child_block(key: bytes) -> bool:
    """Whether a row of `children` is a block."""
    return len(key) == _CHILD_BLOCK.size


def split_child_block(key: bytes) -> tuple[bytes, bytes]:
    """The last job and the child of a block, as keys of `of_queue`."""
    return key[4:24], key[24:]


#: Queue number and id of a job, the parent's index among its parents, queue number and id of the parent.
parent = _PARENT.pack


def parent_row(child: bytes, place: int, parent: bytes) -> bytes:
    """As `parent`, for two jobs given as keys of `of_queue`."""
    return child + place.to_bytes(4, "big") + parent


def parents_row(child: bytes, place: int) -> bytes:
    """The row of a job's parents from index `place` on; the job as a key of `of_queue`."""
    return child + place.to_bytes(4, "big")


def is_parents_row(key: bytes) -> bool:
    """Whether a row of `parents` has several parents in its value; else it has one in its key."""
    return len(key) == _PARENTS.size


def job_range(queue: int, job: bytes) -> tuple[bytes, bytes]:
    """The range of one job's rows in `children`, `parents` or `steps`."""
    at = _QUEUE_ID.pack(queue, job)
    return at, at + b"\xff" * 25


# ── steps and signals ────────────────────────────────────────────────────────────────────────────────────────────────

_STEP = Struct(">I16sB16s")


class StepRow(IntEnum):
    """Kinds of rows of `steps`, except the first row of a job. Stored on disk: do not renumber."""

    STEP = 1
    SIGNAL = 2


def step(queue: int, job: bytes, kind: StepRow, name: str) -> bytes:
    """The row of a step or a signal. The job's own row, `of_queue(queue, job)`, sorts before them."""
    return _STEP.pack(queue, job, kind, digest(name.encode()))


def step_kind(key: bytes) -> StepRow | None:
    """The kind of a row of `steps`; None: the job's own row."""
    return StepRow(key[20]) if len(key) == _STEP.size else None


# ── turns: the tenants of the store, the queues of a tenant ──────────────────────────────────────────────────────────

_TURN = Struct(">B8sQ")
#: The bytes before the sub-queue in a row of the order of turns.
TURN_BYTES = _TURN.size
#: The reference of a due row of kind TURN that is for a queue.
QUEUE_TURN = b"\xff" * 16
#: The scope whose sub-queues are tenants; a tenant's sub-queue is the scope of its queues.
TENANT_TURNS = bytes(8)


def queue_turns(tenant: str) -> bytes:
    """The scope whose sub-queues are a tenant's queues; a queue's sub-queue is its number."""
    return b"\1" + digest(tenant.encode())[:7]


def turn(scope: bytes, virtual_time: int, sub: bytes) -> bytes:
    return _TURN.pack(0, scope, virtual_time) + sub


def split_turn(key: bytes) -> tuple[int, bytes]:
    """The virtual time, and the sub-queue."""
    return int.from_bytes(key[9:17], "big"), key[17:]


@lru_cache(20_000)
def turn_range(scope: bytes) -> tuple[bytes, bytes]:
    """The range of a scope's sub-queues that have a turn."""
    begin = b"\0" + scope
    return begin, begin + b"\xff" * 25


def turn_place(scope: bytes, sub: bytes) -> bytes:
    return b"\1" + scope + sub


def turn_places(scope: bytes) -> tuple[bytes, bytes]:
    """The range of a scope's places."""
    begin = b"\1" + scope
    return begin, begin + b"\xff" * 25


# ── groups: the groups of one priority of a queue take turns ─────────────────────────────────────────────────────────

_GROUP_TIER = Struct(">I16sB")
_GROUP_READY = Struct(">I16sBQ16s")
_GROUP_READY_TIME = Struct(">I16sBQ")
_GROUP_SCOPE = Struct(">BIBH")
_GROUP_TURNS, _PARKED_GROUPS = 2, 3

#: Queue number, digest of the group's name, 9 − priority, visible_at, job.
group_ready = _GROUP_READY.pack
#: The prefix of the rows of one group, priority and visibility time; the job follows.
group_ready_from = _GROUP_READY_TIME.pack
#: The prefix of a group's rows of one priority: queue number, digest of the group's name, 9 − priority.
group_tier = _GROUP_TIER.pack


def split_group_ready(key: bytes) -> tuple[int, bytes, int, int, bytes]:
    """Queue number, group, tier, visible_at, job."""
    return _GROUP_READY.unpack(key)


def group_tier_end(queue: int, group: bytes, tier: int) -> bytes:
    return _GROUP_TIER.pack(queue, group, tier + 1)


def group_range(queue: int, group: bytes) -> tuple[bytes, bytes]:
    """The range of a group's waiting jobs."""
    return _GROUP_TIER.pack(queue, group, 0), _GROUP_TIER.pack(queue, group, 255)


@lru_cache(20_000)
def group_turns(queue: int, tier: int) -> bytes:
    """The scope whose sub-queues are the groups of one priority of a queue."""
    return _GROUP_SCOPE.pack(_GROUP_TURNS, queue, tier, 0)


def split_group_turns(scope: bytes) -> tuple[int, int] | None:
    """Queue number and tier of a scope of `group_turns`; None for another scope."""
    kind, queue, tier, _ = _GROUP_SCOPE.unpack(scope)
    return (queue, tier) if kind == _GROUP_TURNS else None


@lru_cache(2_000)
def parked_groups(queue: int) -> bytes:
    """The scope of a queue's groups that have no job before a time, in that order. A sub-queue: tier and group."""
    return _GROUP_SCOPE.pack(_PARKED_GROUPS, queue, 0, 0)


def split_parked_groups(scope: bytes) -> int | None:
    """The queue number of a scope of `parked_groups`; None for another scope."""
    kind, queue, _, _ = _GROUP_SCOPE.unpack(scope)
    return queue if kind == _PARKED_GROUPS else None


def turn_until(scope: bytes, value: int) -> bytes:
    """The end of the scope's rows whose number is at most `value`."""
    return _TURN.pack(0, scope, value + 1)


#: Kind of limit, and the number of a queue or meter.
limit = _LIMIT.pack
split_limit = _LIMIT.unpack

#: The digest of a request's id, and the part of its outcome: 0 is the outcome itself.
request = _REQUEST.pack
split_request = _REQUEST.unpack


LOADS = (b"load/", b"load/\xff")


def load_row(write: bytes) -> bytes:
    """A row of `meta`: the intent of a bulk load, removed when it is finished."""
    return LOADS[0] + write


def digest(text: bytes) -> bytes:
    """A 16-byte digest of an idempotency key, the id of a claim or a request, or a payload."""
    return blake2b(text, digest_size=16).digest()
