"""Simulates power losses from recorded system calls.

`record` runs a process under strace and parses its system calls on the files of one folder. `Images` replays them up to
any point, and writes the files that a power loss at that point may leave on the disk:

- bytes that were written before the file's last `fsync` or `fdatasync` began, or with O_DSYNC, are there;
- of later appends, any suffix is missing or reads as zeros; of pages written in place (LMDB, RocksDB's logs at `disk`),
  any is missing or torn; each file independently, since the system writes files back in any order;
- a removed file may still exist.

Equal images have equal digests: only one of them is opened.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_PAGE, _SECTOR = 4096, 512
#: RocksDB's informational files, which are left out of images.
_NEVER_READ = re.compile(r"/db/LOG(\.old.*)?$")
_CALLS = "write,pwrite64,writev,pwritev,lseek,fdatasync,fsync,openat,rename,renameat,renameat2,ftruncate,unlink,unlinkat,link,linkat"
_LINE = re.compile(rb"^(\d+) +(.*)$")
_NAMED = re.compile(rb"^(\w+)\((.*)\) += (-?\d+)", re.DOTALL)
_HANDLE = re.compile(rb"^\d+<(.*?)>")
_TEXT = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"')


class Step(NamedTuple):
    """One system call that changed a file, or made it durable."""

    kind: str  # "make", "write", "write through", "sync begins", "sync", "cut", "rename", "link", "unlink"
    path: str
    data: bytes = b""
    at: int | None = None  # the offset of a write (None: after the previous write); the new length ("cut")
    other: str = ""  # the new name ("rename", "link")
    thread: str = ""  # the syncing thread


def record(command: Sequence[str], folder: Path, log: Path, trace: Path, cwd: Path) -> list[Step]:
    """Run it under strace until it ends. Returns the calls on the folder's files and on `log`, in order."""
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "100000000", "-o", str(trace)]
    strace += ["-e", f"trace={_CALLS}", "-e", "signal=none"]
    done = subprocess.run([*strace, *command], cwd=cwd, capture_output=True, text=True)
    steps = list(_steps(trace, str(folder).encode(), str(log).encode()))
    assert steps, f"nothing was recorded: {done.stderr[-2000:]}"
    return steps


def _steps(trace: Path, folder: bytes, log: bytes) -> Iterator[Step]:
    begun: dict[bytes, bytes] = {}
    positions: dict[bytes, int] = {}
    through: set[bytes] = set()
    with trace.open("rb") as lines:
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            thread, rest = found.groups()
            if rest.endswith(b"<unfinished ...>"):
                begun[thread] = rest[: -len(b"<unfinished ...>")].rstrip()
                if rest.startswith((b"fsync", b"fdatasync")):
                    yield from _sync_begins(begun[thread], folder, thread)
                continue
            if rest.startswith(b"<... "):
                rest = begun.pop(thread, b"") + rest.partition(b" resumed>")[2]
            elif rest.startswith((b"fsync", b"fdatasync")):
                yield from _sync_begins(rest, folder, thread)
            for step in _step(rest, folder, log, positions, through):
                yield step._replace(thread=thread.decode())


def _sync_begins(rest: bytes, folder: bytes, thread: bytes) -> Iterator[Step]:
    path = _handle(rest.partition(b"(")[2])
    if path.startswith(folder + b"/"):
        yield Step("sync begins", path.decode(), thread=thread.decode())


def _handle(arguments: bytes) -> bytes:
    found = _HANDLE.match(arguments)
    if found is None:
        return b""
    name = found.group(1)
    return _bytes(name) if name.startswith(b"\\x") else name


def _bytes(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped.replace(b"\\x", b"").decode())


