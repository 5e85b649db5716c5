"""Calls and results as bytes: by type hints, refused where they are made, never pickled."""

from __future__ import annotations

import datetime as dt
import enum
import json
import subprocess
import sys
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import App, InvalidArgument
from tenure.worker.codec import Codec, is_json, open_envelope


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Order(msgspec.Struct):
    id: uuid.UUID
    total: Decimal


def rich(
    when: dt.datetime,
    blob: bytes,
    point: Point,
    order: Order,
    colour: Colour,
    several: dict[str, list[Point]],
    path: Path = Path("."),
) -> tuple[int, dt.date]:
    return 1, dt.date(2026, 1, 1)


def variadic(first: int, /, second: int = 2, *rest: int, named: str = "n", **others: float) -> None: ...


def untyped(a, b=1): ...


@pytest.fixture(params=["json", "msgpack"])
def encoding(request) -> Any:
    return request.param


def there_and_back(codec: Codec, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    payload = codec.encode_call(args, kwargs)
    envelope = open_envelope(payload)
    assert envelope.task == codec.name
    assert is_json(payload) == (codec.encoding == "json")
    return codec.decode_call(envelope.args, is_json(payload))


def test_types_survive(encoding):
    given = {
        "when": dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC),
        "blob": b"\x00\xff",
        "point": Point(1, 2),
        "order": Order(uuid.UUID(int=7), Decimal("9.99")),
        "colour": Colour.RED,
        "several": {"a": [Point(3)]},
        "path": Path("a/b.png"),
    }
    assert there_and_back(Codec(rich, "t.rich", encoding), **given) == ((), given)
    assert there_and_back(Codec(rich, "t.rich", encoding), *given.values()) == ((), given)


def test_a_payload_is_written_by_anyone():
    assert json.loads(Codec(untyped, "t.untyped", "json").encode_call((1,), {})) == {
        "task": "t.untyped",
        "args": {"a": 1},
    }
    assert msgspec.msgpack.decode(Codec(untyped, "t.untyped", "msgpack").encode_call((1,), {"b": [2]})) == {
        "task": "t.untyped",
        "args": {"a": 1, "b": [2]},
    }
    assert open_envelope(b' { "task": "t" }').task == "t"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, 5), {}), ((1, 5, 6, 7), {"named": "x", "z": 0.5}), ((1,), {"second": 3}), ((1,), {"q": 1.0})],
)
def test_every_kind_of_parameter(encoding, args, kwargs):
    seen = []

    def variadic(first: int, /, second: int = 2, *rest: int, named: str = "n", **others: float) -> None:
        seen.append((first, second, rest, named, others))

    codec = Codec(variadic, "t.variadic", encoding)
    variadic(*args, **kwargs)
    again_args, again_kwargs = there_and_back(codec, *args, **kwargs)
    variadic(*again_args, **again_kwargs)
    assert seen[0] == seen[1]


def test_what_was_not_given_is_left_to_the_worker():
    assert b'"b"' not in Codec(untyped, "t.untyped", "json").encode_call((1,), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
        ((1,), {"c": 1}, "unexpected keyword argument 'c'"),
    ],
)
def test_a_call_the_function_would_refuse_is_refused(args, kwargs, told):
    with pytest.raises(TypeError, match=told):
        Codec(untyped, "t.untyped", "json").encode_call(args, kwargs)


def test_what_cannot_be_sent_is_named(encoding):
    codec = Codec(untyped, "t.untyped", encoding)
    with pytest.raises(InvalidArgument, match=r"task t\.untyped: b=object cannot be sent"):
        codec.encode_call((1,), {"b": object()})
    with pytest.raises(InvalidArgument, match="b=dict cannot be sent"):
        codec.encode_call((1,), {"b": {"deep": [lambda: 0]}})


def test_a_wrong_type_raises_at_the_call(encoding):
    codec = Codec(rich, "t.rich", encoding)
    good: tuple[Any, ...] = (dt.datetime.now(dt.UTC), b"", Point(1), Order(uuid.uuid4(), Decimal(1)), Colour.RED, {})
    codec.encode_call(good, {})
    with pytest.raises(InvalidArgument, match=r"datetime.*\$\.when"):
        codec.encode_call(("yesterday", *good[1:]), {})


