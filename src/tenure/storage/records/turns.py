"""The place of a sub-queue in the order of turns."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tenure.storage.records.framing import V1, damaged, seal, unseal

_TURN = Struct(">BBQQ")


class TurnRecord(NamedTuple):
    status: int
    #: When it gets a turn by itself (PARKED).
    at_ms: int
    #: How much it was served, divided by its weight: the least is next.
    virtual_time: int
    #: What the sub-queue is called, where its number does not tell.
    name: bytes = b""


def encode_turn(record: TurnRecord) -> bytes:
    return seal(_TURN.pack(V1, record.status, record.at_ms, record.virtual_time) + record.name)


def decode_turn(value: bytes) -> TurnRecord:
    body = unseal("a place in the order of turns", value)
    if len(body) < _TURN.size:
        raise damaged("a place in the order of turns", value)
    _, status, at_ms, virtual_time = _TURN.unpack_from(body)
    return TurnRecord(status, at_ms, virtual_time, body[_TURN.size :])
