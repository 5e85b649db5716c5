"""A payload or a result as text and in hex, up to a limit."""

from __future__ import annotations

from msgspec import Struct

#: How many bytes are shown.
TEXT_BYTES = 64 * 1024
HEX_BYTES = 4 * 1024


class Content(Struct):
    """A payload or a result, up to a limit. `text` is None if it is not UTF-8."""

    bytes: int
    text: str | None
    hex: str
    text_cut: bool
    hex_cut: bool


def content(data: bytes) -> Content:
    head = data[:TEXT_BYTES]
    try:
        text: str | None = head.decode()
    except UnicodeDecodeError as exc:
        # Cutting may have split the last character: that does not make it binary.
        split = len(head) < len(data) and exc.start >= len(head) - 3
        text = head[: exc.start].decode() if split else None
    return Content(len(data), text, data[:HEX_BYTES].hex(), len(data) > TEXT_BYTES, len(data) > HEX_BYTES)
