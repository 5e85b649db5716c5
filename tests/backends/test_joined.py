"""A joined backend repeats a verb under one request id when the owner ends, whichever verb it is."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tenure.backends.joined import JoinedBackend
from tenure.backends.remote.transport import Unreachable
from tenure.contract.backend import Backend
from tenure.contract.verbs import REMEMBERED, VERBS
from tenure.model.lease import ClaimRequest


class Ending:
    """A backend whose owner ends at the first verb: it records under which id each try came."""

    def __init__(self, tries: list[tuple[str, bytes]], ends: bool, request: bytes = b"") -> None:
        self.tries, self.ends, self.request = tries, ends, request

    def once(self, request: bytes) -> Ending:
        return Ending(self.tries, self.ends, request)

    def on_retry(self, notify: object) -> None: ...

    def close(self) -> None: ...

    def __getattr__(self, verb: str) -> Any:
        def ask(*_: object) -> None:
            self.tries.append((verb, self.request))
            if self.ends:
                raise Unreachable("the owner has ended")

        return ask


def arguments(verb: str) -> list[Any]:
    known: dict[str, Any] = {"request": ClaimRequest(limit=1)} if verb in ("claim", "claim_any") else {}
    return [
        known.get(parameter.name)
        for parameter in list(inspect.signature(getattr(Backend, verb)).parameters.values())[1:]
        if parameter.default is inspect.Parameter.empty
    ]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_repeat_after_the_owner_ended_has_the_same_request_id(verb: str):
    tries: list[tuple[str, bytes]] = []
    first: Any = Ending(tries, ends=True)
    heir: Any = Ending(tries, ends=False)
    joined = JoinedBackend("rocksdb:x", lambda: heir, lambda: heir, first)
    getattr(joined, verb)(*arguments(verb))
    assert [name for name, _ in tries] == [verb, verb]
    (_, before), (_, after) = tries
    assert before == after
    assert bool(before) == (verb in REMEMBERED)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_view_for_one_request_uses_its_id_for_verbs_that_are_remembered(verb: str):
    tries: list[tuple[str, bytes]] = []
    owner: Any = Ending(tries, ends=False)
    joined = JoinedBackend("rocksdb:x", lambda: owner, lambda: owner, owner)
    for _ in range(2):
        getattr(joined.once(b"r" * 16), verb)(*arguments(verb))
    (_, first), (_, second) = tries
    assert first == second, "the same request, the same id"
    assert bool(first) == (verb in REMEMBERED)
