"""The verbs of a backend with their traits: every list of verbs is derived from this table.

    writes       it changes stored data; the others only read
    waits        it may wait for an event, as long as its caller allows
    remembered   under a request's id (`Serving.once`) it takes effect once: a repeat gets the first outcome
    chunked      it works in several transactions, and a repeat continues where the last one was interrupted
    small        it touches few rows: a server may run it in the thread of its event loop

The backends' views for one request, the joined backend and the protocol's operations take their lists from here;
`tests/contract/test_verbs.py` compares this table with the protocols of `backend` and the operations.
"""

from __future__ import annotations

from typing import NamedTuple

from tenure.contract.backend import (
    Administration,
    Consumption,
    Journal,
    Lifecycle,
    Maintenance,
    Production,
    Queries,
    Snapshots,
    StagedWrites,
)


class Verb(NamedTuple):
    name: str
    #: The part of `Backend` that declares it.
    concern: type
    writes: bool = False
    waits: bool = False
    remembered: bool = False
    chunked: bool = False
    small: bool = False


def _verb(name: str, concern: type, *traits: str) -> Verb:
    return Verb(name, concern, **dict.fromkeys(traits, True))


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        _verb("now_ms", Lifecycle, "small"),
        _verb("clock_drift_ms", Lifecycle, "small"),
        _verb("enqueue", Production, "writes", "remembered", "small"),
        # A claim is remembered by its own id, or by the request's if it has none.
        _verb("claim", Consumption, "writes", "waits", "remembered", "small"),
        _verb("claim_any", Consumption, "writes", "waits", "remembered", "small"),
        _verb("settle", Consumption, "writes", "remembered", "small"),
        _verb("extend", Consumption, "writes", "remembered", "small"),
        _verb("progress", Consumption, "writes", "remembered", "small"),
        _verb("record_step", Consumption, "writes", "remembered", "small"),
        _verb("get", Queries, "small"),
        _verb("wait_for", Queries, "waits"),
        _verb("list", Queries),
        _verb("counts", Queries, "small"),
        _verb("groups", Queries),
        _verb("holder", Queries, "small"),
        _verb("timeline", Queries),
        _verb("parents", Queries),
        _verb("children", Queries),
        _verb("steps", Queries),
        _verb("queues", Queries),
        _verb("find", Queries, "small"),
        _verb("list_all", Queries),
        _verb("upcoming", Queries),
        _verb("replay", Maintenance, "writes", "remembered", "chunked"),
        _verb("restore", Maintenance, "writes", "remembered"),
        _verb("discard", Maintenance, "writes", "remembered"),
        _verb("cancel", Maintenance, "writes", "remembered", "small"),
        _verb("signal", Maintenance, "writes", "remembered", "small"),
        _verb("purge", Maintenance, "writes", "remembered", "chunked"),
        _verb("sweep", Maintenance, "writes"),
        _verb("cleanup", Maintenance, "writes", "remembered", "chunked"),
        _verb("check", Maintenance, "writes"),  # with repair=True
        _verb("set_paused", Administration, "writes", "remembered"),
        _verb("configure", Administration, "writes", "remembered"),
        _verb("delete_queue", Administration, "writes", "remembered", "chunked"),
        _verb("replace_queues", Administration, "writes", "remembered"),
        _verb("policy", Administration, "small"),
        _verb("set_quota", Administration, "writes", "remembered"),
        _verb("quotas", Administration),
        _verb("schedules", Administration),
        _verb("change_schedule", Administration, "writes", "remembered"),
        _verb("draw", Administration, "writes"),
        _verb("events", Journal, "writes", "waits"),  # with a consumer, it stores the consumer's position
        _verb("newest_events", Journal),
        _verb("forget_consumer", Journal, "writes", "remembered"),
        _verb("journal_slice", Journal),
        # A staged write, a part and a snapshot have ids of their own that identify a repeat.
        _verb("begin_write", StagedWrites, "writes"),
        _verb("write_state", StagedWrites),
        _verb("publish", StagedWrites, "writes"),
        _verb("finish_write", StagedWrites, "writes"),
        _verb("put_piece", StagedWrites, "writes"),
        _verb("piece", StagedWrites),
        _verb("drop_pieces", StagedWrites, "writes"),
        _verb("load_target", StagedWrites, "writes"),  # it creates the queue
        _verb("load", StagedWrites, "writes"),
        _verb("snapshot", Snapshots),
        _verb("take_snapshot", Snapshots, "writes"),
        _verb("renew_snapshot", Snapshots, "writes"),
        _verb("drop_snapshot", Snapshots, "writes"),
        _verb("snapshots", Snapshots),
    )
}

REMEMBERED = frozenset(verb.name for verb in VERBS.values() if verb.remembered)
#: Members of `Backend` that are no verbs: they do not change or read the store's data, or (`enqueue_each`) repeat a
#: verb.
NOT_VERBS = frozenset({"url", "traits", "on_retry", "close", "once", "watch", "waits_on", "deferring", "enqueue_each"})
