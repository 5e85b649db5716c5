"""A lower bound for the end of the log, in a file beside the database. It reveals commits lost from the log's end.

An engine that finds its last log records damaged drops them and opens without them. So after each commit the engine
records in a small mapped file the last commit number that was `written` (handed to the operating system) and that was
`durable` (synced). A log that ends before this bound has lost commits, and the store refuses to open. After a power
loss only `durable` is required; within one boot of the machine (`boot_id`), `written` is required.

The file has two slots of 32 bytes, each with a CRC, and one word with `written` and a check value, so that recording
`written` is a single memory store. The file is not synced, which can only make the bound lower.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from pathlib import Path
from struct import Struct

from tenure.errors import OpenError
from tenure.storage.checksum import crc32

_SLOT = Struct("<8sQQ")  # boot, written, durable; a CRC follows
_BYTES = 72
WORD = 8  # the ninth word: `written` << 16 | check
_CRC = Struct("<I")
#: Constants of the word's check value (a Fibonacci hash). Stored on disk: do not change.
_MULTIPLIER, _OFFSET = 40_503, 12_345


class DurableWatermark:
    def __init__(self, path: Path, boot_id: str) -> None:
        """Read or create the file. Raises OpenError."""
        self._boot = blake2b(boot_id.encode(), digest_size=8).digest()
        self._slot = 0
        self.written = 0
        self.durable = 0
        #: The commit that the log must reach, from the file as it was found.
        self.required = 0
        #: Whether the file exists but is damaged: the store may be sound, but the bound is lost.
        self.damaged = False
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                found = os.pread(fd, _BYTES, 0)
                if len(found) < _BYTES:  # allocated now: a store into a mapped hole is SIGBUS on a full disk
                    os.pwrite(fd, found.ljust(_BYTES, b"\0"), 0)
                self._map = mmap.mmap(fd, _BYTES)
            finally:
                os.close(fd)
        except OSError as exc:
            raise OpenError(f"{path} cannot be used: {exc.strerror or exc}") from exc
        self.words = memoryview(self._map).cast("Q")
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
            # The word belongs to the boot that a slot names: reset it, and name this boot.
            self.words[WORD] = _check(0)
            self.note(0, self.durable)

    def remarks(self) -> tuple[str, ...]:
        """A warning for the user if the file was damaged."""
        if not self.damaged:
            return ()
        return (
            "DURABLE is damaged: whether the newest commits are all there could not be told; a check tells the rest",
        )

    def note(self, written: int, durable: int) -> None:
        """Record both commit numbers. Slots alternate, so that a torn write leaves the other one."""
        self.written, self.durable = written, durable
        body = _SLOT.pack(self._boot, written, durable)
        at = self._slot
        self._map[at : at + 28] = body + _CRC.pack(crc32(body))
        self._slot = 32 - at

    def note_written(self, written: int) -> None:
        """Record `written` alone: a single memory store, which cannot be torn."""
        self.words[WORD] = written << 16 | written * _MULTIPLIER + _OFFSET & 0xFFFF

    def close(self) -> None:
        self.words.release()
        self._map.close()


def _check(written: int) -> int:
    """Sixteen check bits, which a torn or zeroed word has only by chance."""
    return written * _MULTIPLIER + _OFFSET & 0xFFFF
