"""Results of parents as arguments: the worker adds them to a step's payload before it calls the handler.

    {"task": "tasks.index", "args": {"to": "web"}, "parents": {"pages": {"runs": [[0, 1000, "json"]], "many": true}}}

`pages` is the list of the results of the first thousand parents, in the order in which the job names them. If both
tasks have the same encoding, results are not decoded on the way: the step's own type hints decode them. A parent that
returned None, or that died and counts as ended (`on_parent_dead="run"`), gives None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.api.queue import Queue
from tenure.errors import InvalidArgument
from tenure.model.job import ParentResult
from tenure.model.lease import Delivery
from tenure.worker.codec import Encoding, Envelope, FromParents, ParentRun, is_json, open_envelope

_MODULES: dict[str, Any] = {"json": msgspec.json, "msgpack": msgspec.msgpack}
_NONE = {"json": b"null", "msgpack": b"\xc0"}
#: The bytes that every payload with results of parents contains, in either encoding.
_MARK = b"parents"


def takes_results(payload: bytes) -> bool:
    """Whether a payload may take results of parents: one search, which says False for nearly all."""
    return _MARK in payload


def payload_with_results(queue: Queue, job: Delivery | str, payload: bytes) -> bytes:
    """Return the complete payload of a delivery, or of a job by its id, reading its parents' results if it takes any.

    Raises InvalidArgument for a payload that names a parent the job does not have, and what `Queue.parents` raises.
    """
    if not takes_results(payload):
        return payload
    try:
        envelope = open_envelope(payload)
    except InvalidArgument:
        return payload  # running it fails the job, with the reason
    return fill(payload, envelope, queue.parents(job)) if envelope.parents else payload


def fill(payload: bytes, envelope: Envelope, parents: Sequence[ParentResult]) -> bytes:
    """Return the payload with its parents' results as arguments. Raises InvalidArgument."""
    encoding: Encoding = "json" if is_json(payload) else "msgpack"
    module = _MODULES[encoding]
    args: dict[str, Any] = module.decode(envelope.args, type=dict[str, msgspec.Raw])
    for name, source in envelope.parents.items():
        results = [
            _result(parent, run.encoding, encoding)
            for run in source.runs
            for parent in _parents(parents, run.first, run.count, envelope.task)
        ]
        args[name] = results if source.many else results[0]
    filled: bytes = module.encode(Envelope(envelope.task, msgspec.Raw(module.encode(args))))
    return filled


def _parents(parents: Sequence[ParentResult], first: int, count: int, task: str) -> Sequence[ParentResult]:
    found = parents[first : first + count]
    if len(found) != count or count < 0 or first < 0:
        raise InvalidArgument(f"task {task} takes results of {first + count} parents, and the job has {len(parents)}")
    return found


def _result(parent: ParentResult, encoding: Encoding, wanted: Encoding) -> msgspec.Raw:
    if parent.result is None:
        return msgspec.Raw(_NONE[wanted])
    if encoding == wanted:
        return msgspec.Raw(parent.result)
    return msgspec.Raw(_MODULES[wanted].encode(_MODULES[encoding].decode(parent.result)))


def from_parents(places: Sequence[int], encodings: Sequence[Encoding], *, many: bool) -> FromParents:
    """Return an argument made of the parents at these positions, with as few runs as possible."""
    runs: list[ParentRun] = []
    for place, encoding in zip(places, encodings, strict=True):
        last = runs[-1] if runs else None
        if last is not None and last.first + last.count == place and last.encoding == encoding:
            runs[-1] = ParentRun(last.first, last.count + 1, encoding)
        else:
            runs.append(ParentRun(place, 1, encoding))
    return FromParents(runs, many)
