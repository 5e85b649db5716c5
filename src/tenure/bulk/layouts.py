"""The fixed-width records of `storage.records` as numpy sees them; a test holds the two against each other."""

from __future__ import annotations

import numpy as np

_ID = ("u1", (16,))


def _layout(*fields: tuple[str, str | tuple[str, tuple[int, ...]]]) -> np.dtype[np.void]:
    return np.dtype([(name, *((kind,) if isinstance(kind, str) else kind)) for name, kind in fields])


#: jobs, state, leases, lease_jobs, groups: queue number and an id.
OF_QUEUE = _layout(("queue", ">u4"), ("id", _ID))
LOST_JOB = _layout(("queue", ">u4"), ("id", _ID), ("job", _ID))
READY = _layout(("queue", ">u4"), ("tier", "u1"), ("time", ">u8"), ("id", _ID))
DUE = _layout(("kind", "u1"), ("time", ">u8"), ("queue", ">u4"), ("id", _ID))
ENDED = _layout(("queue", ">u4"), ("time", ">u8"), ("id", _ID))
GROUP_READY = _layout(("queue", ">u4"), ("group", _ID), ("tier", "u1"), ("time", ">u8"), ("id", _ID))
#: parents: a job, a place among its parents, and the parent. steps: a job, what the row is, and the digest of its name.
PARENT = _layout(("queue", ">u4"), ("id", _ID), ("place", ">u4"), ("parent_queue", ">u4"), ("parent", _ID))
STEP = _layout(("queue", ">u4"), ("id", _ID), ("kind", "u1"), ("name", _ID))
COUNTER = _layout(("queue", ">u4"), ("counter", "u1"))
COMMIT = np.dtype(">u8")

STATE = _layout(
    ("version", "u1"), ("state", "u1"), ("priority", "u1"), ("reason", "u1"), ("flags", "u1"), ("attempt", ">u4"),
    ("max_attempts", ">u4"), ("replays", ">u4"), ("token", ">u8"), ("visible_at_ms", ">u8"), ("ended_at_ms", ">u8"),
    ("due_at_ms", ">u8"), ("last_event", ">u8"), ("lease", _ID), ("crc", ">u4"),
)  # fmt: skip
LEASE = _layout(
    ("version", "u1"), ("expires_at_ms", ">u8"), ("granted_at_ms", ">u8"), ("given", ">u4"), ("open", ">u4"),
    ("lost", ">u4"), ("claim", _ID), ("worker", ("u1", (64,))), ("crc", ">u4"),
)  # fmt: skip
COUNT = _layout(("value", ">u8"), ("crc", ">u4"))

#: What begins a variable-width value.
JOB = _layout(
    ("version", "u1"), ("created_at_ms", ">u8"), ("parts", ">u2"), ("key_bytes", ">u2"), ("headers_bytes", ">u4"),
    ("payload_bytes", ">u4"),
)  # fmt: skip
JOURNAL = _layout(("version", "u1"), ("reserved", "u1"), ("events", ">u2"), ("first_number", ">u8"), ("time_ms", ">u8"))
EVENT = _layout(
    ("change", "u1"), ("state", "u1"), ("priority", "u1"), ("reason", "u1"), ("queue", ">u4"), ("job", _ID),
    ("lease", _ID), ("token", ">u8"), ("attempt", ">u4"), ("max_attempts", ">u4"), ("at_ms", ">u8"),
    ("previous", ">u8"), ("text_at", ">u4"), ("text_bytes", ">u4"),
)  # fmt: skip
