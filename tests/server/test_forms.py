"""Short forms of requests: payloads alone, claims in columns, many jobs settled alike. They equal the long forms."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tenure.model.lease import Delivery, Leased, Proof, Settle
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.protocol import messages as m
from tenure.protocol.formats import FORMATS
from tests.server.running import Running, running, token

NAME = QueueName("acme", "forms")
BASE = f"/v1/queues/{NAME.queue}"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running() as made:
        yield made


def ask(served: Running, encoding: str, target: str, body: object) -> tuple[int, Any]:
    written = FORMATS[encoding]
    headers = token("acme", "admin") | {"Content-Type": written.content_type}
    answer = served.ask("POST", BASE + target, written.encode(body), headers)
    return answer.status, getattr(msgspec, encoding).decode(answer.body)


def said(encoding: str, data: bytes) -> object:
    """Bytes as they travel."""
    return data if encoding == "msgpack" else b64encode(data).decode()


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_life_in_short_forms(served: Running, encoding: str) -> None:
    described = {"payload": said(encoding, b"b"), "priority": 3, "key": f"k-{encoding}", "headers": {"a": "b"}}
    status, added = ask(served, encoding, "/jobs", [said(encoding, b"a"), described, said(encoding, b"")])
    assert status == 200
    status, claim = ask(served, encoding, "/claims", {"limit": 10, "columns": True})
    assert status == 200
    assert claim["jobs"] == []
    columns = claim["columns"]
    ids = "".join(added[at]["id"] for at in (1, 0, 2))
    assert columns["ids"] == said(encoding, bytes.fromhex(ids))
    assert columns["payloads"] == [said(encoding, data) for data in (b"b", b"a", b"")]
    assert columns["priorities"] == [3, 0, 0]
    assert columns["headers"] == [{"a": "b"}, {}, {}]
    assert columns["keys"] == [f"k-{encoding}", None, None]
    alike = {"verb": "ack", "lease": claim["lease"], "jobs": columns["ids"], "tokens": columns["tokens"]}
    assert ask(served, encoding, "/settle", {"alike": alike}) == (200, {"results": [None] * 3})
    status, again = ask(served, encoding, "/settle", {"alike": alike})
    assert [result["code"] for result in again["results"]] == ["lease_lost"] * 3


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_nothing_has_no_columns(served: Running, encoding: str) -> None:
    assert ask(served, encoding, "/claims", {"columns": True}) == (200, {"jobs": []})


def alike(**other: object) -> dict[str, object]:
    return {"verb": "ack", "lease": "0" * 32, "jobs": bytes(32), "tokens": [1, 1]} | other


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"alike": alike(), "items": [{"verb": "ack", "receipt": f"{0:032x}.{0:032x}.1"}]},
        {"alike": alike(jobs=bytes(31))},
        {"alike": alike(tokens=[1])},
        {"alike": alike(tokens=[1, -1])},
        {"alike": alike(tokens=[1, 2**64 - 1])},
        {"alike": alike(lease="0" * 31)},
        {"alike": alike(verb="done")},
        {"alike": alike(result=b"x")},
    ],
)
def test_what_is_refused(served: Running, body: object) -> None:
    status, problem = ask(served, "msgpack", "/settle", body)
    assert (status, problem["code"]) == (400, "invalid_argument")


def test_a_payload_alone_is_bounded_too(served: Running) -> None:
    status, problem = ask(served, "msgpack", "/jobs", [b"small", bytes(8 * 1024**2 + 1)])
    assert (status, problem["code"]) == (413, "too_large")


DELIVERY = Delivery(NAME, bytes(16), b"l" * 16, 7, b"p", 2, 5, 0, 1_800_000_000_000, {})


@pytest.mark.parametrize(
    "second",
    [{}, {"priority": 4}, {"headers": {"a": "b"}}, {"key": "k"}, {"priority": 1, "headers": {"a": "b"}, "key": "k"}],
)
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_columns_give_the_same_deliveries(encoding: str, second: dict[str, Any]) -> None:
    given = [DELIVERY, msgspec.structs.replace(DELIVERY, job=b"j" * 16, token=2**40, payload=b"", **second)]
    written = FORMATS[encoding]
    made = m.Columns.of(Leased(NAME, b"l" * 16, 0, given))
    leased = Leased(NAME, b"l" * 16, 0, columns=written.decode(written.encode(made), m.Columns).columns())
    assert m.Columns.of(leased) == written.decode(written.encode(made), m.Columns)
    assert leased.deliveries == given
    first, other = leased.deliveries
    assert first.headers is not other.headers  # each is its holder's to change


def test_only_what_is_alike_is_said_alike() -> None:
    first, second = Proof(b"a" * 16, b"l" * 16, 1), Proof(b"b" * 16, b"l" * 16, 9)
    assert m.SettleBody.of([Settle("ack", first), Settle("ack", second)]).items is None
    mixed = [
        [Settle("ack", first)],
        [Settle("ack", first), Settle("nack", second)],
        [Settle("ack", first), Settle("ack", second._replace(lease=b"m" * 16))],
        [Settle("ack", first), Settle("ack", second, b"result")],
        [Settle("nack", first), Settle("nack", second, None, "error")],
        [Settle("nack", first), Settle("nack", second, None, None, 0)],
    ]
    for items in [*mixed, [Settle("release", first), Settle("release", second)]]:
        body = m.SettleBody.of(items)
        assert (body.alike is None) == (items in mixed)
        assert list(body.settles()) == items


def test_jobs_travel_as_they_are() -> None:
    jobs = [JobRequest(b"a"), JobRequest(b"b", priority=2), JobRequest(b"c", key="k", headers={"a": "b"})]
    bodies = m.job_bodies(jobs)
    assert [type(body) for body in bodies] == [bytes, m.JobBody, m.JobBody]
    assert list(m.job_requests(bodies)) == jobs
    assert list(m.job_requests(m.job_bodies(jobs[:1]))) == jobs[:1]
