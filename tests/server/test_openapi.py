"""Requests made up from the server's own OpenAPI, good and bad: whatever comes, the answer is one that the document names.

SCHEMA_CASES sets how many for each operation (5, beside those that try every field); the seed is fixed, so that a run can be repeated.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tenure.protocol import operations
from tenure.server.openapi import openapi
from tests.server.running import Running, running, token

#: In one process, whose server answers all of them and which counts them.
pytestmark = pytest.mark.xdist_group("schema")
CASES = int(os.environ.get("SCHEMA_CASES", "5"))
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]

DOCUMENT: dict[str, Any] = openapi()
for methods in DOCUMENT["paths"].values():
    for described in methods.values():
        # JSON in the requests that are made up: MessagePack is the same structs, and schemathesis cannot write it.
        described.get("requestBody", {}).get("content", {}).pop("application/msgpack", None)
schema = schemathesis.openapi.from_dict(DOCUMENT)

ANSWERS: Counter[int] = Counter()
OPERATIONS = [name for name, operation in operations.OPERATIONS.items() if not operation.local]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running() as made:
        yield made


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all."""
    with requests.Session() as kept:
        kept.headers.update(token("acme", "operator"))
        yield kept


@schema.parametrize()
@hypothesis.settings(
    max_examples=CASES,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    database=None,
)
def test_every_answer_is_a_documented_one(case: Any, served: Running, session: requests.Session):
    for name in ("wait_ms", "timeout_ms"):  # waiting is tested elsewhere
        if isinstance(case.body, dict) and name in case.body:
            case.body[name] = 0
        if name in (case.query or {}):
            case.query[name] = "0"
    answer = case.call(base_url=served.url, session=session)
    ANSWERS[answer.status_code] += 1
    case.validate_response(answer, checks=CHECKS)


def test_how_many_there_were(capsys: pytest.CaptureFixture[str]) -> None:
    if not ANSWERS:
        pytest.skip("it counts the requests of the test before it, and that was not run")
    made = ", ".join(f"{count} × {status}" for status, count in sorted(ANSWERS.items()))
    with capsys.disabled():
        print(f"\n{sum(ANSWERS.values())} made-up requests to {len(OPERATIONS)} operations: {made}", flush=True)
    assert max(ANSWERS) < 500
