"""Every key of a store in FoundationDB: the store's directory, then a part packed by the tuple layer, then raw bytes.

    (space number), key of the keyspace                the row; its value in parts if it has more than 90,000 bytes
    ("parts", space number), key, part u16             further parts of such a value
    ("parts", space number), key, 0xFFFE, nonce 16     a value uploaded before its transaction; the row refers to it
    ("unfinished"), version u64, nonce 16              the values of one upload: space u8, length u16, key of each
    ("inbox"), version stamp 10, row u16, piece u8     a journal row that has no number yet, with its transaction's mark
    ("mark"), transaction u64                          it committed: nonce 16, try u16, journal number u64 once folded
    ("stale"), version u64, transaction u64            a mark without journal rows, to be removed
    ("held"), key of `leases`                          the version from which the lease may be taken over, u64
    ("gate")                                           version u64, nonce: transactions wait until that version
    ("pulse")                                          changes with every commit; waiting processes watch it

The keyspace's own bytes follow the packed prefix unchanged: they sort correctly, and the tuple layer would double each
zero byte.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from tenure.storage.engine import Space
from tenure.storage.keyspace import NAMES

#: Values larger than this are stored in parts of this size.
PART_BYTES = 90_000
#: A provisional journal number: this bit, the transaction's number, and `ROW_BITS` for the row.
PROVISIONAL = 1 << 53
ROW_BITS = 7
ROWS = 1 << ROW_BITS

_U64 = Struct(">Q")
pack_number = _U64.pack
_PART = Struct(">H")
_EARLY = _PART.pack(0xFFFE)
STAMP_BYTES = 10
NONCE_BYTES = 16
_INBOX = Struct(">10sHB")
#: The bytes of nonce and try in a mark. The journal number follows once the row is folded.
MARK_BYTES = 18
#: The head of an inbox row: its transaction, and the nonce and try of its mark.
INBOX_HEAD = Struct(">Q18s")


def number(raw: bytes, at: int = 0) -> int:
    found: int = _U64.unpack_from(raw, at)[0]
    return found


class Layout:
    """The prefixes of one store."""

    def __init__(self, directory: Any) -> None:
        """`directory`: the store's subspace."""
        self.directory = directory
        self.spaces: list[bytes] = [directory.pack((space,)) for space in range(len(NAMES))]
        self._parts: list[bytes] = [directory.pack(("parts", space)) for space in range(len(NAMES))]
        self.unfinished: bytes = directory.pack(("unfinished",))
        self.inbox: bytes = directory.pack(("inbox",))
        self._marks: bytes = directory.pack(("mark",))
        self.stale: bytes = directory.pack(("stale",))
        self._held: bytes = directory.pack(("held",))
        self.gate: bytes = directory.pack(("gate",))
        self.pulse: bytes = directory.pack(("pulse",))

    def part(self, space: Space, key: bytes, part: int) -> bytes:
        return self._parts[space] + key + _PART.pack(part)

    def early(self, space: Space, key: bytes, nonce: bytes) -> bytes:
        return self._parts[space] + key + _EARLY + nonce

    def unfinished_row(self, version: int, nonce: bytes) -> bytes:
        return self.unfinished + pack_number(version) + nonce

    def parts(self, space: Space, begin: bytes, end: bytes) -> tuple[bytes, bytes]:
        """The range of the further parts of values with begin <= key < end."""
        return self._parts[space] + begin, self._parts[space] + end

    def mark(self, transaction: int) -> bytes:
        return self._marks + pack_number(transaction)

    def held(self, lease: bytes) -> bytes:
        return self._held + lease

    def stamped_inbox(self, row: int, piece: int) -> bytes:
        """The key into which the database writes its version stamp, followed by the stamp's offset."""
        place = len(self.inbox).to_bytes(4, "little")
        return self.inbox + _INBOX.pack(bytes(STAMP_BYTES), row, piece) + place

    def split_inbox(self, key: bytes) -> tuple[bytes, int, int]:
        """Stamp, row and piece."""
        return _INBOX.unpack(key[len(self.inbox) :])

    def stale_mark(self, version: int, transaction: int) -> bytes:
        return self.stale + pack_number(version) + pack_number(transaction)


def of_transaction(commit: int) -> tuple[int, int]:
    """The transaction and the row of a provisional journal number."""
    return commit & ~PROVISIONAL & ~(ROWS - 1), commit & (ROWS - 1)