def _step(rest: bytes, folder: bytes, log: bytes, positions: dict[bytes, int], through: set[bytes]) -> Iterator[Step]:
    """The steps of one system call. For LMDB: `positions` has the file offsets set by `lseek`, for a `writev` after it,
    and `through` the open files whose writes are durable at once.
    """
    found = _NAMED.match(rest)
    if found is None or int(found.group(3)) < 0:
        return
    call, arguments, result = found.group(1), found.group(2), int(found.group(3))
    if call in (b"rename", b"renameat", b"renameat2", b"unlink", b"unlinkat", b"link", b"linkat"):
        yield from _names(call, arguments, folder)
        return
    if call == b"openat":
        (name,) = _TEXT.findall(arguments)
        path = _bytes(name)
        number = str(result).encode()
        (through.add if b"O_DSYNC" in arguments else through.discard)(number)
        if b"O_CREAT" in arguments and path.startswith(folder + b"/"):
            yield Step("make", path.decode())
            if b"O_TRUNC" in arguments:
                yield Step("cut", path.decode(), at=0)
        return
    path = _handle(arguments)
    if path != log and not path.startswith(folder + b"/"):
        return
    if call == b"lseek":
        positions[path] = result
        return
    if call in (b"fsync", b"fdatasync"):
        yield Step("sync", path.decode())
    elif call == b"ftruncate":
        yield Step("cut", path.decode(), at=int(arguments.rpartition(b",")[2]))
    else:
        text = b"".join(_TEXT.findall(arguments))  # pwritev has several pieces
        at = int(arguments.rpartition(b",")[2]) if call in (b"pwrite64", b"pwritev") else None
        if call == b"writev":
            at = positions[path]
        kind = "write through" if arguments.partition(b"<")[0] in through else "write"
        yield Step(kind, path.decode(), _bytes(text)[:result], at)


def _names(call: bytes, arguments: bytes, folder: bytes) -> Iterator[Step]:
    names = [_bytes(name).decode() for name in _TEXT.findall(arguments)]
    if all(name.startswith(folder.decode() + "/") for name in names):
        kind = "rename" if call.startswith(b"rename") else "link" if call.startswith(b"link") else "unlink"
        yield Step(kind, names[0], other=names[1] if len(names) > 1 else "")


