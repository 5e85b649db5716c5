"""The table of verbs, the contract's protocols, the backends and the protocol's operations agree."""

from __future__ import annotations

import pytest

from tenure.backends.embedded import EmbeddedBackend
from tenure.backends.joined import JoinedBackend, JoinedRequestView
from tenure.backends.redis.backend import RedisBackend
from tenure.backends.remembered_verbs import RememberedVerbs
from tenure.backends.remote.backend import RemoteBackend
from tenure.contract.backend import Backend
from tenure.contract.verbs import NOT_VERBS, REMEMBERED, VERBS
from tenure.protocol.operations import OPERATIONS

#: Those that the server itself carries out have no verb.
ON_THE_STORE = [operation for operation in OPERATIONS.values() if operation.verb]
CONCERNS = [part for part in Backend.__mro__[1:] if part.__module__ == Backend.__module__]


def public(part: type) -> set[str]:
    return {name for name in vars(part) if not name.startswith("_")}


def test_the_table_lists_every_verb_of_the_contract_under_its_concern():
    declared = {name: part for part in CONCERNS for name in public(part)}
    assert set(declared) == set(VERBS) | NOT_VERBS
    assert {name: verb.concern for name, verb in VERBS.items()} == {name: declared[name] for name in VERBS}
    assert not set(VERBS) & NOT_VERBS


def test_what_is_remembered_or_chunked_writes():
    assert [verb.name for verb in VERBS.values() if (verb.remembered or verb.chunked) and not verb.writes] == []


def test_the_views_for_one_request_remember_what_the_table_says():
    assert public(RememberedVerbs) - {"close"} == REMEMBERED


@pytest.mark.parametrize("backend", [EmbeddedBackend, RedisBackend, RemoteBackend, JoinedBackend, JoinedRequestView])
def test_every_backend_has_every_verb_itself(backend: type):
    inherited = {name for part in backend.__mro__ for name in public(part)}
    assert set(VERBS) - inherited == set()
    assert not any("__getattr__" in vars(part) for part in backend.__mro__)


def test_every_operation_is_remembered_as_its_verb_is():
    assert {o.name: o.remembered for o in ON_THE_STORE} == {o.name: VERBS[o.verb].remembered for o in ON_THE_STORE}
    # A server waits for the caller of a verb that waits; no other operation does.
    assert {o.verb for o in OPERATIONS.values() if o.waits is not None} == {v.name for v in VERBS.values() if v.waits}


def test_every_verb_is_an_operation():
    local = {"clock_drift_ms"}  # told with `now_ms`, by the operation `store`
    assert set(VERBS) - {operation.verb for operation in ON_THE_STORE} == local
