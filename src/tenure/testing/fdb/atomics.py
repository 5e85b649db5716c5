"""Atomic operations: functions of the stored value (None: there is none) and a parameter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import and_, or_, xor

VALUE_BYTES = 100_000


def _fitted(old: bytes | None, param: bytes) -> bytes:
    """The old value, cut or extended with zeros to the parameter's length."""
    return (old or b"")[: len(param)].ljust(len(param), b"\0")


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def _add(old: bytes | None, param: bytes) -> bytes:
    if not param:
        return b""
    return ((_number(_fitted(old, param)) + _number(param)) % (1 << 8 * len(param))).to_bytes(len(param), "little")


def _bits(combine: Callable[[int, int], int], old: bytes | None, param: bytes) -> bytes:
    return bytes(map(combine, _fitted(old, param), param))


def _bit_and(old: bytes | None, param: bytes) -> bytes:
    return param if old is None else _bits(and_, old, param)


def _append_if_fits(old: bytes | None, param: bytes) -> bytes:
    joined = (old or b"") + param
    return joined if len(joined) <= VALUE_BYTES else old or b""


def _max(old: bytes | None, param: bytes) -> bytes:
    fitted = _fitted(old, param)
    return fitted if _number(fitted) > _number(param) else param


def _min(old: bytes | None, param: bytes) -> bytes:
    if old is None:
        return param
    fitted = _fitted(old, param)
    return fitted if _number(fitted) < _number(param) else param


def _byte_min(old: bytes | None, param: bytes) -> bytes:
    return param if old is None else min(old, param)


def _byte_max(old: bytes | None, param: bytes) -> bytes:
    return param if old is None else max(old, param)


def _compare_and_clear(old: bytes | None, param: bytes) -> bytes | None:
    return None if old == param else old


OPERATIONS: dict[str, Callable[[bytes | None, bytes], bytes | None]] = {
    "add": _add,
    "bit_and": _bit_and,
    "bit_or": partial(_bits, or_),
    "bit_xor": partial(_bits, xor),
    "append_if_fits": _append_if_fits,
    "max": _max,
    "min": _min,
    "byte_min": _byte_min,
    "byte_max": _byte_max,
    "compare_and_clear": _compare_and_clear,
}
#: The binding's numbers of these operations, and of the two with a version stamp.
CODES = {
    "add": 2, "bit_and": 6, "bit_or": 7, "bit_xor": 8, "append_if_fits": 9, "max": 12, "min": 13,
    "set_versionstamped_key": 14, "set_versionstamped_value": 15, "byte_min": 16, "byte_max": 17,
    "compare_and_clear": 20,
}  # fmt: skip
