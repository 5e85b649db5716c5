"""Parts of staged writes, uploaded by writers that share no folder with the store, and kept for a day.

    <data>/staging/<digest of the write's id>/<part>.<piece>

A store without a folder keeps them in memory. The store does not interpret their bytes. The file `owner` in a write's
folder names its tenant, whose staged bytes are counted.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

from tenure.errors import TooLarge
from tenure.model.write import owner_of, piece_name
from tenure.storage.folder import sync_names
from tenure.storage.keyspace import digest

FOLDER = "staging"
#: How long staged files are kept, in seconds.
KEPT = 86_400
#: The largest piece.
PIECE_BYTES = 4 * 1024 * 1024
#: The file in a write's folder that names its tenant.
_OWNER = "owner"
#: The interval of looking for expired writes, in seconds.
_LOOK = 3_600.0


def folder_of(root: str, write_id: str) -> Path:
    return Path(root) / digest(write_id.encode()).hex()


def expire(root: str, kept: float = KEPT) -> int:
    """Remove the folders of writes whose newest file is older than `kept` seconds. Returns how many."""
    try:
        folders = list(Path(root).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return 0
    removed = 0
    for folder in folders:
        try:
            newest = max([file.stat().st_mtime for file in folder.iterdir()], default=folder.stat().st_mtime)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if newest < time.time() - kept:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


class Pieces:
    def __init__(self, home: Path | None) -> None:
        self._root = None if home is None else str(home / FOLDER)
        self._held: dict[str, dict[tuple[str, int], bytes]] = {}
        self._lock = threading.Lock()
        self._looked = 0.0
        #: Bytes by tenant; None: the folders have to be counted again.
        self._by_owner: dict[str, int] | None = None

    def put(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        """Store a piece, or replace it. Raises TooLarge, InvalidArgument."""
        if len(data) > PIECE_BYTES:
            raise TooLarge("a piece of a staged part", len(data), PIECE_BYTES)
        name = piece_name(part, piece)
        if self._root is None:
            with self._lock:
                self._held.setdefault(write_id, {})[part, piece] = data
            return
        folder = folder_of(self._root, write_id)
        folder.mkdir(parents=True, exist_ok=True)
        owner = owner_of(write_id)
        if owner:
            (folder / _OWNER).write_text(owner)
        replaced = _size_of(folder / name)
        temporary = folder / f"{name}.{os.urandom(4).hex()}.new"
        try:
            with temporary.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            temporary.rename(folder / name)
        except BaseException:
            temporary.unlink(missing_ok=True)  # on a full disk it would take the room for a day
            raise
        sync_names(folder)
        with self._lock:  # after the write, which may fail: a piece that is not there must not count
            if owner and self._by_owner is not None:
                self._by_owner[owner] = self._by_owner.get(owner, 0) + len(data) - replaced

    def held_by(self, owner: str) -> int:
        """The bytes that a tenant has staged."""
        with self._lock:
            if self._root is None:
                mine = [parts for write, parts in self._held.items() if owner_of(write) == owner]
                return sum(len(data) for parts in mine for data in parts.values())
            if self._by_owner is None:
                self._by_owner = _count_by_owner(self._root)
            return self._by_owner.get(owner, 0)

    def get(self, write_id: str, part: str, piece: int) -> bytes | None:
        name = piece_name(part, piece)
        if self._root is None:
            with self._lock:
                return self._held.get(write_id, {}).get((part, piece))
        try:
            return (folder_of(self._root, write_id) / name).read_bytes()
        except FileNotFoundError:
            return None

    def drop(self, write_id: str) -> None:
        if self._root is None:
            with self._lock:
                self._held.pop(write_id, None)
        else:
            shutil.rmtree(folder_of(self._root, write_id), ignore_errors=True)
            self._count_again()

    def _count_again(self) -> None:
        with self._lock:
            self._by_owner = None

    def tend(self) -> None:
        """Remove expired writes, at most once an hour."""
        if self._root is not None and time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            expire(self._root)
            self._count_again()


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _count_by_owner(root: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for marker in Path(root).glob(f"*/{_OWNER}"):
        try:
            owner = marker.read_text()
            size = sum(file.stat().st_size for file in marker.parent.iterdir() if file.name != _OWNER)
        except OSError:
            continue  # removed meanwhile
        found[owner] = found.get(owner, 0) + size
    return found
