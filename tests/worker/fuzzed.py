"""Payloads that no producer of ours writes: mutated calls, deep nesting, lengths that lie, random bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from tenure import App

app = App("memory:", sweep=False)


class Node(msgspec.Struct):
    name: str
    children: list[Node] = []


@app.task(name="echo", max_attempts=1)
def echo(value: Any = None) -> Any:
    return value


@app.task(name="typed", max_attempts=1)
def typed(number: int, names: list[str], tree: Node | None = None, *rest: float, **others: bytes) -> int:
    return number


@app.task(name="later", max_attempts=1, encoding="msgpack")
async def later(value: dict[str, Any]) -> None: ...


@app.task(name="alive")
def alive(number: int) -> int:
    return number


_SEEDS: list[bytes] = [
    echo.codec.encode_call(([1, "two", {"three": None}],), {}),
    typed.codec.encode_call((1, ["a", "b"], Node("x", [Node("y")]), 1.5), {"blob": b"\x00\xff"}),
    later.codec.encode_call(({"a": [1, 2.5, "ü", b"x"]},), {}),
    b'{"task":"echo"}',
    b'{"task":"nobody.knows","args":{}}',
]
_PIECES = [
    b"[" * 2000, b'{"a":' * 3000, b"\x91" * 5000, b"\x81\xa1a" * 3000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"9" * 5000, b"1e999", b"-0", b"NaN", b'"\\ud800"', b"\\u0000",
    b"\xff\xfe", b"\xed\xa0\x80", b"null", b"{}", b"[]", b'"task"', b'"args"', b":", b",", b"}", b"]", b"\x00", b"\xc1",
    b"\xc7\xff\xff", b"\xd9\xff", b'{"task":"typed","args":', b"\x82\xa4task\xa5typed\xa4args",
    b" " * 100, b"\xc9" * 20,
]  # fmt: skip


_NAMES = ["value", "number", "names", "tree", "rest", "others", "x"]


def _value(dice: random.Random, depth: int) -> Any:
    """Any value that both encodings have: right and wrong types for the tasks above."""
    kind = dice.randrange(10 if depth < 4 else 7)
    if kind < 7:
        return dice.choice(
            [
                None,
                True,
                0,
                -1,
                2**63,
                1.5,
                1e300,
                "",
                "x" * dice.randrange(50),
                "\x00\u2028",
                dice.randint(-(2**31), 2**31),
            ]
        )
    if kind < 9:
        return [_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(["name", "children", "a", ""]): _value(dice, depth + 1) for _ in range(dice.randrange(4))}


def payloads(count: int, seed: int) -> Iterator[bytes]:
    """The same ones for the same seed. None is valid but by chance."""
    dice = random.Random(seed)
    for index in range(count):
        kind = dice.randrange(10)
        if kind >= 8:
            encode = msgspec.json.encode if kind == 8 else msgspec.msgpack.encode
            args: Any = {name: _value(dice, 0) for name in dice.sample(_NAMES, dice.randrange(4))}
            data = encode(
                {"task": dice.choice(list(app.tasks)), "args": args if dice.random() < 0.9 else _value(dice, 0)}
            )
        elif kind == 0:
            data = dice.randbytes(dice.randrange(200))
        elif kind == 1:
            data = b"".join(dice.choices(_PIECES, k=dice.randrange(1, 6)))
        else:
            changed = bytearray(dice.choice(_SEEDS))
            for _ in range(dice.randrange(1, 5)):
                at = dice.randrange(len(changed) + 1)
                change = dice.randrange(4)
                if change == 0 and at < len(changed):
                    changed[at] ^= 1 << dice.randrange(8)
                elif change == 1:
                    del changed[at : at + dice.randrange(1, 20)]
                elif change == 2:
                    changed[at:at] = dice.choice(_PIECES)
                else:
                    changed[at:at] = changed[at : at + dice.randrange(1, 30)]
            data = bytes(changed)
        yield data or bytes([index % 256])
