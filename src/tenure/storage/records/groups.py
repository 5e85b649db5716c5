"""The record of a group: counts of its jobs, the state of its limits, its places in the order of turns."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import NamedTuple

from tenure.storage.records.framing import V1, damaged, new_tuple, seal, unseal
from tenure.storage.records.turns import TurnRecord

_GROUP = Struct(">BHQQQB")
_PLACE = Struct(">BBQQ")
_pack = _GROUP.pack
_pack_place = _PLACE.pack
_SIZE = _GROUP.size
_unpack = _GROUP.unpack_from
_unpack_place = _PLACE.unpack_from

NO_PLACES: Mapping[int, TurnRecord] = MappingProxyType({})


class GroupRecord(NamedTuple):
    #: A bit for each priority whose turn the group lost when it reached its limit of leased jobs.
    at_limit: int
    waiting: int
    leased: int
    #: When its rate's bucket is full again, in nanoseconds; 0: it is full.
    full_at_ns: int
    name: bytes
    #: By tier (9 − priority): its place among the groups of that priority. Without a place it gets no turn.
    places: Mapping[int, TurnRecord] = NO_PLACES


def encode_group(record: GroupRecord) -> bytes:
    at_limit, waiting, leased, full_at_ns, name, places = record
    body = _pack(V1, at_limit, waiting, leased, full_at_ns, len(name)) + name
    for tier, (status, at_ms, virtual_time, _) in sorted(places.items()) if len(places) > 1 else places.items():
        body += _pack_place(tier, status, at_ms, virtual_time)
    return seal(body)


def decode_group(value: bytes) -> GroupRecord:
    body = unseal("the row of a group", value)
    size = len(body)
    _, at_limit, waiting, leased, full_at_ns, length = _unpack(body) if size > _SIZE else _NOTHING
    end = _SIZE + length
    if not length or (size - end) % _PLACE.size or end > size:
        raise damaged("the row of a group", value)
    places = NO_PLACES if end == size else _places(body, end)
    return new_tuple(GroupRecord, (at_limit, waiting, leased, full_at_ns, body[_SIZE:end], places))


def _places(body: bytes, at: int) -> dict[int, TurnRecord]:
    found = {}
    for begin in range(at, len(body), _PLACE.size):
        tier, status, at_ms, virtual_time = _unpack_place(body, begin)
        found[tier] = new_tuple(TurnRecord, (status, at_ms, virtual_time, b""))
    return found


_NOTHING = (0, 0, 0, 0, 0, 0)
