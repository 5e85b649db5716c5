"""OpenAPI, generated from the table of operations."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tenure.model.names import NAME_PATTERN, TENANT_PATTERN
from tenure.protocol import messages as m
from tenure.protocol.calls import Operation
from tenure.protocol.formats import ARROW
from tenure.protocol.operations import OPERATIONS
from tenure.protocol.problems import FAULTS
from tenure.server.api_examples import WORDS, curl, example_of
from tenure.version import __version__

Schema = dict[str, Any]
"""An object of an OpenAPI document: JSON of any shape."""

_PATTERNS = {
    "queue": f"^{NAME_PATTERN}$",
    "tenant": f"^{TENANT_PATTERN}$",
    "consumer": f"^{NAME_PATTERN}$",
    "job": "^[0-9a-f]{32}$",
    "lease": "^[0-9a-f]{32}$",
    "request": r"^[A-Za-z0-9._-]{1,128}$",
    "chunk": "^[0-9]{1,9}$",
    "write": r"^[A-Za-z0-9._-]{1,200}$",
    "snapshot": r"^[a-z0-9][a-z0-9._-]{0,100}$",
    "table": r"^[a-z_]+$",
}
#: The purpose of each tag's operations, in reading order. The names are those of the command line's groups.
_PURPOSES = {
    "produce": "Enqueue and cancel jobs.",
    "consume": "Claim jobs under a lease, and settle each with its receipt.",
    "inspect": "Read only. Any scope will do.",
    "manage": "Policies, pauses, replays and purges of a tenant's queues.",
    "maintain": "The whole store, for operators.",
}
_ABOUT = """A durable, lease-based job queue: a job is settled only by the holder of its live lease.

JSON by default, MessagePack with `Content-Type` and `Accept: application/msgpack`; payloads are base64 in JSON. A server
that asks for tokens takes them as `Authorization: Bearer`. A refusal is a `Problem`, whose `code` says
why. A first job:

```sh
curl localhost:8400/v1/queues/emails/jobs -d '{"text": "to ada"}'
curl localhost:8400/v1/queues/emails/claims -d '{"wait_ms": 5000}'
curl localhost:8400/v1/queues/emails/settle -d '{"items": [{"verb": "ack", "receipt": "RECEIPT"}]}'
```"""
_TAGS = {"produce": "produce", "consume": "consume", "any": "inspect", "admin": "manage", "operator": "maintain"}


def openapi(operations: dict[str, Operation] = OPERATIONS) -> Schema:
    public = [operation for operation in operations.values() if not operation.local]
    kinds: list[Any] = [m.Problem]
    for operation in public:
        kinds += [operation.answers] if operation.in_query else [operation.asks, operation.answers]
    shown, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = iter(shown[1:])
    paths: dict[str, Schema] = {}
    for operation in public:
        asks = None if operation.in_query else next(schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, asks, next(schemas))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": __version__,
            "description": _ABOUT,
        },
        "tags": [{"name": tag, "description": purpose} for tag, purpose in _PURPOSES.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"token": []}],
    }


def _described(operation: Operation, asks: Any, answers: Any) -> Schema:
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _description(operation),
        "tags": [_TAGS[operation.scope]],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation), *_headers(operation)],
        "responses": {
            "200": {"description": "Done.", "content": _content(answers)},
            **_refusals(),
        },
    }
    if operation.answers is m.Stream:
        described["responses"]["200"]["content"] = {ARROW: {"schema": {"type": "string", "format": "binary"}}}
    if operation.name == "events":
        described["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    if asks is not None and operation.asks is not m.Nothing:
        content = _content(asks)
        if example_of(operation).body is not None:
            content["application/json"]["example"] = example_of(operation).body
        described["requestBody"] = {"required": True, "content": content}
    described["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": curl(operation)}]
    return described


def _description(operation: Operation) -> str:
    """Return the required scope, and the example as a curl command, in Markdown."""
    scope = "any scope" if operation.scope == "any" else f"the scope `{operation.scope}`"
    return f"Takes {scope}.\n\n```sh\n{curl(operation)}\n```"


def _content(schema: Any) -> Schema:
    return {"application/json": {"schema": schema}, "application/msgpack": {"schema": schema}}


def _path_parameters(operation: Operation) -> list[Schema]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": _PATTERNS.get(name, "^[^/]+$")},
            "example": WORDS[name],
        }
        for name in re.findall(r"{(\w+)}", operation.path)
    ]


def _query_parameters(operation: Operation) -> list[Schema]:
    if not operation.in_query or operation.asks is m.Nothing:
        return []
    (found,), components = msgspec.json.schema_components([operation.asks], ref_template="{name}")
    fields = components[found["$ref"]]["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": _plain(field)} for name, field in fields.items()]


def _plain(field: Schema) -> Schema:
    """Remove null from a query parameter's schema: an optional one is omitted instead."""
    choices = [choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
    schema = dict(choices[0]) if choices else dict(field)
    if field.get("default") is not None:
        schema["default"] = field["default"]
    else:
        schema.pop("default", None)
    return schema


def _headers(operation: Operation) -> list[Schema]:
    named = [
        {
            "name": "Tenure-Tenant",
            "in": "header",
            "required": False,
            "description": "An operator's choice of tenant.",
            "schema": {"type": "string", "pattern": _PATTERNS["queue"]},
        }
    ]
    if operation.remembered:
        named.append(
            {
                "name": "Tenure-Request",
                "in": "header",
                "required": False,
                "description": "The caller's id of the request: a repeat within ten minutes gets the first answer.",
                "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
            }
        )
    return named


def _refusals() -> Schema:
    """Return the response for all errors: one schema, whose code says which."""
    statuses: dict[int, list[str]] = {}
    for code, fault in FAULTS.items():
        statuses.setdefault(fault.status, []).append(code)
    problem = {"$ref": "#/components/schemas/Problem"}
    content = {"application/problem+json": {"schema": problem}, "application/problem+msgpack": {"schema": problem}}
    return {
        str(status): {"description": "code: " + ", ".join(codes), "content": content}
        for status, codes in sorted(statuses.items())
        if status < 500 or status == 503
    }
