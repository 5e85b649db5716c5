"""Named snapshots: copies of a store at one point in time, kept while they are used.

    data/snapshots/<id>/      a copy that could be opened as a store (FORMAT, DURABLE, db/)
      SNAPSHOT                 JSON: a SnapshotInfo; the file's time is the last use

A reader on the same host opens the folder itself and touches SNAPSHOT: it does not need the owner, which may be busy.
The sweeper removes a snapshot that was unused for its ttl. It renames the folder first, so that no reader opens an
incomplete one. A reader that has it open can continue: the files exist until they are closed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from tenure.errors import Corrupt, OpenError, SnapshotExpired
from tenure.model.snapshot import SnapshotInfo
from tenure.storage.engine import Engine, Snapshot
from tenure.storage.segments import SegmentedSnapshot, has_segments

FOLDER = "snapshots"
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,100}\Z")
#: Milliseconds after which the remains of a process that died while taking or removing a snapshot are removed.
_REMAINS_AGE_MS = 3_600_000
#: Created here, in one thread: msgspec crashes if two threads inspect the fields of one struct at once.
_info = msgspec.json.Decoder(SnapshotInfo).decode


class NamedSnapshots(Protocol):
    """The snapshots of a store. Times are calendar times, except `now_ms`, which is the store's."""

    def take(self, name: str, ttl_ms: int, wall_ms: int, now_ms: int) -> SnapshotInfo: ...

    def renew(self, id: str, wall_ms: int) -> SnapshotInfo:
        """Mark as used now. Raises SnapshotExpired."""

    def drop(self, id: str) -> bool: ...

    def all(self, wall_ms: int) -> list[SnapshotInfo]:
        """Return those that have not expired, oldest first."""

    def expire(self, wall_ms: int) -> int:
        """Remove expired snapshots; return how many."""

    def open(self, id: str, wall_ms: int) -> Snapshot:
        """Open a snapshot for reading, which counts as a use. Raises SnapshotExpired."""


def named_snapshots_of(engine: Engine) -> NamedSnapshots:
    return SnapshotsInMemory(engine) if engine.home is None else SnapshotFolder(engine.home / FOLDER, engine.export)


class SnapshotFolder:
    def __init__(self, root: Path, export: Callable[[str], None] | None = None) -> None:
        self._root = root
        self._export = export

    def take(self, name: str, ttl_ms: int, wall_ms: int, now_ms: int) -> SnapshotInfo:
        assert self._export is not None
        id = _new_id(name)
        made = self._root / f".taking-{id}"
        try:
            self._export(str(made))
            info = SnapshotInfo(id=id, name=name, taken_at_ms=now_ms, ttl_ms=ttl_ms, expires_at_ms=0)
            (made / "SNAPSHOT").write_bytes(msgspec.json.encode(info))
            _touch(made, wall_ms)
            made.rename(self._root / id)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return self._known(id, wall_ms)

    def renew(self, id: str, wall_ms: int) -> SnapshotInfo:
        self._known(id, wall_ms)
        try:
            _touch(self._root / id, wall_ms)
        except FileNotFoundError:
            raise SnapshotExpired(id) from None
        return self._known(id, wall_ms)

    def drop(self, id: str) -> bool:
        if not _ID.match(id):
            return False
        going = self._root / f".going-{id}"
        try:
            (self._root / id).rename(going)
        except OSError:
            return False
        shutil.rmtree(going, ignore_errors=True)
        return True

    def all(self, wall_ms: int) -> list[SnapshotInfo]:
        found = []
        for id in self._ids():
            try:
                found.append(self._known(id, wall_ms))
            except SnapshotExpired:
                continue
        return sorted(found, key=lambda info: info.taken_at_ms)

    def expire(self, wall_ms: int) -> int:
        gone = sum(self.drop(id) for id in self._ids() if self._has_expired(id, wall_ms))
        for left in self._root.glob(".*") if self._root.exists() else ():
            try:
                if wall_ms - left.stat().st_mtime_ns // 1_000_000 > _REMAINS_AGE_MS:
                    shutil.rmtree(left, ignore_errors=True)
            except FileNotFoundError:
                continue  # another process has already removed it
        return gone

    def open(self, id: str, wall_ms: int) -> Snapshot:
        self.renew(id, wall_ms)
        return open_copy(self._root / id, id)

    def _has_expired(self, id: str, wall_ms: int) -> bool:
        try:
            self._known(id, wall_ms)
        except SnapshotExpired:
            return True
        return False

    def _ids(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._root) if _ID.match(name)]
        except FileNotFoundError:
            return []

    def _known(self, id: str, wall_ms: int) -> SnapshotInfo:
        if not _ID.match(id):
            raise SnapshotExpired(id)
        file = self._root / id / "SNAPSHOT"
        try:
            info = _info(file.read_bytes())
            used = file.stat().st_mtime_ns // 1_000_000
        except (OSError, msgspec.DecodeError):
            raise SnapshotExpired(id) from None
        if used + info.ttl_ms <= wall_ms:
            raise SnapshotExpired(id)
        return msgspec.structs.replace(info, where=str(self._root / id), expires_at_ms=used + info.ttl_ms)


