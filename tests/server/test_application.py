"""The routes that are not operations: probes, metrics, the OpenAPI document and its page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tenure.cli.main import cli
from tests.server.running import Running, running, token


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running() as made:
        yield made


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/healthz", "application/json"),
        ("/readyz", "application/json"),
        ("/schema", "application/json"),
        ("/docs", "text/html"),
        ("/", "text/html"),
    ],
)
def test_they_are_open_to_everybody(path: str, kind: str, served: Running):
    answer = served.ask("GET", path, None, {})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(kind)


@pytest.mark.parametrize(("held", "status"), [({}, 401), (token("acme", "admin"), 403), (token(None, "operator"), 200)])
def test_numbers_are_for_operators(held: dict[str, str], status: int, served: Running):
    answer = served.ask("GET", "/metrics", None, held)
    assert answer.status == status
    assert (b"tenure_verb_seconds" in answer.body) == (status == 200)


def test_numbers_for_everyone_where_that_is_asked_for():
    with running(open_metrics=True) as served:
        assert b"tenure_verb_seconds" in served.ask("GET", "/metrics", None, {}).body


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/not/there", 404, "not_found"),
        ("GET", "/v2/queues", 404, "not_found"),
        ("POST", "/healthz", 405, "invalid_argument"),
        ("GET", "/v1/not-there", 401, "unauthenticated"),
    ],
)
def test_an_unknown_route_is_answered_with_a_problem(method: str, path: str, status: int, code: str, served: Running):
    answer = served.ask(method, path, None, {})
    assert answer.headers["content-type"] == "application/problem+json"
    found = json.loads(answer.body)
    assert (answer.status, found["status"], found["code"]) == (status, status, code)


def test_every_route_is_described_with_an_example(served: Running):
    document = json.loads(served.ask("GET", "/schema", None, {}).body)
    tags = {tag["name"] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert "```sh\ncurl " in operation["description"], path
            assert set(operation["tags"]) <= tags
    assert tags <= {title.lower() for title in cli.themes}, "the command line has groups of other names"


def test_the_reference_loads_this_servers_files_only(served: Running):
    page = served.ask("GET", "/docs", None, {})
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    for target in linked:
        assert target.startswith(("/", "#")), "it needs no other host"
        if target.startswith("/assets/"):
            assert served.ask("GET", target, None, {}).status == 200, target
    assert {"/assets/swagger-ui-bundle.js", "/assets/swagger-ui.css", "/assets/docs.js"} <= set(linked)
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy
