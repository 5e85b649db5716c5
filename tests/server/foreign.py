"""Requests about another tenant's things, made up from the table of operations: a new route is asked without being named here.

A path or a field that names something (a job, a lease, a receipt, a cursor …) is filled with what belongs to the other
tenant. One that this module does not know is an error, so that nobody adds a way to name things and forgets it here.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from msgspec import inspect

from tenure.protocol.calls import Operation
from tenure.protocol.messages import SettleAlike
from tenure.protocol.operations import OPERATIONS


class Things(NamedTuple):
    """What the other tenant has. Each is a list: one of every state."""

    tenant: str
    queue: str
    jobs: list[str]
    lease: str
    receipts: list[str]
    cursors: list[str]
    events: str
    claim: str
    key: str
    consumer: str
    snapshot: str = "a-snapshot"
    write: str = "a-write"


class Probe(NamedTuple):
    operation: Operation
    target: str
    #: None: no body.
    body: object

    @property
    def wire(self) -> tuple[str, str, bytes | None]:
        return self.operation.method, self.target, None if self.body is None else msgspec.json.encode(self.body)


#: Fields of text that name nothing. (Numbers, switches and bytes never do.)
PLAIN = {"until_signal", "waits_for", "cron", "tz", "missed", "group", "groups", "index", "on_conflict", "refused", "rate", "requests", "end", "begin", "columns", "text", "headers", "worker", "error", "note", "progress_note", "reason", "path", "jobs", "state", "jitter", "kind"
}  # fmt: skip


def probes(things: Things) -> Iterator[Probe]:
    for operation in OPERATIONS.values():
        if operation.local:
            continue
        for path in _paths(operation.path, things):
            for request in _requests(operation.asks, things):
                if operation.in_query:
                    query = urlencode(request, doseq=True) if isinstance(request, dict) else ""
                    yield Probe(operation, path + (f"?{query}" if query else ""), None)
                else:
                    yield Probe(operation, path, request)


def _paths(path: str, things: Things) -> Iterator[str]:
    named = re.search(r"\{(\w+)\}", path)
    if named is None:
        yield path
        return
    for value in _named(named[1], things):
        yield from _paths(path.replace(named[0], value, 1), things)


def _named(what: str, things: Things) -> list[str]:
    known = {
        "queue": [things.queue],
        "job": things.jobs,
        "lease": [things.lease],
        "consumer": [things.consumer],
        "tenant": [things.tenant],
        "snapshot": [things.snapshot],
        "id": [things.snapshot, things.write],
        "write": [things.write],
        "table": ["jobs"],
        "chunk": ["0"],
        "request": ["a-request"],
        "schedule": ["a-schedule"],
        "part": ["p0-a.arrow"],
        "piece": ["0"],
    }
    if what not in known:
        raise AssertionError(f"a path names a {what!r}: say in tests/server/foreign.py what another tenant's is")
    return known[what]


def _requests(asks: Any, things: Things) -> list[Any]:
    """The least request, and that with each field that names something naming the other tenant's."""
    return _values(inspect.type_info(asks), "", things)


def _values(kind: inspect.Type, name: str, things: Things) -> list[Any]:
    """The first is the least there can be."""
    if name and _is_text(kind):
        foreign = _foreign(name, things)
        if name == "after" and _takes_many(kind):  # a job's parents, not a place in a list
            foreign = [[job] for job in things.jobs]
        if foreign is not None:
            return foreign if _takes_many(kind) else [",".join(f) if isinstance(f, list) else f for f in foreign]
    match kind:
        case inspect.StructType():
            return _structs(kind, things)
        case inspect.ListType():
            return [[item] for item in _values(kind.item_type, "", things)]
        case inspect.DictType():
            return [{things.queue: item} for item in _values(kind.value_type, "", things)]
        case inspect.UnionType():
            return [
                value
                for one in kind.types
                if not isinstance(one, inspect.NoneType)
                for value in _values(one, "", things)
            ]
        case inspect.IntType():
            return [kind.ge if kind.ge is not None else 1]
        case inspect.FloatType():
            return [0.5]
        case inspect.BoolType():
            return [False]
        case inspect.LiteralType():
            return [kind.values[0]]
        case inspect.StrType():
            return ["x" * max(1, kind.min_length or 0)]
        case inspect.BytesType():
            return ["AAAA"]
    raise AssertionError(f"{name!r} is a {type(kind).__name__}: say in tests/server/foreign.py how it may look")


def _takes_many(kind: inspect.Type) -> bool:
    """Whether it is a list; where names come in one text, commas part them."""
    if isinstance(kind, inspect.UnionType):
        return any(_takes_many(one) for one in kind.types)
    return isinstance(kind, inspect.ListType)


def _is_text(kind: inspect.Type) -> bool:
    match kind:
        case inspect.StrType():
            return True
        case inspect.ListType():
            return _is_text(kind.item_type)
        case inspect.DictType():
            return True
        case inspect.UnionType():
            return any(_is_text(one) for one in kind.types)
    return False


def _structs(kind: inspect.StructType, things: Things) -> list[Any]:
    if kind.cls is SettleAlike:  # a proof in parts, which only together name anything
        parts = [receipt.split(".") for receipt in things.receipts]
        return [
            {"verb": verb, "lease": lease, "jobs": b64encode(bytes.fromhex(job)).decode(), "tokens": [int(token, 16)]}
            for verb in ("ack", "release")
            for job, lease, token in parts
        ]
    found = {field.encode_name: _values(field.type, field.name, things) for field in kind.fields}
    least = {field.encode_name: found[field.encode_name][0] for field in kind.fields if field.required}
    if {"payload", "text"} <= set(found):
        least["text"] = "mine"
    return [least, *({**least, name: value} for name, values in found.items() for value in values)]


def _foreign(name: str, things: Things) -> list[Any] | None:
    known: dict[str, list[Any]] = {
        "receipt": things.receipts,
        "cursor": things.cursors,
        "after": [things.events, *things.cursors],
        "ids": [[job] for job in things.jobs],
        "tokens": [{job: token} for job in things.jobs for token in (0, 1)],
        "id": [*things.jobs, things.claim],
        "key": [things.key],
        "queues": [[things.queue], [f"{things.tenant}/{things.queue}"]],
        "tenants": [[things.tenant]],
        "weights": [{things.tenant: 2.0}, {f"{things.tenant}/{things.queue}": 2.0}],
        "excluding": [[things.queue]],
        "consumer": [things.consumer],
        "tenant": [things.tenant],
        "queue": [things.queue],
        "forget": [things.write],
        "name": [things.snapshot],
        "existing": [*things.jobs],
    }
    if name not in known and name not in PLAIN:
        raise AssertionError(f"a request has a field {name!r}: say in tests/server/foreign.py what another tenant's is")
    return known.get(name)
