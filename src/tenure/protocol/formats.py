"""The two formats, JSON for people and MessagePack for programs: the same structs, chosen by `Content-Type` and
`Accept`.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from tenure.errors import InvalidArgument

T = TypeVar("T")
_making = threading.Lock()


class _Decode(Protocol):
    def __call__(self, raw: bytes | bytearray | memoryview) -> Any: ...


class Format(NamedTuple):
    name: str
    content_type: str
    problem_type: str
    encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder
    decoders: dict[Any, _Decode]

    def encode(self, thing: object) -> bytes:
        return self.encoder.encode(thing)

    def decode(self, raw: bytes | bytearray | memoryview, kind: type[T]) -> T:
        """Raises msgspec.DecodeError."""
        decode = self.decoders.get(kind)
        if decode is None:
            # Under a lock: msgspec crashes if two threads inspect the fields of one struct at once.
            with _making:
                made = msgspec.json.Decoder(kind) if self.name == "json" else msgspec.msgpack.Decoder(kind)
                decode = self.decoders[kind] = made.decode  # type: ignore[assignment]
        found: T = decode(raw)  # type: ignore[misc]
        return found


JSON = Format("json", "application/json", "application/problem+json", msgspec.json.Encoder(), {})
MSGPACK = Format("msgpack", "application/msgpack", "application/problem+msgpack", msgspec.msgpack.Encoder(), {})
ARROW = "application/vnd.apache.arrow.stream"
FORMATS = {"json": JSON, "msgpack": MSGPACK}

_BY_TYPE = {written.content_type: written for written in FORMATS.values()}
_MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


def of_body(content_type: str | None) -> Format:
    """Return the format of a request's body: JSON without a Content-Type, or with the one that `curl -d` sends."""
    if not content_type:
        return JSON
    known = _BY_TYPE.get(content_type)
    if known is not None:
        return known
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _MSGPACK_TYPES:
        return MSGPACK
    if kind in ("application/json", "application/x-www-form-urlencoded", "text/plain", "text/json", "*/*"):
        return JSON
    raise InvalidArgument(f"Content-Type {kind!r}: this server reads application/json and application/msgpack")


def of_reply(accept: str | None, body: Format) -> Format:
    """Return the format of the reply: the one that `Accept` names, else the request's."""
    if not accept:
        return body
    if "msgpack" in accept:
        return MSGPACK
    return JSON if "json" in accept else body
