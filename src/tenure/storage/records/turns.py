"""The record of a sub-queue's place in the order of turns."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tenure.storage.records.framing import V1, damaged, seal, unseal

_TURN = Struct(">BBQQ")


class TurnRecord(NamedTuple):
    status: int
    #: PARKED: when it gets a turn again.
    at_ms: int
    #: The service it has had, divided by its weight: the sub-queue with the least is next.
    virtual_time: int
    #: The sub-queue's name, if its key does not give it.
    name: bytes = b""


def encode_turn(record: TurnRecord) -> bytes:
    return seal(_TURN.pack(V1, record.status, record.at_ms, record.virtual_time) + record.name)


def decode_turn(value: bytes) -> TurnRecord:
    body = unseal("a place in the order of turns", value)
    if len(body) < _TURN.size:
        raise damaged("a place in the order of turns", value)
    _, status, at_ms, virtual_time = _TURN.unpack_from(body)
    return TurnRecord(status, at_ms, virtual_time, body[_TURN.size :])
