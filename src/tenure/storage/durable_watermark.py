"""How far the log is known to reach: a lower bound beside the database, to tell a lost tail from a short one.

An engine that finds its last records damaged drops them and opens as if they had never been. So the commit (by whatever
number the engine counts them) known to be `written` (handed to the operating system) and `durable` (synced) is noted in
a small mapped file after the fact. On opening, a log that ends before its mark has lost something, and the store
refuses to serve. After a power cut only `durable` counts; within one boot of the machine (`boot_id`) nothing that was
written can be missing, so `written` does.

The file is two slots of 32 bytes, each with a CRC, and a word that holds `written` alone with a check of its own, so
that noting it costs one store; it is not synced itself, which can only make the bound lower.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from pathlib import Path
from struct import Struct

from tenure.storage.checksum import crc32

_SLOT = Struct("<8sQQ")  # boot, written, durable; a CRC follows
_BYTES = 72
WORD = 8  # the ninth word: `written` << 16 | check
_CRC = Struct("<I")
#: Of the word's check (a Fibonacci hash). Stored: do not change.
_MULTIPLIER, _OFFSET = 40_503, 12_345


class DurableWatermark:
    def __init__(self, path: Path, boot_id: str) -> None:
        self._boot = blake2b(boot_id.encode(), digest_size=8).digest()
        self._slot = 0
        self.written = 0
        self.durable = 0
        #: What the journal must reach, found in the file as it was.
        self.required = 0
        #: Whether the file was there but unreadable: nothing is wrong with the store, but the bound is lost.
        self.damaged = False
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            found = os.pread(fd, _BYTES, 0)
            if len(found) < _BYTES:  # written out whole: a mapped hole could meet a full disk later
                os.pwrite(fd, found.ljust(_BYTES, b"\0"), 0)
            self._map = mmap.mmap(fd, _BYTES)
            self.words = memoryview(self._map).cast("Q")
        finally:
            os.close(fd)
        self._load(found)

    def _load(self, found: bytes) -> None:
        slots = [found[at : at + 28] for at in (0, 32)]
        good = [
            _SLOT.unpack(slot[:24])
            for slot in slots
            if len(slot) == 28 and _CRC.unpack(slot[24:])[0] == crc32(slot[:24])
        ]
        self.damaged = bool(found.strip(b"\0")) and (
            not good
            or any(
                slot.strip(b"\0") and _CRC.unpack(slot[24:])[0] != crc32(slot[:24]) for slot in slots if len(slot) == 28
            )
        )
        for boot, written, durable in good:
            self.durable = max(self.durable, durable)
            self.required = max(self.required, durable, written if boot == self._boot else 0)
        if any(boot == self._boot for boot, _, _ in good):
            word = self.words[WORD]
            if word & 0xFFFF == _check(word >> 16):
                self.required = max(self.required, word >> 16)
            else:
                self.damaged = True
        else:
            # The word counts for the boot that a slot names: this one, from now on.
            self.words[WORD] = _check(0)
            self.note(0, self.durable)

    def remarks(self) -> tuple[str, ...]:
        if not self.damaged:
            return ()
        return (
            "DURABLE is damaged: whether the newest commits are all there could not be told; a check tells the rest",
        )

    def note(self, written: int, durable: int) -> None:
        """Record how far the journal reaches. Slots alternate, so a torn write leaves the other."""
        self.written, self.durable = written, durable
        body = _SLOT.pack(self._boot, written, durable)
        at = self._slot
        self._map[at : at + 28] = body + _CRC.pack(crc32(body))
        self._slot = 32 - at

    def note_written(self, written: int) -> None:
        """As `note`, of what was written alone: one store, so that it cannot be torn."""
        self.words[WORD] = written << 16 | written * _MULTIPLIER + _OFFSET & 0xFFFF

    def close(self) -> None:
        self.words.release()
        self._map.close()


def _check(written: int) -> int:
    """Sixteen bits that a torn or zeroed word does not have by chance."""
    return written * _MULTIPLIER + _OFFSET & 0xFFFF
