"""Claims from any queue by a token: an operator's takes turns between tenants, a tenant's between its own queues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tenure import ManualClock
from tests.server.running import Running, running, token

OPERATOR = token(None, "operator")


@pytest.fixture
def served() -> Iterator[Running]:
    with running(ManualClock()) as server:
        for tenant in ("acme", "globex"):
            for queue in ("emails", "reports"):
                server.store.queue(queue, tenant).enqueue_many([b"x"] * 4)
        yield server


def claim_any(server: Running, headers: Mapping[str, str], **body: Any) -> tuple[int, str | None]:
    """The status, and the queue that was claimed from, with its tenant; None: there was no job."""
    answer = server.ask("POST", "/v1/claims/any", json.dumps({"lease_ms": 600_000, **body}).encode(), headers)
    found = json.loads(answer.body)
    return answer.status, f"{found['tenant']}/{found['queue']}" if found.get("jobs") else None


def test_an_operator_is_given_jobs_of_each_tenant_in_turn(served: Running) -> None:
    given = [claim_any(served, OPERATOR)[1] for _ in range(4)]
    assert sorted(map(str, given)) == ["acme/emails", "acme/reports", "globex/emails", "globex/reports"]
    assert {str(name).split("/")[0] for name in given[:2]} == {"acme", "globex"}
    assert claim_any(served, OPERATOR, tenants=["globex"], queues=["reports"], limit=9) == (200, "globex/reports")
    assert claim_any(served, OPERATOR, tenants=["globex"], queues=["reports"]) == (200, None)
    for weight in (0, -1, "heavy"):
        assert claim_any(served, OPERATOR, weights={"acme": weight})[0] in (400, 422)


def test_a_tenant_is_given_jobs_of_its_own_queues_in_turn(served: Running) -> None:
    acme = token("acme", "consume")
    given = [claim_any(served, acme)[1] for _ in range(4)]
    assert sorted(map(str, given)) == ["acme/emails"] * 2 + ["acme/reports"] * 2
    assert claim_any(served, acme, tenants=["globex"])[0] == 403
    assert claim_any(served, acme, tenants=["acme", "globex"])[0] == 403
    assert claim_any(served, acme, tenants=["acme"], limit=2)[1] in ("acme/emails", "acme/reports")
    while (last := claim_any(served, acme, limit=9)[1]) is not None:
        assert last.startswith("acme/")
    assert served.store.queue("emails", "globex").counts().ready == 4


def test_a_token_of_some_queues_is_given_jobs_of_those(served: Running) -> None:
    reports = token("acme", "consume", queues=["reports"])
    assert claim_any(served, reports, limit=9) == (200, "acme/reports")
    assert claim_any(served, reports) == (200, None)
    assert claim_any(served, reports, queues=["emails"]) == (200, None)
    assert served.store.queue("emails", "acme").counts().ready == 4


def test_callers_do_not_share_the_ids_of_their_claims(served: Running) -> None:
    acme, globex = token("acme", "consume"), token("globex", "consume")
    first = claim_any(served, acme, id="mine")[1]
    assert claim_any(served, acme, id="mine")[1] == first
    other = claim_any(served, globex, id="mine")[1]
    assert other is not None
    assert other.startswith("globex/")
    assert sum(served.store.queue(queue, "acme").counts().leased for queue in ("emails", "reports")) == 1


def test_a_token_that_may_not_consume_is_given_nothing(served: Running) -> None:
    assert claim_any(served, token("acme", "produce"))[0] == 403
    assert served.store.queue("emails", "acme").counts().leased == 0
