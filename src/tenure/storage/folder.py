"""A store's folder: its format, its owner, its permissions. It belongs to one user (0700, files 0600).

data/
  FORMAT     "tenure <format> <engine>": read before anything is opened, so that a refusal changes nothing
             (stores made before the project was renamed say "leasehold")
  OWNER      locked (flock) by the process that has the store open; describes that process (`ownership`)
  DURABLE    a lower bound for the end of the log (`durable_watermark`)
  SOCKET     the owner's socket, by which other processes join
  db/        the engine's own files
  lost/      logs of the database that cannot be used after a power loss (`rocksdb.log_continuity`)
  staging/   staged parts of writes, until they are committed (`staged_parts`)
  snapshots/ named snapshots, each a folder of its own (`backends.named_snapshots`)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from tenure.errors import FormatError, OpenError, StoreLocked, Unavailable
from tenure.process import Layer, renewed_after_fork
from tenure.storage import ownership
from tenure.storage.keyspace import FORMAT

#: The name of the owner's socket.
SOCKET = "SOCKET"
_OWNER_BYTES = 1024
#: The last word of FORMAT during an upgrade. Releases that expect three words refuse the folder too.
UPGRADING = "upgrading"
#: The folder for logs that cannot be used.
LOST = "lost"
#: The project's name, and the name under which stores were made before it.
NAMES = ("tenure", "leasehold")
_OURS = {"OWNER", SOCKET, "DURABLE", "FORMAT.new", "db", "db.tables", LOST, "staging", "snapshots"}


#: What to do about an error of the operating system.
_ADVICE = {
    errno.EMFILE: " (raise the process's limit, ulimit -n)",
    errno.ENFILE: " (raise the system's limit, fs.file-max)",
    errno.ENOSPC: " (make room)",
}


def expand(path: str) -> Path:
    """The absolute path, with `~` and variables such as `$HOME` expanded. Raises OpenError."""
    expanded = os.path.expandvars(os.path.expanduser(path))
    if not path or "\0" in path or "$" in expanded:
        raise OpenError(f"{path!r} is not a usable path" + (" (an unset variable)" if "$" in expanded else ""))
    return Path(expanded).absolute()


class Folder:
    def __init__(self, path: str, engine: str, *, upgrading: bool = False) -> None:
        """`upgrading`: the caller upgrades an older format, and may open it."""
        self.path = expand(path)
        self.engine = engine
        self._upgrading = upgrading
        self.db = self.path / "db"
        self._fd: int | None = None
        #: The id of our record in OWNER.
        self._record: str | None = None
        #: Paths that must not be replaced while the folder is locked, and their inodes and devices. Every sync checks them.
        self._watched = str(self.path / "OWNER"), str(self.db)
        self._identities: tuple[int, ...] = ()
        self._tightened = 0

    def check(self) -> bool:
        """Whether a store exists. Raises OpenError or FormatError if none can be opened or created; changes nothing."""
        try:
            if not self.path.exists():
                parent = next(p for p in self.path.parents if p.exists())
                _refuse_read_only(parent)
                if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                    raise OpenError(f"{self.path} cannot be made: {parent} is not a folder this user may write to")
                return False
            if not self.path.is_dir():
                raise OpenError(f"{self.path} is a file: a store is kept in a folder of its own")
            _refuse_read_only(self.path)
            if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
                raise OpenError(f"this user may not read and write {self.path}")
            refuse_others(self.path)
            return self._check_format()
        except OSError as exc:
            raise self._unusable(exc) from exc

    def _check_format(self) -> bool:
        file = self.path / "FORMAT"
        if not file.exists():
            found = {p.name for p in self.path.iterdir()}
            # A process that was killed while creating the store left files without FORMAT: creation continues.
            strangers = sorted(found - _OURS if "OWNER" in found else found)
            if strangers:
                raise FormatError(
                    f"{self.path} is not a Tenure store, and not empty (it has {', '.join(strangers[:3])}"
                    f"{', …' if len(strangers) > 3 else ''}): give a new or empty folder"
                )
            return False
        words = file.read_bytes().decode("ascii", "replace").split()
        if self._upgrading:
            return True
        if words[3:] == [UPGRADING]:
            raise FormatError(
                f"{self.path} is half upgraded: run 'tenure upgrade {self.engine}:{self.path}' to its end"
            )
        if len(words) != 3 or words[0] not in NAMES or not words[1].isdigit():
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

    def write_format(self, *, upgrading: bool = False) -> None:
        """Write FORMAT, after the engine has created its files: from here on the folder is a store.

        `upgrading`: its rows are being upgraded. Until the next call without it, no release opens the store. Raises
        OpenError.
        """
        temporary = self.path / "FORMAT.new"
        try:
            with open(temporary, "w", opener=_private) as out:
                out.write(f"tenure {FORMAT} {self.engine}{f' {UPGRADING}' if upgrading else ''}\n")
                out.flush()
                os.fsync(out.fileno())
            temporary.rename(self.path / "FORMAT")
            sync_path(self.path)
        except OSError as exc:
            raise self._unusable(exc) from exc

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────────────────────

    def lock(self, *, shared: bool = False, listens: bool = False) -> bool:
        """Lock the folder, exclusively if possible. With `shared`, other processes may have it too.

        Returns whether the lock is exclusive. `listens`: this process will open a socket for others, and OWNER says so.
        The lock is an `flock` on a file that no driver uses; the system releases it when the process ends.
        Raises StoreLocked, OpenError.
        """
        while True:
            fd = self._open_owner_file()
            try:
                alone = self._lock(fd, shared)
                if self._same_owner_file(fd):
                    break
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # the file was removed between opening and locking it
        self._fd = fd
        try:
            if alone:
                self._record, written = ownership.record(listens=listens)
                _overwrite(fd, written)
            make_private(self.db)
        except OSError as exc:
            self.unlock()
            raise self._unusable(exc) from exc
        self._identities = *_identity(fd), *_identity(self.db)
        renewed_after_fork(self, Layer.STORAGE)
        return alone

    def _open_owner_file(self) -> int:
        try:
            make_private(self.path)
            return os.open(self.path / "OWNER", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:  # no file handles, no room
            raise self._unusable(exc) from exc

    def _unusable(self, exc: OSError) -> OpenError:
        advice = _ADVICE.get(exc.errno or 0, "")
        return OpenError(f"{self.path} cannot be used: {exc.strerror or exc}{advice}")

    def _lock(self, fd: int, shared: bool) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not shared:
                raise StoreLocked(str(self.path), *ownership.described(os.pread(fd, 4096, 0))) from None
            fcntl.flock(fd, fcntl.LOCK_SH)
            return False
        return True

    def share(self) -> None:
        """Make an exclusive lock a shared one."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def unlock(self) -> None:
        """Release the lock. Unlocking twice is allowed."""
        if self._fd is not None:
            if self._record is not None:
                # Clear OWNER, so that it does not name this process while the next owner writes its record.
                with contextlib.suppress(OSError):
                    if ownership.lets_in(os.pread(self._fd, 4096, 0)) is False:
                        _overwrite(self._fd, b"")
                self._withdraw()
            os.close(self._fd)
            self._fd = None

    def renew_after_fork(self) -> None:
        """In a forked child: close its copy of the handle, so that the lock ends with its owner. Writes nothing."""
        self._withdraw()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _withdraw(self) -> None:
        ownership.withdraw(self._record)
        self._record = None

    # ── while it is open ─────────────────────────────────────────────────────────────────────────────────────────────

    def verify(self) -> None:
        """Raise Unavailable if the folder or its `db` was removed or replaced since it was locked."""
        if self._fd is None:
            return
        try:
            owner, db = map(os.stat, self._watched)
            found: tuple[int, ...] = owner.st_ino, owner.st_dev, db.st_ino, db.st_dev
        except OSError:
            found = ()
        if found != self._identities:
            raise Unavailable(
                f"{self.path} was removed, moved or replaced while the store was open: what is written does not reach it any "
                "more, and what was committed lately may be lost. Close the store, put the folder back, and open it again"
            )

    def _same_owner_file(self, fd: int) -> bool:
        return _identity(self.path / "OWNER") == _identity(fd)

    def tighten(self) -> None:
        """Remove other users' permissions from the files of `db`: drivers create them by the umask."""
        changed = self.db.stat().st_mtime_ns
        if changed != self._tightened:
            with os.scandir(self.db) as files:
                for file in files:
                    with contextlib.suppress(OSError):  # the driver may remove a file meanwhile
                        if file.stat(follow_symlinks=False).st_mode & 0o077:
                            os.chmod(file.path, 0o600, follow_symlinks=False)
            self._tightened = changed