@dataclass(eq=False)
class _File:
    """One file: its contents for the process, and its durable contents."""

    data: bytearray = field(default_factory=bytearray)
    #: The durable bytes; and the writes since, oldest first: (offset, bytes).
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    #: The offset of the next write without one: the end of the last such write.
    position: int = 0
    #: The total number of writes; and by syncing thread, that number when its sync began.
    writes: int = 0
    begun: dict[str, int] = field(default_factory=dict)
    #: A cache of its bytes and their digest, until it changes.
    whole: tuple[bytes, bytes] | None = None

    def write(self, at: int | None, data: bytes, *, through: bool) -> None:
        if at is None:
            at = self.position
            self.position += len(data)
        _overwrite(self.data, at, data)
        self.whole = None
        if through:
            _overwrite(self.durable, at, data)
        else:
            self.pending.append((at, data))
            self.writes += 1

    def cut(self, size: int) -> None:
        self.position = min(self.position, size)
        for content in (self.data, self.durable):
            del content[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.pending = [(at, data[: size - at]) if at < size else (size, b"") for at, data in self.pending]
        self.whole = None

    def sync(self, thread: str) -> None:
        """Make the writes durable that came before the sync began."""
        left = self.writes - self.begun.pop(thread, self.writes)
        done = self.pending[: len(self.pending) - left]
        for at, data in done:
            _overwrite(self.durable, at, data)
        del self.pending[: len(done)]

    def image(self) -> tuple[bytes, bytes]:
        """All of its bytes, and their digest."""
        if self.whole is None:
            self.whole = bytes(self.data), _digest(self.data)
        return self.whole

    def appended(self) -> bool:
        """Whether the writes that are not durable are all appends."""
        return all(at >= len(self.durable) for at, _ in self.pending)


def _overwrite(content: bytearray, at: int, data: bytes) -> None:
    if at > len(content):
        content.extend(bytes(at - len(content)))  # a hole
    content[at : at + len(data)] = data


def _digest(data: bytes | bytearray) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Image(NamedTuple):
    """Possible contents of the disk: each file's bytes by name, a digest, and the number of bytes each file lost."""

    files: dict[str, bytes]
    digest: bytes
    lost: dict[str, int]

    def write(self, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        for name, data in self.files.items():
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)


class Images:
    """The folder's files, replayed step by step."""

    def __init__(self, steps: Sequence[Step], folder: Path, log: Path, chance: random.Random) -> None:
        self._steps = steps
        self.folder = folder
        self.log = log
        self._log = str(log)
        self._chance = chance
        self.files: dict[str, _File] = {}
        self._removed: dict[str, _File] = {}
        #: The process's log up to now.
        self.said = bytearray()
        self._at = 0

    def play(self, until: int) -> None:
        """Replay from the current step up to that one."""
        while self._at < until:
            self._play(self._steps[self._at])
            self._at += 1

    def _play(self, step: Step) -> None:
        if step.path == self._log:
            if step.kind == "write":
                self.said += step.data
            return
        file = self.files.get(step.path)
        if step.kind == "make":
            self.files.setdefault(step.path, _File())
        elif step.kind == "rename":
            self.files[step.other] = self.files.pop(step.path)
        elif step.kind == "link":
            self.files[step.other] = self.files[step.path]
        elif file is None:
            pass  # it is a folder
        elif step.kind == "unlink":
            self._removed[step.path] = self.files.pop(step.path)
        elif step.kind in ("write", "write through"):
            file.write(step.at, step.data, through=step.kind == "write through")
        elif step.kind == "cut":
            assert step.at is not None
            file.cut(step.at)
        elif step.kind == "sync begins":
            file.begun[step.thread] = file.writes
        elif step.kind == "sync":
            file.sync(step.thread)

    def unsynced(self) -> dict[str, _File]:
        """The files with bytes that are not durable."""
        return {path: file for path, file in self.files.items() if file.pending}

    def killed(self, marks: Sequence[bytes]) -> Image:
        """The files after a kill of the process now: every written byte, since the system continues to run.

        `marks`: recent contents of DURABLE, which is mapped, so that no system call shows its bytes.
        """
        return self._image({path: file.image() for path, file in self.files.items()}, {}, marks[-1:])

    def cut(self, marks: Sequence[bytes]) -> Image:
        """Files that a power loss now may leave; each call draws at random."""
        files = {**self._removed, **self.files} if self._chance.random() < 0.3 else self.files
        found: dict[str, tuple[bytes, bytes]] = {}
        lost: dict[str, int] = {}
        for path, file in files.items():
            if _NEVER_READ.search(path):
                continue
            if path in self.files and file.pending:
                data = self._left(file)
                found[path] = data, _digest(data)
                if data != file.data:
                    lost[path] = len(file.data) - len(data)
            else:
                found[path] = file.image()
        return self._image(found, lost, self._some(marks))

    def _some(self, marks: Sequence[bytes]) -> Sequence[bytes]:
        """The contents of DURABLE: mostly the last, sometimes an earlier one, sometimes no file."""
        kind = self._chance.random()
        return marks[-1:] if kind < 0.6 else marks if kind < 0.8 else ()

    def _image(self, found: dict[str, tuple[bytes, bytes]], lost: dict[str, int], marks: Sequence[bytes]) -> Image:
        files = {str(Path(path).relative_to(self.folder)): data for path, (data, _) in found.items()}
        files.pop("DURABLE", None)
        if marks:
            files["DURABLE"] = self._chance.choice(marks)
        if "OWNER" in files:
            files["OWNER"] = b""
        named = sorted(
            (path, digest) for path, (_, digest) in found.items() if not path.endswith(("/OWNER", "/DURABLE"))
        )
        named.append(("DURABLE", files.get("DURABLE", b"")))
        return Image(files, _digest(repr(named).encode()), {Path(path).name: count for path, count in lost.items()})

    def _left(self, file: _File) -> bytes:
        """Draw the bytes that a power loss leaves of a file with writes that are not durable."""
        if file.appended():
            kept = self._kept(file)
            zeros = kept < len(file.data) and self._chance.random() < 0.15
            return bytes(file.data[:kept]).ljust(len(file.data) if zeros else 0, b"\0")
        kind = self._chance.random()
        if kind < 0.2:
            return bytes(file.durable)
        if kind < 0.4:
            return bytes(file.data)
        content, odds = bytearray(file.durable), self._chance.choice((0.2, 0.5, 0.8))
        for at, data in file.pending:
            for page in range(0, len(data), _PAGE):
                if self._chance.random() < odds:
                    torn = self._chance.randrange(8) if self._chance.random() < 0.2 else 8
                    _overwrite(content, at + page, data[page : page + torn * _SECTOR])
        return bytes(content)

    def _kept(self, file: _File) -> int:
        """Draw how many bytes of an appended file are left: often up to the end of a write."""
        chance, size = self._chance, len(file.data)
        kind = chance.random()
        if kind < 0.35:
            return size
        if kind < 0.5 or size <= _SECTOR:
            return len(file.durable)
        if kind < 0.85:
            at, data = chance.choice(file.pending)
            return min(size, at + len(data))
        return chance.randint(len(file.durable), size)