def test_a_worker_refuses_what_does_not_fit():
    codec = Codec(variadic, "t.variadic", "json")
    with pytest.raises(InvalidArgument, match=r"Expected 'int', got 'str'"):
        codec.decode_call(b'{"first": "one"}', True)
    with pytest.raises(InvalidArgument, match="unknown field"):
        codec.decode_call(b'{"first": 1, "nonsense": 2}', True)
    with pytest.raises(InvalidArgument, match="missing argument 'first'"):
        codec.decode_call(b"{}", True)


def test_types_that_no_bytes_can_carry_are_refused_by_name():
    class Socket: ...

    def handler(s: set[Socket]) -> None: ...

    handler.__annotations__ = {"s": int | set[bytes] | list[int] | Socket}
    with pytest.raises(InvalidArgument, match=r"task t\.handler"):
        Codec(handler, "t.handler", "json")


def test_results(encoding):
    codec = Codec(rich, "t.rich", encoding)
    assert codec.decode_result(codec.encode_result((1, dt.date(2026, 1, 1)))) == (1, dt.date(2026, 1, 1))
    assert Codec(untyped, "t.untyped", encoding).encode_result(None) is None
    assert codec.decode_result(None) is None
    with pytest.raises(InvalidArgument, match="its result cannot be kept"):
        codec.encode_result(object())


def test_a_result_of_another_type_is_refused(encoding):
    def count() -> int: ...  # type: ignore[empty-body]

    def nothing() -> None: ...

    def perhaps() -> int | None: ...

    codec = Codec(count, "t.count", encoding)
    assert codec.decode_result(codec.encode_result(3)) == 3
    for wrong in ("three", None, 3.5, [3]):
        with pytest.raises(InvalidArgument, match=r"task t\.count: its result is not what it is annotated to return"):
            codec.encode_result(wrong)
    assert Codec(nothing, "t.nothing", encoding).encode_result(None) is None
    with pytest.raises(InvalidArgument):
        Codec(nothing, "t.nothing", encoding).encode_result(1)
    assert Codec(perhaps, "t.perhaps", encoding).encode_result(None) is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_refuses_numbers_it_has_not(number):
    codec = Codec(untyped, "t.untyped", "json")
    with pytest.raises(InvalidArgument, match=r"b=list cannot be sent: JSON has no NaN.* at '\$\.b\[1\]\.c'"):
        codec.encode_call((1,), {"b": [None, {"c": number}]})
    with pytest.raises(InvalidArgument, match="its result cannot be kept: JSON has no NaN"):
        codec.encode_result([number])
    assert codec.encode_call((None,), {"b": "null"})

    def hinted(a: float | None = None) -> None: ...

    hinted.__annotations__ = {"a": float | None, "return": None}
    with pytest.raises(InvalidArgument, match="JSON has no NaN"):
        Codec(hinted, "t.hinted", "json").encode_call((number,), {})
    msgpack = Codec(untyped, "t.untyped", "msgpack")
    assert repr(there_and_back(msgpack, number)) == repr(((), {"a": number}))


class Money:
    """A class msgspec does not know."""

    def __init__(self, cents: int, currency: str) -> None:
        self.cents, self.currency = cents, currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and (self.cents, self.currency) == (other.cents, other.currency)

    __hash__ = None  # type: ignore[assignment]


def test_an_app_registers_types_of_its_own():
    app = App("memory:")
    app.register_type(Money, encode=lambda m: [m.cents, m.currency], decode=lambda data: Money(*data))

    @app.task
    def pay(price: Money, tips: list[Money], limit: Money | None = None) -> Money:
        return Money(price.cents + sum(tip.cents for tip in tips), price.currency)

    with app, app.worker():
        assert pay.delay(Money(500, "EUR"), [Money(50, "EUR")]).result() == Money(550, "EUR")
        with pytest.raises(InvalidArgument, match=r"Expected .*price|price"):
            pay.delay(5, [])  # type: ignore[arg-type]
    for known in (int, Point, Order, dt.datetime):
        with pytest.raises(InvalidArgument, match="is encoded by msgspec itself"):
            app.register_type(known, encode=str, decode=known)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="is not a class"):
        app.register_type(list[Money], encode=str, decode=list)


