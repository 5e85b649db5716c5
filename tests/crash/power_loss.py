"""Power cuts, built from recorded system calls.

`record` runs a process under strace and reads back what it did to the files of one folder. `Images` plays that back up to
any moment, and writes out what a power cut at that moment may leave on the disk:

- a file's bytes up to its last `fsync` or `fdatasync` are there;
- of what was written to it later, any suffix is missing, or reads as zeros: each file on its own, since the system writes
  files back in any order;
- a file that was removed may still be there.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_CALLS = "write,pwrite64,writev,pwritev,lseek,fdatasync,fsync,openat,rename,renameat,renameat2,ftruncate,unlink,unlinkat,link,linkat"
_LINE = re.compile(rb"^(\d+) +(.*)$")
_NAMED = re.compile(rb"^(\w+)\((.*)\) += (-?\d+)", re.DOTALL)
_HANDLE = re.compile(rb"^\d+<(.*?)>")
_TEXT = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"')


class Step(NamedTuple):
    """One system call that changed a file, or made it durable."""

    kind: str  # "make", "write", "sync begins", "sync", "cut", "rename", "link", "unlink"
    path: str
    data: bytes = b""
    at: int | None = None  # where it is written (None: at the end); the new length ("cut")
    other: str = ""  # the new name ("rename", "link")


def record(command: Sequence[str], folder: Path, log: Path, trace: Path, cwd: Path) -> list[Step]:
    """Run it under strace until it ends; what it did to the folder's files and to `log`, in the order it happened."""
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "100000000", "-o", str(trace)]
    strace += ["-e", f"trace={_CALLS}", "-e", "signal=none"]
    done = subprocess.run([*strace, *command], cwd=cwd, capture_output=True, text=True)
    steps = list(_steps(trace, str(folder).encode(), str(log).encode()))
    assert steps, f"nothing was recorded: {done.stderr[-2000:]}"
    return steps


def _steps(trace: Path, folder: bytes, log: bytes) -> Iterator[Step]:
    begun: dict[bytes, bytes] = {}
    positions: dict[bytes, int] = {}
    with trace.open("rb") as lines:
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            thread, rest = found.groups()
            if rest.endswith(b"<unfinished ...>"):
                begun[thread] = rest[: -len(b"<unfinished ...>")].rstrip()
                if rest.startswith((b"fsync", b"fdatasync")):
                    yield from _sync_begins(begun[thread], folder)
                continue
            if rest.startswith(b"<... "):
                rest = begun.pop(thread, b"") + rest.partition(b" resumed>")[2]
            elif rest.startswith((b"fsync", b"fdatasync")):
                yield from _sync_begins(rest, folder)
            yield from _step(rest, folder, log, positions)


def _sync_begins(rest: bytes, folder: bytes) -> Iterator[Step]:
    path = _handle(rest.partition(b"(")[2])
    if path.startswith(folder + b"/"):
        yield Step("sync begins", path.decode())


def _handle(arguments: bytes) -> bytes:
    found = _HANDLE.match(arguments)
    if found is None:
        return b""
    name = found.group(1)
    return _bytes(name) if name.startswith(b"\\x") else name


def _bytes(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped.replace(b"\\x", b"").decode())


def _step(rest: bytes, folder: bytes, log: bytes, positions: dict[bytes, int]) -> Iterator[Step]:
    """What one call did. `positions`: where files stand by `lseek`, for the `writev` that follows (LMDB)."""
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
        text = b"".join(_TEXT.findall(arguments))  # of pwritev: its pieces
        at = int(arguments.rpartition(b",")[2]) if call in (b"pwrite64", b"pwritev") else None
        if call == b"writev":
            at = positions[path]
        yield Step("write", path.decode(), _bytes(text)[:result], at)


def _names(call: bytes, arguments: bytes, folder: bytes) -> Iterator[Step]:
    names = [_bytes(name).decode() for name in _TEXT.findall(arguments)]
    if all(name.startswith(folder.decode() + "/") for name in names):
        kind = "rename" if call.startswith(b"rename") else "link" if call.startswith(b"link") else "unlink"
        yield Step(kind, names[0], other=names[1] if len(names) > 1 else "")


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    #: Bytes known durable; those of a sync that has begun.
    durable: int = 0
    syncing: int = 0
    #: Lengths it had after each write.
    borders: list[int] = field(default_factory=list)


class Images:
    """The folder's files, played back step by step."""

    def __init__(self, steps: Sequence[Step], folder: Path, log: Path, chance: random.Random) -> None:
        self._steps = steps
        self._folder = folder
        self._log = str(log)
        self._chance = chance
        self.files: dict[str, _File] = {}
        self._removed: dict[str, _File] = {}
        #: What the process had said by now.
        self.said = bytearray()
        self._at = 0

    def play(self, until: int) -> None:
        """Up to that step, from where it was."""
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
            pass  # a folder
        elif step.kind == "unlink":
            self._removed[step.path] = self.files.pop(step.path)
        elif step.kind == "write":
            at = len(file.data) if step.at is None else step.at
            if at > len(file.data):
                file.data.extend(bytes(at - len(file.data)))  # a hole
            file.data[at : at + len(step.data)] = step.data
            file.durable = min(file.durable, at)
            file.borders.append(len(file.data))
        elif step.kind == "cut":
            assert step.at is not None
            del file.data[step.at :]
            file.durable = min(file.durable, step.at)
        elif step.kind == "sync begins":
            file.syncing = len(file.data)
        elif step.kind == "sync":
            file.durable = max(file.durable, min(file.syncing, len(file.data)))

    def unsynced(self) -> dict[str, _File]:
        """The files with bytes that are not durable."""
        return {path: file for path, file in self.files.items() if len(file.data) > file.durable}

    def _kept(self, file: _File) -> int:
        chance = self._chance
        size = len(file.data)
        borders = [border for border in file.borders if file.durable <= border <= size]
        kind = chance.random()
        if kind < 0.35:
            return size
        if kind < 0.5 or not borders:
            return file.durable
        if kind < 0.85:
            return chance.choice(borders)
        return chance.randint(file.durable, size)

    def write_killed(self, target: Path, marks: Sequence[bytes]) -> None:
        """Write out what a process leaves that is killed now: every byte that it wrote. The system goes on."""
        shutil.rmtree(target, ignore_errors=True)
        for path, file in self.files.items():
            place = target / Path(path).relative_to(self._folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bytes(file.data))
        if marks:
            (target / "DURABLE").write_bytes(marks[-1])
        if (target / "OWNER").exists():
            os.truncate(target / "OWNER", 0)

    def write(self, target: Path, marks: Sequence[bytes]) -> dict[str, int]:
        """Write out one image; the names of the files that lost bytes, and how many they lost."""
        shutil.rmtree(target, ignore_errors=True)
        lost = {path: self._kept(file) for path, file in self.unsynced().items()}
        told: dict[str, int] = {}
        files = dict(self.files)
        if self._chance.random() < 0.3:
            files = {**self._removed, **files}
        for path, file in files.items():
            name = Path(path).relative_to(self._folder)
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            kept = lost.get(path, len(file.data))
            data = bytes(file.data[:kept])
            if kept < len(file.data):
                told[str(name)] = len(file.data) - kept
                if self._chance.random() < 0.15:
                    data = data.ljust(len(file.data), b"\0")
            place.write_bytes(data)
        if marks and self._chance.random() < 0.8:
            (target / "DURABLE").write_bytes(self._chance.choice(marks))
        else:
            (target / "DURABLE").unlink(missing_ok=True)
        os.truncate(target / "OWNER", 0)
        return told
