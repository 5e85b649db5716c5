"""Whether what callers were told of one job has an explanation: one order of their calls, each at one moment between its
beginning and its end, in which a queue would have answered just so.

    calls of one job ──▶ explained(calls) ──▶ True, or False: no order explains them

A call whose answer was lost happened at some moment, or not at all. Leases that end, ttl and retention happen between
calls, at moments when they may. The search is Wing and Gong's, with the states it has been in remembered; most calls do
not overlap, and then there is one order to try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tenure.model.tokens import next_token

FOREVER = 1 << 60


class Call(NamedTuple):
    """One call as its caller saw it, as far as it concerns one job."""

    #: enqueue, claim, claim again (by its id), forgotten (a power cut took the claim), ack, nack, fail, release, snooze, extend, cancel, replay, purge,
    #: get, prove (something is stored under the job by its holder, and the job stays as it is)
    verb: str
    #: Places in the order of all beginnings and ends; `end` is FOREVER while no answer has come.
    begin: int
    end: int
    #: The store's time when it began, and when it was answered.
    from_ms: int
    to_ms: int
    #: ok, lost (LeaseLost), settled (AlreadySettled), no (nothing of this job was done), unknown, or what `get` showed.
    answer: object
    lease: str = ""
    #: Of a claim whose answer was lost: where the tokens of its epoch begin.
    token: int = 0
    #: When the lease ends: of a claim or an extend that was answered.
    until_ms: int = 0
    lease_ms: int = 0


class _State(NamedTuple):
    state: str = "none"
    token: int = 0
    lease: str = ""
    until_ms: int = 0
    #: Who settled it last: a repeated settle is told so.
    settled: tuple[str, int] = ("", 0)
    #: The largest token that was given; and how the job was before the claim that holds it.
    given: int = 0
    before: tuple[str, int, str, int, tuple[str, int]] | None = None


#: How a settling verb may leave its job.
_SETTLES = {
    "ack": ("done", "gone"),
    "nack": ("waiting", "dead"),
    "fail": ("dead",),
    "release": ("waiting",),
    "snooze": ("waiting",),
}


def explained(calls: Sequence[Call], *, ttl: bool = False, blocked: bool = False) -> bool:
    """Whether some order of these calls, all of one job, explains their answers.

    `ttl`: it may vanish while it waits. `blocked`: it may wait for jobs at first, and vanish or go on when they end.
    """
    calls = sorted(calls, key=lambda call: call.begin)
    count = len(calls)
    everything = (1 << count) - 1
    optional = sum(1 << place for place, call in enumerate(calls) if call.answer == "unknown")
    stack = [(0, _State("unmade") if blocked else _State())]
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
            for before in _meanwhile(state, call.to_ms, ttl):
                for after in _answers(before, call):
                    following = done | 1 << place, after
                    if following not in seen:
                        seen.add(following)
                        stack.append(following)
    return False


def _meanwhile(state: _State, now_ms: int, ttl: bool) -> Sequence[_State]:
    """The state, and those it may have come to by itself until now."""
    name = state.state
    if name == "leased":
        if state.until_ms > now_ms:
            return (state,)
        waiting = state._replace(state="waiting", settled=("", 0))
        return (state, *_meanwhile(waiting, now_ms, ttl), waiting._replace(state="dead"))
    if name == "blocked":
        return (state, state._replace(state="waiting"), state._replace(state="gone"))
    if name == "done" or (ttl and name == "waiting" and not state.token):
        return (state, state._replace(state="gone"))  # its retention, its ttl
    return (state,)


def _answers(state: _State, call: Call) -> Iterator[_State]:
    """The states after the call, if it can be answered so in this state."""
    verb, unknown = call.verb, call.answer == "unknown"
    if verb == "get":
        if call.answer == (None if state.state in ("none", "unmade", "gone") else (state.state, state.token)):
            yield state
    elif verb == "enqueue":
        if state.state in ("none", "unmade"):
            yield state._replace(state="waiting")
        if state.state == "unmade":
            yield state._replace(state="blocked")
    elif verb == "claim":
        # A lost claim's proof is known to nobody.
        token = next_token(state.token, call.token) if unknown else call.token
        if state.state == "waiting" and token > max(state.token, state.given):
            until = call.to_ms + call.lease_ms if unknown else call.until_ms
            yield _State("leased", token, call.lease, until, given=token, before=state[:5])
    elif verb == "forgotten":
        if state.before is not None and (state.lease, state.token) == (call.lease, call.token):
            yield _State(*state.before, given=state.given)
    elif verb == "claim again":
        if state.state == "leased" and (state.lease, state.token) == (call.lease, call.token):
            yield state
    elif verb == "extend":
        yield from _extended(state, call)
    elif verb in _SETTLES:
        yield from _settled(state, call)
    elif verb == "prove":
        for after in _settled(state, call._replace(verb="release")):
            yield state if call.answer in ("ok", "unknown") else after
    else:
        yield from _administered(state, call)


def _settled(state: _State, call: Call) -> Iterator[_State]:
    proof = (call.lease, call.token)
    holds = state.state == "leased" and (state.lease, state.token) == proof
    if call.answer in ("ok", "unknown"):
        if holds and call.from_ms < state.until_ms:
            for after in _SETTLES[call.verb]:
                yield state._replace(state=after, settled=proof)
    elif call.answer == "settled":
        if not holds and state.settled == proof:
            yield state
    elif not holds or state.until_ms <= call.to_ms:
        yield state


def _extended(state: _State, call: Call) -> Iterator[_State]:
    holds = state.state == "leased" and state.lease == call.lease
    if call.answer == "ok":
        # A lease may have other jobs: this one need not be held any more.
        if not holds:
            yield state
        elif call.from_ms < state.until_ms:
            yield state._replace(until_ms=max(state.until_ms, call.until_ms))
    elif call.answer == "unknown":
        if holds and call.from_ms < state.until_ms:
            yield state._replace(until_ms=max(state.until_ms, call.to_ms + call.lease_ms))
    elif not holds or state.until_ms <= call.to_ms:
        yield state


def _administered(state: _State, call: Call) -> Iterator[_State]:
    origins = {
        "cancel": ("blocked", "waiting", "leased"),
        "replay": ("dead",),
        "purge": ("blocked", "waiting", "done", "dead"),
    }[call.verb]
    if call.answer in ("ok", "unknown"):
        if state.state in origins:
            yield state._replace(state="waiting" if call.verb == "replay" else "gone")
    elif call.verb == "replay" or state.state not in origins:
        yield state  # a replay chooses: that it passed over a job says nothing
