"""The folder of a history or an archive: on a disk, or on an object store.

    ./history, /mnt/history, file:///mnt/history     LocalRoot: links, renames and a file lock
    s3://bucket/history, gs://…, az://…              tenure.analysis.object_root.ObjectRoot: puts that refuse to replace

A file is named by its path below the root, with "/" between the parts: `_log/000000000001.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

import pyarrow.dataset as ds

#: Drafts that are older, in seconds, were left by a process that was killed.
_DRAFT_SECONDS = 3600


class Root(Protocol):
    """A folder of files that are written whole. `address` names it for people, and for other processes to open."""

    address: str

    def create(self, path: str, content: bytes) -> bool:
        """Make a file that was not there, whole and durable; False: the path is taken, and its file is unchanged.

        Of callers at the same time, in any process, one gets True.
        """
        ...

    def check_create(self) -> None:
        """Raises InvalidArgument where `create` cannot keep its promise."""
        ...

    def draft(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Write a file: what the block wrote is at `path` after it, whole; after an exception nothing is. It may replace."""
        ...

    def read(self, paths: Sequence[str]) -> list[bytes]:
        """The contents of small files. Raises FileNotFoundError."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """A file to read at any position. Raises FileNotFoundError."""
        ...

    def exists(self, path: str) -> bool: ...

    def files(self, folder: str) -> list[str]:
        """The paths of the files right in a folder, in order; none if there is no such folder. Drafts are left out."""
        ...

    def attempts(self) -> list[str]:
        """The folders TABLE/run=LABEL/ATTEMPT and GROUP/TABLE/run=LABEL/ATTEMPT that hold anything."""
        ...

    def remove(self, attempt: str) -> None:
        """Remove an attempt's folder with all that is in it."""
        ...

    def remove_drafts(self) -> None:
        """Remove what killed processes left of files that they were writing into the log."""
        ...

    def lock(self, path: str) -> AbstractContextManager[bool]:
        """Hold a lock for a block; False: another process holds it. Where there are no locks it is always True."""
        ...

    def dataset(self, folders: Sequence[str]) -> ds.Dataset:
        """The Parquet files right in these folders, as one Arrow dataset."""
        ...


def open_root(root: str | os.PathLike[str]) -> Root:
    """The root at a path, a file: address or the address of an object store. Raises InvalidArgument, SettingsError."""
    text = os.fspath(root)
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "file":
        from tenure.analysis.object_root import ObjectRoot

        return ObjectRoot(text)
    return LocalRoot(text.removeprefix("file://"))


def parquet_files(root: Root, folder: str) -> list[str]:
    """The paths of the Parquet files right in a folder."""
    return [path for path in root.files(folder) if path.endswith(".parquet")]


class LocalRoot:
    """A folder that the driver and all executors see under one path: a disk, NFS, a mounted bucket."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        self.address = str(self.path)

    def create(self, path: str, content: bytes) -> bool:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.parent / f".draft-{uuid.uuid4().hex}"
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link appears with its content or not at all, and never in the place of another.
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True

    def check_create(self) -> None:
        """A file system has links that do not replace."""

    @contextmanager
    def draft(self, path: str) -> Iterator[IO[bytes]]:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}")
        try:
            with draft.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def read(self, paths: Sequence[str]) -> list[bytes]:
        return [(self.path / path).read_bytes() for path in paths]

    def open(self, path: str) -> IO[bytes]:
        return (self.path / path).open("rb")

    def exists(self, path: str) -> bool:
        return (self.path / path).exists()

    def files(self, folder: str) -> list[str]:
        home = self.path / folder
        if not home.is_dir():
            return []
        names = [entry.name for entry in os.scandir(home) if entry.is_file() and not entry.name.startswith(".")]
        return [f"{folder}/{name}" for name in sorted(names)]

    def attempts(self) -> list[str]:
        found = [*self.path.glob("*/run=*/*"), *self.path.glob("*/*/run=*/*")]
        return [path.relative_to(self.path).as_posix() for path in found if path.is_dir()]

    def remove(self, attempt: str) -> None:
        path = self.path / attempt
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another attempt of the run is there
            path.parent.rmdir()

    def remove_drafts(self) -> None:
        for draft in self.path.glob("_log/.draft-*"):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - _DRAFT_SECONDS:
                    draft.unlink()

    @contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def dataset(self, folders: Sequence[str]) -> ds.Dataset:
        return ds.dataset([ds.dataset(self.path / folder, format="parquet") for folder in folders])
