"""Tenant names as identity providers write them, in every place where a request carries a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tenure
from tenure import Quota
from tests.server.running import running, token

NAMES = ["ACME", "org_AbC123", "auth0|12", "a@b.com", "urn:example:1+x=y~z", "a" * 128]


@pytest.mark.parametrize("name", NAMES)
def test_a_tenant_of_that_name_works_over_http(name: str):
    with running() as server:
        own = token(name, "admin")
        added = server.ask("POST", "/v1/queues/emails/jobs", b'{"text": "hello"}', own)
        assert added.status == 200, added.body
        claimed = server.ask("POST", "/v1/queues/emails/claims", b'{"limit": 1, "lease_ms": 1000}', own)
        assert json.loads(claimed.body)["tenant"] == name
        other = server.ask("GET", "/v1/queues/emails/counts", None, token(name.swapcase(), "admin"))
        assert json.loads(other.body)["leased"] == 0, "names differ by case"
        operator = token(None, "operator")
        named = server.ask("GET", "/v1/queues/emails/counts", None, {**operator, "Tenure-Tenant": name})
        assert json.loads(named.body)["leased"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_operators_client_names_it(name: str):
    with running() as server:
        bearer = token(None, "operator")["Authorization"].removeprefix("Bearer ")
        with tenure.open(server.url, token=bearer) as store:
            store.queue("emails", tenant=name).enqueue(b"x")
            store.set_quota(name, Quota(max_waiting=1))
            assert [info.tenant for info in store.quotas()] == [name]
            with pytest.raises(tenure.QuotaExceeded):
                store.queue("emails", tenant=name).enqueue(b"y")
            assert [(info.tenant, info.queue) for info in store.queues(tenant=name)] == [(name, "emails")]
            assert [info.tenant for info in server.store.queues()] == [name]


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_it_is_kept_on_disk(engine: str, tmp_path: Path):
    for name in NAMES:
        with tenure.open(f"{engine}:{tmp_path}/data", sweep=False) as store:
            store.queue("emails", tenant=name).enqueue(b"x")
    with tenure.open(f"{engine}:{tmp_path}/data", sweep=False) as store:
        assert sorted(info.tenant for info in store.queues()) == sorted(NAMES)
        assert store.check().clean