class SnapshotsInMemory:
    """For a store without a folder: snapshots live in this process and end with it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: dict[str, tuple[SnapshotInfo, Snapshot]] = {}

    def take(self, name: str, ttl_ms: int, wall_ms: int, now_ms: int) -> SnapshotInfo:
        info = SnapshotInfo(
            id=_new_id(name), name=name, taken_at_ms=now_ms, ttl_ms=ttl_ms, expires_at_ms=wall_ms + ttl_ms
        )
        self._held[info.id] = info, self._engine.snapshot()
        return info

    def renew(self, id: str, wall_ms: int) -> SnapshotInfo:
        info, moment = self._unexpired(id, wall_ms)
        info = msgspec.structs.replace(info, expires_at_ms=wall_ms + info.ttl_ms)
        self._held[id] = info, moment
        return info

    def drop(self, id: str) -> bool:
        return self._held.pop(id, None) is not None

    def all(self, wall_ms: int) -> list[SnapshotInfo]:
        return [info for info, _ in list(self._held.values()) if info.expires_at_ms > wall_ms]

    def expire(self, wall_ms: int) -> int:
        return sum(self.drop(info.id) for info, _ in list(self._held.values()) if info.expires_at_ms <= wall_ms)

    def open(self, id: str, wall_ms: int) -> Snapshot:
        self.renew(id, wall_ms)
        return self._held[id][1]

    def _unexpired(self, id: str, wall_ms: int) -> tuple[SnapshotInfo, Snapshot]:
        found = self._held.get(id)
        if found is None or found[0].expires_at_ms <= wall_ms:
            raise SnapshotExpired(id)
        return found


def open_copy(folder: Path, id: str = "") -> Snapshot:
    """Open a copy of a store (`Engine.export`) for reading. Any number of processes may open it."""
    try:
        words = (folder / "FORMAT").read_text().split()
    except OSError as exc:
        if id:
            raise SnapshotExpired(id) from None
        raise OpenError(f"{folder} holds no copy of a store: {exc.strerror}") from exc
    engine = words[2] if len(words) == 3 else "?"
    if engine == "rocksdb":
        from tenure.storage.engines.rocksdb.copy import RocksCopy as Copy
    elif engine == "lmdb":
        from tenure.storage.engines.lmdb.copy import LmdbCopy as Copy  # type: ignore[assignment]
    else:
        raise OpenError(f"{folder} holds a copy of kind {engine!r}, which this Tenure does not read")
    try:
        copy = Copy(folder / "db")
        return SegmentedSnapshot(copy, True) if engine == "rocksdb" and has_segments(copy) else copy
    except (OpenError, Corrupt):  # RocksDB takes a file that is removed while it opens for damage
        if id and not (folder / "SNAPSHOT").exists():
            raise SnapshotExpired(id) from None  # removed while it was being opened
        raise


def _new_id(name: str) -> str:
    return f"{name}-{secrets.token_hex(8)}"


def _touch(folder: Path, wall_ms: int) -> None:
    os.utime(folder / "SNAPSHOT", ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))
