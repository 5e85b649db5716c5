"""The states of a job, and the table of allowed transitions.

              enqueue                    claim                   ack
   (none) ────────────▶ waiting ───────────────────▶ leased ───────────▶ done ──retention──▶ (gone)
                         ▲  ▲                          │ │
                         │  └── release ───────────────┘ │ nack / lease expired
                         │                               ▼
                         └────── attempts < max ──── (policy) ── attempts = max, or fail ──▶ dead ──replay──▶ waiting

   (none) ── enqueue(after=…) ──▶ blocked ── its last parent ended ──▶ waiting

`waiting` is shown as `scheduled` before the visibility time and as `ready` from then on. No row changes at that time.
"""

from __future__ import annotations

from enum import IntEnum

from tenure.errors import InvalidArgument


class State(IntEnum):
    """Stored on disk: do not renumber."""

    GONE = 0
    WAITING = 1
    LEASED = 2
    DONE = 3
    DEAD = 4
    #: The job waits for its parents.
    BLOCKED = 5


class Change(IntEnum):
    """The types of events. Stored on disk: do not renumber."""

    QUEUE_CREATED = 1
    QUEUE_CONFIGURED = 2
    QUEUE_PAUSED = 3
    QUEUE_RESUMED = 4
    QUEUE_DELETED = 5
    ENQUEUED = 10
    CLAIMED = 11
    EXTENDED = 12
    DONE = 13
    RETRIED = 14
    DIED = 15
    RELEASED = 16
    EXPIRED = 17
    CANCELLED = 18
    REPLAYED = 19
    TTL_PASSED = 20
    PURGED = 21
    RETIRED = 22
    REPAIRED = 23
    RESTORED = 24
    UNBLOCKED = 25
    #: The signal that the job waited for was sent: the job is ready.
    SIGNALLED = 26


class Reason(IntEnum):
    """Why a job is dead. Stored on disk: do not renumber."""

    NONE = 0
    MAX_ATTEMPTS = 1
    FAILED = 2


#: Every job change: the states it may start from, and those it may lead to.
TRANSITIONS: dict[Change, tuple[frozenset[State], frozenset[State]]] = {
    Change.ENQUEUED: (frozenset({State.GONE}), frozenset({State.WAITING, State.BLOCKED})),
    Change.UNBLOCKED: (frozenset({State.BLOCKED}), frozenset({State.WAITING})),
    Change.SIGNALLED: (frozenset({State.WAITING}), frozenset({State.WAITING})),
    Change.CLAIMED: (frozenset({State.WAITING}), frozenset({State.LEASED})),
    # A job that is not retained goes from leased to gone in one step.
    Change.DONE: (frozenset({State.LEASED}), frozenset({State.DONE, State.GONE})),
    Change.RETRIED: (frozenset({State.LEASED}), frozenset({State.WAITING})),
    Change.DIED: (frozenset({State.LEASED}), frozenset({State.DEAD})),
    Change.RELEASED: (frozenset({State.LEASED}), frozenset({State.WAITING})),
    Change.EXPIRED: (frozenset({State.LEASED}), frozenset({State.WAITING})),
    Change.CANCELLED: (frozenset({State.BLOCKED, State.WAITING, State.LEASED}), frozenset({State.GONE})),
    Change.REPLAYED: (frozenset({State.DEAD}), frozenset({State.WAITING})),
    Change.TTL_PASSED: (frozenset({State.BLOCKED, State.WAITING}), frozenset({State.GONE})),
    Change.PURGED: (frozenset({State.BLOCKED, State.WAITING, State.DONE, State.DEAD}), frozenset({State.GONE})),
    Change.RETIRED: (frozenset({State.DONE}), frozenset({State.GONE})),
    # A job from another store or an archive keeps its state there; a leased one becomes waiting.
    Change.RESTORED: (frozenset({State.GONE}), frozenset({State.BLOCKED, State.WAITING, State.DONE, State.DEAD})),
    # A repair may find any state and correct it to any other.
    Change.REPAIRED: (frozenset(State), frozenset(State)),
}

TERMINAL = frozenset({State.DONE, State.DEAD})

#: The states that users pass to `list` and `purge`.
SHOWN = ("scheduled", "ready", "leased", "done", "dead", "blocked")


def allowed(change: Change, before: State, after: State) -> bool:
    """Whether the table allows this transition."""
    rule = TRANSITIONS.get(change)
    return rule is not None and before in rule[0] and after in rule[1]


def shown(state: State, visible_at_ms: int, now_ms: int) -> str:
    """The state's public name."""
    if state is State.WAITING:
        return "scheduled" if visible_at_ms > now_ms else "ready"
    return state.name.lower()


def checked_shown(state: object, among: tuple[str, ...] = SHOWN) -> str:
    """Return the public name of a state if it is one of `among`. Raises InvalidArgument."""
    if state not in among:
        raise InvalidArgument(f"state {state!r}: one of {', '.join(among)}")
    return str(state)
