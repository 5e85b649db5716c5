"""Sealed cursors of the journal.

A cursor names every queue of the store and how far each was read. Its holder may be a tenant, who must learn nothing
about other tenants' queues.

    cursor = base64(tag ‖ text ⊕ stream)      tag = BLAKE2b(key, text)[:16]      stream = SHAKE-256(key ‖ tag)

The tag depends on the whole text and is the nonce of the stream, so equal texts give equal cursors, and a changed or
made-up cursor is refused. The text is padded to a power of two, so that its length tells the number of queues only
roughly. The key is random, made once for each store, and kept beside the names of its queues.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

KEY_BYTES = 32
_TAG = 16
_LENGTH = 4
_LEAST = 64


class CursorSeal:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, text: bytes) -> str:
        whole = len(text).to_bytes(_LENGTH, "big") + text
        size = max(_LEAST, 1 << (len(whole) - 1).bit_length())
        padded = whole.ljust(size, b"\0")
        tag = self._tag(padded)
        return base64.urlsafe_b64encode(tag + self._xor_stream(tag, padded)).decode().rstrip("=")

    def open(self, cursor: str) -> bytes | None:
        """Return the sealed text; None if it was changed, or sealed with another key."""
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            return None
        tag = raw[:_TAG]
        padded = self._xor_stream(tag, raw[_TAG:])
        if len(padded) < _LEAST or not hmac.compare_digest(tag, self._tag(padded)):
            return None
        return padded[_LENGTH : _LENGTH + int.from_bytes(padded[:_LENGTH], "big")]

    def _tag(self, padded: bytes) -> bytes:
        return hashlib.blake2b(padded, key=self._key, digest_size=_TAG, person=b"tenure cursor").digest()

    def _xor_stream(self, tag: bytes, text: bytes) -> bytes:
        stream = hashlib.shake_256(self._key + tag).digest(len(text))
        return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")
