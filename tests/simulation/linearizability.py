"""A linearizability checker for the calls on one job: is there an order of the calls, each taking effect at one point
between its beginning and its end, in which a queue would give the same answers?

    calls of one job ──▶ explained(calls) ──▶ True, or False: no order explains them

A call whose answer was lost took effect at some point, or not at all. Expiries, ttl and retention take effect between
calls, when their time has come. The search is Wing and Gong's, with visited states cached; most calls do not overlap, and
then there is one order to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec

from tenure.model.tokens import next_token

FOREVER = 1 << 60


class Call(msgspec.Struct):
    """One call on one job, as its caller saw it."""

    #: enqueue, claim, claim again (by its id), forgotten (a power loss undid the claim), ack, nack, fail, release,
    #: snooze, extend, cancel, replay, purge, get, prove (the holder stores a value under the job, which stays as it is)
    verb: str
    #: Positions in the order of all beginnings and ends; `end` is FOREVER while there is no answer.
    begin: int
    end: int
    #: The store's time when it began, and when it was answered.
    from_ms: int
    to_ms: int
    #: ok, lost (LeaseLost), settled (AlreadySettled), no (no effect on this job), unknown, or the state that `get` gave.
    answer: object
    lease: str = ""
    #: The lower bound of the epoch's tokens, for a claim whose answer was lost.
    token: int = 0
    #: The end of the lease, for a claim or an extend that was answered.
    until_ms: int = 0
    lease_ms: int = 0


class _State(NamedTuple):
    state: str = "none"
    token: int = 0
    lease: str = ""
    until_ms: int = 0
    #: The lease and token that settled it last: a repeated settle gets AlreadySettled.
    settled: tuple[str, int] = ("", 0)
    #: The largest token that was given; and the job's state before the claim that holds it.
    given: int = 0
    before: tuple[str, int, str, int, tuple[str, int]] | None = None


_NONE, _UNMADE = _State(), _State("unmade")
_begin = attrgetter("begin")
#: A state of all its fields, in a third of the time.
_state = partial(tuple.__new__, _State)


def _now(state: _State, name: str) -> _State:
    """The same, in another state."""
    return _state((name, *state[1:]))


#: By settling verb: the states that it may lead to.
_SETTLES = {
    "ack": ("done", "gone"),
    "nack": ("waiting", "dead"),
    "fail": ("dead",),
    "release": ("waiting",),
    "snooze": ("waiting",),
    "prove": ("leased",),
}


def explained(calls: Sequence[Call], *, ttl: bool = False, blocked: bool = False) -> bool:
    """Whether some order of these calls, all of one job, explains their answers.

    `ttl`: the job may be removed while it waits. `blocked`: it may be blocked at first, and become ready or be removed.
    """
    calls = sorted(calls, key=_begin)
    count = len(calls)
    everything = (1 << count) - 1
    optional = sum(1 << place for place, call in enumerate(calls) if call.answer == "unknown")
    alone, states = _one_by_one(calls, {_UNMADE if blocked else _NONE}, ttl)
    stack = [((1 << alone) - 1, state) for state in states]
    seen = set(stack)
    while stack:
        done, state = stack.pop()
        waits = everything & ~(done | optional)
        if not waits:
            return True
        soonest, place = FOREVER, (waits & -waits).bit_length() - 1
        while place < count and calls[place].begin <= soonest:
            if waits >> place & 1 and calls[place].end < soonest:
                soonest = calls[place].end
            place += 1
        left = everything & ~done
        for place in range((left & -left).bit_length() - 1, count):
            call = calls[place]
            if call.begin > soonest:
                break
            if done >> place & 1:
                continue
            answers = _VERBS[call.verb]
            for before in _meanwhile(state, call.to_ms, ttl):
                for after in answers(before, call):
                    following = done | 1 << place, after
                    if following not in seen:
                        seen.add(following)
                        stack.append(following)
    return False


def _one_by_one(calls: Sequence[Call], states: set[_State], ttl: bool) -> tuple[int, set[_State]]:
    """Take the first calls, as long as each was answered before the next one began: only one order of them is possible.

    Returns how many these are, and the states that explain their answers.
    """
    last = len(calls) - 1
    for place, call in enumerate(calls):
        if call.answer == "unknown" or (place < last and calls[place + 1].begin <= call.end):
            return place, states
        to_ms, answers = call.to_ms, _VERBS[call.verb]
        states = {
            after for state in states for before in _meanwhile(state, to_ms, ttl) for after in answers(before, call)
        }
    return len(calls), states


def _meanwhile(state: _State, now_ms: int, ttl: bool) -> Sequence[_State]:
    """The state, and the states that it may have reached by itself until now."""
    name = state.state
    if name == "leased":
        if state.until_ms > now_ms:
            return (state,)
        waiting = _state(("waiting", *state[1:4], ("", 0), *state[5:]))
        return (state, *_meanwhile(waiting, now_ms, ttl), _now(waiting, "dead"))
    if name == "blocked":
        return (state, _now(state, "waiting"), _now(state, "gone"))
    if name == "done" or (ttl and name == "waiting" and not state.token):
        return (state, _now(state, "gone"))  # by retention or ttl
    return (state,)


def _seen(state: _State, call: Call) -> Iterable[_State]:
    name = state.state
    expected = None if name in ("none", "unmade", "gone") else (name, state.token)
    return (state,) if call.answer == expected else ()


def _enqueued(state: _State, call: Call) -> Iterable[_State]:
    if state.state == "none":
        return (_now(state, "waiting"),)
    return (_now(state, "waiting"), _now(state, "blocked")) if state.state == "unmade" else ()


def _claimed(state: _State, call: Call) -> Iterable[_State]:
    if state.state != "waiting":
        return ()
    unknown = call.answer == "unknown"
    # No caller has the proof of a lost claim.
    token = next_token(state.token, call.token) if unknown else call.token
    if token <= max(state.token, state.given):
        return ()
    # The caller of a lost claim does not know when it was decided. Only its end matters, since nobody can settle: the
    # earliest that is possible.
    until = call.from_ms + call.lease_ms if unknown else call.until_ms
    return (_state(("leased", token, call.lease, until, ("", 0), token, state[:5])),)


def _forgotten(state: _State, call: Call) -> Iterable[_State]:
    if state.before is not None and (state.lease, state.token) == (call.lease, call.token):
        return (_state((*state.before, state.given, None)),)
    return ()


def _claimed_again(state: _State, call: Call) -> Iterable[_State]:
    return (state,) if state.state == "leased" and (state.lease, state.token) == (call.lease, call.token) else ()


def _proved(state: _State, call: Call) -> Iterable[_State]:
    found = _settled(state, call)
    return (state,) if found and call.answer in ("ok", "unknown") else found


def _settled(state: _State, call: Call) -> Sequence[_State]:
    holds = state.state == "leased" and state.token == call.token and state.lease == call.lease
    answer = call.answer
    if answer in ("ok", "unknown"):
        if not holds or call.from_ms >= state.until_ms:
            return ()
        proof = (call.lease, call.token)
        return [
            _state((after, state.token, state.lease, state.until_ms, proof, state.given, state.before))
            for after in _SETTLES[call.verb]
        ]
    if answer == "settled":
        return (state,) if not holds and state.settled == (call.lease, call.token) else ()
    return (state,) if not holds or state.until_ms <= call.to_ms else ()


def _extended(state: _State, call: Call) -> Iterable[_State]:
    holds = state.state == "leased" and state.lease == call.lease
    if call.answer == "ok":
        # The lease may hold other jobs: this one may have left it.
        if not holds:
            return (state,)
        if call.from_ms < state.until_ms:
            return (state._replace(until_ms=max(state.until_ms, call.until_ms)),)
    elif call.answer == "unknown":
        if holds and call.from_ms < state.until_ms:
            # It was decided at some time of the call: an early end explains an expiry, a late one that the holder settles.
            ends = {max(state.until_ms, decided + call.lease_ms) for decided in (call.from_ms, call.to_ms)}
            return [state._replace(until_ms=end) for end in ends]
    elif not holds or state.until_ms <= call.to_ms:
        return (state,)
    return ()


#: By verb of an administrator: the states that it takes a job from.
_ORIGINS = {
    "cancel": ("blocked", "waiting", "leased"),
    "replay": ("dead",),
    "purge": ("blocked", "waiting", "done", "dead"),
}


def _administered(state: _State, call: Call) -> Iterable[_State]:
    fits = state.state in _ORIGINS[call.verb]
    if call.answer in ("ok", "unknown"):
        return (_now(state, "waiting" if call.verb == "replay" else "gone"),) if fits else ()
    return (state,) if call.verb == "replay" or not fits else ()  # a replay chooses jobs: it may have skipped this one


#: By verb: the states after a call, if the state before allows its answer.
_VERBS = {
    "get": _seen, "enqueue": _enqueued, "claim": _claimed, "forgotten": _forgotten, "claim again": _claimed_again,
    "extend": _extended, **dict.fromkeys(_SETTLES, _settled), "prove": _proved, **dict.fromkeys(_ORIGINS, _administered),
}  # fmt: skip
