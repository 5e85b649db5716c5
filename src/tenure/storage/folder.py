"""The folder a store lives in, before any engine touches it.

data/
  FORMAT     "tenure <format> <engine>": read before anything is opened, so that a refusal changes nothing
             (stores made before the project was renamed say "leasehold")
  OWNER      locked (flock) by whoever has the store open; says who that is
  DURABLE    the marks of `marks.py`
  SOCKET     where the owner lets other processes in
  db/        the engine's own files
  staging/   what is being written, until it is committed
  snapshots/ named snapshots, each a folder of its own (`backends.named_snapshots`)
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from tenure.errors import FormatError, OpenError, StoreLocked
from tenure.process import Layer, renewed_after_fork
from tenure.storage.keyspace import FORMAT

#: Where the owner of the store lets others in.
SOCKET = "SOCKET"
#: The project's name, and the name under which stores were made before it.
_NAMES = ("tenure", "leasehold")
_OURS = {"OWNER", SOCKET, "DURABLE", "FORMAT.new", "db", "staging", "snapshots"}


def expand(path: str) -> Path:
    """`~` and `$HOME` (or any variable) expanded, made absolute."""
    expanded = os.path.expandvars(os.path.expanduser(path))
    if not path or "\0" in path or "$" in expanded:
        raise OpenError(f"{path!r} is not a usable path" + (" (an unset variable)" if "$" in expanded else ""))
    return Path(expanded).absolute()


class Folder:
    def __init__(self, path: str, engine: str) -> None:
        self.path = expand(path)
        self.engine = engine
        self.db = self.path / "db"
        self._fd: int | None = None

    def check(self) -> bool:
        """Whether a store is there already. Raises where none can be opened or made; changes nothing."""
        try:
            if not self.path.exists():
                parent = next(p for p in self.path.parents if p.exists())
                if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                    raise OpenError(f"{self.path} cannot be made: {parent} is not a folder this user may write to")
                return False
            if not self.path.is_dir():
                raise OpenError(f"{self.path} is a file: a store is kept in a folder of its own")
            if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
                raise OpenError(f"this user may not read and write {self.path}")
            return self._check_format()
        except OSError as exc:
            raise OpenError(f"{self.path} cannot be used: {exc.strerror or exc}") from exc

    def _check_format(self) -> bool:
        file = self.path / "FORMAT"
        if not file.exists():
            found = {p.name for p in self.path.iterdir()}
            # A process that was killed while making the store leaves its files, and no FORMAT: making goes on from there.
            strangers = sorted(found - _OURS if "OWNER" in found else found)
            if strangers:
                raise FormatError(
                    f"{self.path} is not a Tenure store, and not empty (it has {', '.join(strangers[:3])}"
                    f"{', …' if len(strangers) > 3 else ''}): give a new or empty folder"
                )
            return False
        words = file.read_bytes().decode("ascii", "replace").split()
        if len(words) != 3 or words[0] not in _NAMES or not words[1].isdigit():
            raise FormatError(f"{file} is damaged: expected 'tenure {FORMAT} {self.engine}'")
        if words[2] != self.engine:
            raise FormatError(f"{self.path} holds a {words[2]} store: open it as {words[2]}:{self.path}")
        if int(words[1]) > FORMAT:
            raise FormatError(
                f"{self.path} has format {words[1]}, and this Tenure reads up to {FORMAT}: install a newer one"
            )
        if int(words[1]) < FORMAT:
            raise FormatError(f"{self.path} has format {words[1]}: run 'tenure upgrade {self.engine}:{self.path}'")
        return True

    def write_format(self) -> None:
        """Once the engine has made its files: from here on the folder is a store."""
        temporary = self.path / "FORMAT.new"
        with temporary.open("w") as out:
            out.write(f"tenure {FORMAT} {self.engine}\n")
            out.flush()
            os.fsync(out.fileno())
        temporary.rename(self.path / "FORMAT")
        sync_folder(self.path)

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────────────────────

    def lock(self, *, shared: bool = False, listens: bool = False) -> bool:
        """Take the folder, alone if possible. With `shared`, others may have it too; says whether we are alone.

        `listens`: we shall let others in by a socket, and say so from the start.

        The lock is our own `flock` on a file no driver touches: it goes with the process, however that ends.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path / "OWNER", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        alone = True
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not shared:
                    raise StoreLocked(str(self.path), *self._owner(fd)) from None
                alone = False
                fcntl.flock(fd, fcntl.LOCK_SH)
        except BaseException:
            os.close(fd)
            raise
        if alone:
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time()), "listens": listens}
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(owner).encode(), 0)
        self._fd = fd
        renewed_after_fork(self, Layer.STORAGE)
        return alone

    def share(self) -> None:
        """Let other processes in beside us (after an exclusive start)."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def renew_after_fork(self) -> None:
        """The child drops its copy of the handle, so that the lock ends with its owner."""
        self.unlock()

    def unlock(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _owner(self, fd: int) -> tuple[str, str]:
        try:
            owner = json.loads(os.pread(fd, 4096, 0))
            pid, host, since = owner["pid"], owner["host"], time.strftime("%F %T", time.gmtime(owner["since"]))
        except (ValueError, KeyError, TypeError):
            return "another process", "Stop it, or give this one a folder of its own."
        if pid == os.getpid():
            return "this process", "Share the open store: it is safe for threads."
        return (
            f"process {pid} on {host} (since {since} UTC)",
            f"Stop it (kill {pid}), or give this one a folder of its own.",
        )


def lets_in(path: Path) -> bool:
    """Whether the owner of a folder, another process, lets others in by its socket, or will once it is ready."""
    try:
        owner = json.loads((path / "OWNER").read_bytes())
        return owner["pid"] != os.getpid() and bool(owner.get("listens"))
    except (OSError, ValueError, KeyError, TypeError):
        return True  # it has only just taken the folder: look again


def sync_folder(path: Path) -> None:
    """Make names in a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
