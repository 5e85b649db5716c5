"""Types that msgspec does not encode by itself: paths, Pydantic models, and those an app registers.

Pydantic is not imported for this: a task that uses a model has imported it.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from tenure.errors import InvalidArgument

T = TypeVar("T")


class ExtraTypes:
    """The encoders of one app. `json` and `msgpack` encode a value; `decode` is msgspec's `dec_hook`."""

    def __init__(self) -> None:
        self._registered: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}
        self.json = msgspec.json.Encoder(enc_hook=self.encode).encode
        self.msgpack = msgspec.msgpack.Encoder(enc_hook=self.encode).encode

    def register(self, kind: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
        """Send values of `kind` as what `encode` makes of them. Raises InvalidArgument for a type msgspec knows."""
        if not isinstance(kind, type):
            raise InvalidArgument(f"{kind!r} is not a class")
        if not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
            raise InvalidArgument(f"{kind.__name__} is encoded by msgspec itself, and cannot be registered")
        self._registered[kind] = (encode, decode)

    def encode(self, value: Any) -> Any:
        """msgspec's `enc_hook`. Raises TypeError."""
        for kind in type(value).__mro__:
            found = self._registered.get(kind)
            if found is not None:
                return found[0](value)
        if isinstance(value, PurePath):
            return str(value)
        model = _pydantic_model()
        if model is not None and isinstance(value, model):
            return _dump_model(value)
        raise TypeError(f"no way to encode a {type(value).__name__}")

    def decode(self, kind: Any, value: Any) -> Any:
        """msgspec's `dec_hook`. Raises TypeError or ValueError, which msgspec turns into a ValidationError."""
        if kind is object:
            return value  # "anything", as some write it
        found = self._registered.get(kind)
        if found is not None:
            return found[1](value)
        origin = typing.get_origin(kind) or kind
        if issubclass(origin, PurePath) and isinstance(value, str):
            return origin(value)
        model = _pydantic_model()
        if model is not None and issubclass(origin, model):
            return kind.model_validate(value)
        raise TypeError(f"no way to make a {getattr(kind, '__name__', kind)} of {type(value).__name__}")

    def non_finite(self, value: Any) -> str | None:
        """Where a value has a NaN or an infinity, which JSON cannot carry: `$.a[0]`; None if nowhere."""
        return _find_non_finite(msgspec.to_builtins(value, enc_hook=self.encode, str_keys=True), "$")


def _find_non_finite(value: Any, path: str) -> str | None:
    if isinstance(value, float):
        return None if float("-inf") < value < float("inf") else path
    if isinstance(value, dict):
        parts = ((f"{path}.{key}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"{path}[{index}]", part) for index, part in enumerate(value))
    else:
        return None
    return next((found for where, part in parts if (found := _find_non_finite(part, where)) is not None), None)


def _pydantic_model() -> Any:
    """`pydantic.BaseModel` (a type), or None where nobody has imported Pydantic."""
    return getattr(sys.modules.get("pydantic"), "BaseModel", None)


def _dump_model(value: Any) -> Any:
    """A Pydantic model as plain data. Raises TypeError for one that would arrive changed (a SecretStr as asterisks)."""
    dumped = value.model_dump(mode="json", by_alias=True, round_trip=True)
    again = type(value).model_validate(dumped)
    if again.model_dump() != value.model_dump():
        fields = [name for name in type(value).model_fields if getattr(again, name) != getattr(value, name)]
        raise TypeError(f"{type(value).__name__} would arrive changed: {', '.join(fields) or 'its fields'}")
    return dumped
