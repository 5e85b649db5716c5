"""Types that msgspec does not encode by itself: paths, Pydantic models, and types that an app registers.

Pydantic is not imported here: a task that uses a model has imported it.
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
        """Encode values of `kind` with `encode`. Raises InvalidArgument for a type that msgspec knows."""
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
        raise TypeError(f"no way to encode an object of type {type(value).__name__}")

    def decode(self, kind: Any, value: Any) -> Any:
        """msgspec's `dec_hook`. Raises TypeError or ValueError, which msgspec turns into a ValidationError."""
        if kind is object:
            return value  # `object` as a hint means anything
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
        """Return the path of a NaN or an infinity, which JSON cannot express: `$.a[0]`; None if there is none."""
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
    """Return `pydantic.BaseModel`, or None if Pydantic has not been imported."""
    return getattr(sys.modules.get("pydantic"), "BaseModel", None)


def _dump_model(value: Any) -> Any:
    """Return a Pydantic model as plain data. Raises TypeError if it would arrive changed (a SecretStr as asterisks)."""
    dumped = value.model_dump(mode="json", by_alias=True, round_trip=True)
    again = type(value).model_validate(dumped)
    if again.model_dump() != value.model_dump():
        fields = [name for name in type(value).model_fields if getattr(again, name) != getattr(value, name)]
        raise TypeError(f"{type(value).__name__} would arrive changed: {', '.join(fields) or 'its fields'}")
    return dumped
