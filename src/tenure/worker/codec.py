"""Calls and results as bytes, by type hints. JSON or MessagePack; nothing is ever unpickled.

A payload is one object, which a person or a program in another language can write:

    {"task": "tasks.send", "args": {"to": "a@b", "subject": "hi"}}

Arguments go by name. Those that were not given are left out, so that the worker's defaults decide. What was encoded is
decoded again before it is enqueued: a call that a worker could not read is refused where it was made.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Literal

import msgspec

from tenure.errors import InvalidArgument

Encoding = Literal["json", "msgpack"]
ENCODINGS: tuple[Encoding, ...] = ("json", "msgpack")

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


class Envelope(msgspec.Struct, frozen=True):
    """A payload, its arguments not yet read."""

    task: str
    args: msgspec.Raw = msgspec.Raw(b"{}")


_json_envelope = msgspec.json.Decoder(Envelope)
_msgpack_envelope = msgspec.msgpack.Decoder(Envelope)


def _also(value: Any) -> Any:
    """What msgspec does not know and tasks are often given: paths, as text."""
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"no way to encode a {type(value).__name__}")


def _also_back(kind: type, value: Any) -> Any:
    if kind is object:
        return value  # "anything", as some write it
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise TypeError(f"no way to make a {getattr(kind, '__name__', kind)} of {type(value).__name__}")


_json_encode = msgspec.json.Encoder(enc_hook=_also).encode
_msgpack_encode = msgspec.msgpack.Encoder(enc_hook=_also).encode


def is_json(data: bytes) -> bool:
    """A MessagePack object never begins with what an object in JSON may begin with."""
    return data[:1] in (b"{", b" ", b"\n", b"\t", b"\r")


def open_envelope(payload: bytes) -> Envelope:
    """Which task a payload is for. Raises InvalidArgument."""
    try:
        return (_json_envelope if is_json(payload) else _msgpack_envelope).decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"not a task's payload: {_why_no_envelope(payload, exc)}") from None


def _why_no_envelope(payload: bytes, error: Exception) -> str:
    """The reason in words: the decoder would call the first letter of a text an integer of MessagePack."""
    if not is_json(payload) and payload and payload[0] < 0x80:
        return (
            f'it begins with {payload[:20]!r}, and should be an object such as {{"task": "tasks.send", "args": {{}}}}'
        )
    return str(error)


class Codec:
    """One function's calls and results. Made when it is first needed, since hints may name what is defined later."""

    def __init__(self, function: Callable[..., Any], name: str, encoding: Encoding) -> None:
        self.name = name
        self.encoding = encoding
        self._signature = inspect.signature(function)
        hints = _hints(function, name)
        parameters = self._signature.parameters.values()
        self._names = tuple(p.name for p in parameters)
        #: Whether a call is keywords and nothing else, as nearly every function's can be.
        self._plain = all(p.kind not in (_POSITIONAL, _VAR_POSITIONAL, _VAR_KEYWORD) for p in parameters)
        self._positional = tuple(
            p.name for p in parameters if p.kind in (_POSITIONAL, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        )
        self._required = frozenset(
            p.name for p in parameters if p.default is p.empty and p.kind not in (_VAR_POSITIONAL, _VAR_KEYWORD)
        )
        self._shape = _shape(name, parameters, hints)
        self._result_type = hints.get("return", Any)
        try:
            self._json_args = msgspec.json.Decoder(self._shape, dec_hook=_also_back)
            self._msgpack_args = msgspec.msgpack.Decoder(self._shape, dec_hook=_also_back)
            self._json_result = msgspec.json.Decoder(self._result_type, dec_hook=_also_back)
            self._msgpack_result = msgspec.msgpack.Decoder(self._result_type, dec_hook=_also_back)
        except TypeError as exc:
            raise InvalidArgument(f"task {name}: {exc}: give it types that JSON can carry") from None
        if encoding == "json":
            self._encode: Callable[[Any], bytes] = _json_encode
            self._head, self._tail = b'{"task":' + _json_encode(name) + b',"args":', b"}"
        else:
            self._encode = _msgpack_encode
            self._head, self._tail = b"\x82\xa4task" + _msgpack_encode(name) + b"\xa4args", b""

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Raises TypeError for what the function would not take, InvalidArgument for what cannot be sent."""
        given = self._bind(args, kwargs)
        try:
            encoded = self._encode(given)
        except (TypeError, ValueError, OverflowError) as exc:
            raise InvalidArgument(f"task {self.name}: {self._culprit(given)}: {exc}") from None
        try:
            (self._json_args if self.encoding == "json" else self._msgpack_args).decode(encoded)
        except msgspec.ValidationError as exc:
            raise InvalidArgument(f"task {self.name}: {_plainly(exc)}") from None
        return self._head + encoded + self._tail

    def encode_named(self, arguments: bytes) -> bytes:
        """A call whose arguments are an object in JSON already: from a command line. Raises InvalidArgument."""
        try:
            decoded = self._json_args.decode(arguments)
        except msgspec.ValidationError as exc:
            raise InvalidArgument(f"task {self.name}: {_plainly(exc)}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise InvalidArgument(f"the arguments of {self.name} have to be a JSON object: {exc}") from None
        args, kwargs = self._call_of(decoded)
        return self.encode_call(args, kwargs)

    def decode_call(self, arguments: msgspec.Raw | bytes, as_json: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) to call the function with. Raises InvalidArgument."""
        try:
            decoded = (self._json_args if as_json else self._msgpack_args).decode(arguments)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise InvalidArgument(f"the arguments do not fit task {self.name}: {_plainly(exc)}") from None
        return self._call_of(decoded)

    def _call_of(self, decoded: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        unset = msgspec.UNSET
        if self._plain:
            return (), {name: value for name in self._names if (value := getattr(decoded, name)) is not unset}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gap = False  # a positional argument that was not given: what follows it can only go by name
        for name, parameter in self._signature.parameters.items():
            value = getattr(decoded, name)
            if value is unset:
                gap = gap or parameter.kind in (_POSITIONAL, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            elif parameter.kind is _VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is _VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY or gap:
                kwargs[name] = value
            else:
                args.append(value)
        return tuple(args), kwargs

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. `Signature.bind` takes 5 µs for what this does in one; it is kept for the unusual."""
        if self._plain and len(args) <= len(self._positional):
            given = dict(zip(self._positional, args, strict=False))
            if not kwargs:
                if given.keys() >= self._required:
                    return given
            elif given.keys().isdisjoint(kwargs) and kwargs.keys() <= set(self._names):
                given.update(kwargs)
                if given.keys() >= self._required:
                    return given
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as exc:
            raise TypeError(f"task {self.name}: {exc}") from None

    def _culprit(self, given: Mapping[str, Any]) -> str:
        for name, value in given.items():
            try:
                self._encode(value)
            except (TypeError, ValueError, OverflowError):
                return f"{name}={type(value).__name__} cannot be sent"
        return "the arguments cannot be sent"

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode_result(self, result: Any) -> bytes | None:
        """None is no result, and is not kept."""
        if result is None:
            return None
        try:
            return self._encode(result)
        except (TypeError, ValueError, OverflowError) as exc:
            raise InvalidArgument(f"task {self.name}: its result cannot be kept: {exc}") from None

    def decode_result(self, data: bytes | None) -> Any:
        if data is None:
            return None
        # Told apart by the task's encoding, not by a look: any bytes may begin a result.
        decoder = self._json_result if self.encoding == "json" else self._msgpack_result
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise InvalidArgument(f"the result is not what task {self.name} returns: {_plainly(exc)}") from None


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError) as exc:
        raise InvalidArgument(f"task {name}: its type hints cannot be read: {exc}") from None


def _shape(name: str, parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any]) -> type[msgspec.Struct]:
    """A struct with a field for every parameter; those with a default may be left out."""
    fields: list[Any] = []
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        if parameter.kind is _VAR_POSITIONAL:
            hint = list[hint]  # type: ignore[valid-type]  # a type made at run time
        elif parameter.kind is _VAR_KEYWORD:
            hint = dict[str, hint]  # type: ignore[valid-type]
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
            continue
        # Not `hint | …`: a hint may be anything `typing` knows, and not all of it has the operator.
        optional = Any if hint is Any else typing.Union[hint, msgspec.UnsetType]  # noqa: UP007
        fields.append((parameter.name, optional, msgspec.UNSET))
    try:
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as exc:
        raise InvalidArgument(f"task {name}: {exc}") from None


def _plainly(error: Exception) -> str:
    return str(error).replace("Object missing required field", "missing argument").replace("`", "'")