def test_pydantic_models(encoding):
    from pydantic import BaseModel, Field, SecretStr, computed_field

    class Item(BaseModel):
        name: str
        price: Decimal

    class Cart(BaseModel):
        model_config = {"extra": "forbid"}
        owner: uuid.UUID
        items: list[Item]
        placed_at: dt.datetime = Field(alias="placedAt")

        @computed_field  # type: ignore[prop-decorator]
        @property
        def count(self) -> int:
            return len(self.items)

    class Login(BaseModel):
        password: SecretStr
        score: float = 0.0

    def order(cart: Cart, more: dict[str, Item] | None = None) -> Item: ...  # type: ignore[empty-body]

    order.__annotations__ = {"cart": Cart, "more": dict[str, Item] | None, "return": Item}
    codec = Codec(order, "t.order", encoding)
    cart = Cart(owner=uuid.uuid4(), items=[Item(name="tea", price=Decimal("3.50"))], placedAt=dt.datetime.now(dt.UTC))
    assert there_and_back(codec, cart, {"a": cart.items[0]}) == ((), {"cart": cart, "more": {"a": cart.items[0]}})
    assert codec.decode_result(codec.encode_result(cart.items[0])) == cart.items[0]
    with pytest.raises(InvalidArgument, match="result is not what it is annotated to return"):
        codec.encode_result({"name": "tea"})
    with pytest.raises(InvalidArgument, match=r"price"):
        codec.decode_call(b'{"cart":{"owner":"%s","items":[{"name":"x"}]}}' % str(cart.owner).encode(), True)

    def login(how: Login) -> None: ...

    login.__annotations__ = {"how": Login, "return": None}
    codec = Codec(login, "t.login", encoding)
    with pytest.raises(InvalidArgument, match="Login would arrive changed: password"):
        codec.encode_call((Login(password=SecretStr("secret")),), {})
    number = Login(password=SecretStr(""), score=float("nan"))
    if encoding == "json":
        with pytest.raises(InvalidArgument, match=r"JSON has no NaN.*'\$.how.score'"):
            codec.encode_call((number,), {})
    else:
        assert str(there_and_back(codec, number)[1]["how"].score) == "nan"


def test_pydantic_is_not_imported_for_tasks_without_it():
    code = """
import sys
from tenure import App
app = App("memory:")
@app.task
def add(a: int) -> int: return a
with app, app.worker():
    assert add.delay(1).result() == 1
    try: add.delay(object())
    except ValueError: pass
print("pydantic" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "False", ran.stderr


@pytest.mark.parametrize(
    "payload",
    [
        b'{"task":"t","args":' + b"[" * 2000,
        b"\x82\xa4task\xa1t\xa4args" + b"\x91" * 2000,
        b"",
        b"hello",
        b"{}",
        b"[1]",
        b"\x93\x01\x02\x03",
        b'{"task": 1}',
        b"\xff\xfe",
        b'{"task":',
    ],
)
def test_what_is_no_payload_of_a_task(payload):
    with pytest.raises(InvalidArgument, match="not a task's payload"):
        open_envelope(payload)


def test_text_that_is_no_payload_of_a_task_is_quoted():
    with pytest.raises(InvalidArgument) as caught:
        open_envelope(b"hello, worker")
    assert "b'hello, worker'" in str(caught.value)
    assert "int" not in str(caught.value)


def test_a_type_that_cannot_be_made_again_is_refused_at_the_call():
    class Mine:
        pass

    def take(x: Mine) -> None: ...

    take.__annotations__ = {"x": Mine}
    with pytest.raises(InvalidArgument, match="x=Mine cannot be sent"):
        Codec(take, "t.take", "json").encode_call((Mine(),), {})
    with pytest.raises(InvalidArgument, match="no way to make a Mine of str"):
        Codec(take, "t.take", "json").encode_call(("text",), {})