def _overwrite(fd: int, record: bytes) -> None:
    """Replace the record in OWNER. The size is fixed, so that a full disk cannot make it fail later."""
    os.pwrite(fd, record.ljust(_OWNER_BYTES), 0)
    os.ftruncate(fd, _OWNER_BYTES)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _identity(path: Path | str | int) -> tuple[int, ...]:
    """The inode of a file and its device; empty if it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_dev


def make_private(path: Path) -> None:
    """Create a folder for this user alone, whatever the umask; remove others' permissions from an existing one.

    A new folder's name is durable, and so are those of new folders above it.
    """
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in new:
        with contextlib.suppress(PermissionError):  # this user may write there, and not read
            sync_path(each.parent)
    if path.stat().st_mode & 0o777 != 0o700:
        path.chmod(0o700)


def _refuse_read_only(path: Path) -> None:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OpenError(f"{path} is on a read-only file system: an open store writes, even if it is only read")


def refuse_others(path: Path) -> None:
    """Raise OpenError if a folder, or a file in it, belongs to another user, who could change what we write."""
    user = os.geteuid()
    for place in (path, *path.iterdir()):
        try:
            owner = place.lstat().st_uid
        except FileNotFoundError:
            continue  # removed meanwhile
        if owner != user:
            raise OpenError(
                f"{place} belongs to user {owner}, and this process runs as user {user}: a store is opened by the user it "
                f"belongs to. Run as that user, or give the folder away: chown -R {user} {path}"
            )


def lets_in(path: Path) -> bool:
    """Whether the owner of a folder, another process, lets others join by its socket, now or soon."""
    try:
        return ownership.lets_in((path / "OWNER").read_bytes())
    except OSError:
        return True  # an owner has just locked the folder: try again


def sync_names(folder: Path) -> None:
    """Make the names of the files in a staging folder durable, its own, and that of the folder that it is in.

    Of what the file system does not sync (some do not sync folders) nothing is told: the files can be staged again.
    """
    for each in (folder, *folder.parents[:2]):
        with contextlib.suppress(OSError):
            sync_path(each)


def sync_path(path: Path) -> None:
    """Sync a file, or a folder: that makes created, renamed and removed names in it durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
