"""--reload: the same command again, in a process of its own, whenever a Python file under this folder changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tenure.cli.session import Session

_EVERY = 0.5
#: Folders that are no part of anybody's program.
_PASSED_OVER = {"node_modules", "__pycache__", "venv", "env"}
#: A worker that does not end in this time is killed: whoever edits wants to see the change.
_PATIENCE = 10.0


def supervise(session: Session) -> int:
    """Until it is interrupted; the last worker's exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    told: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        told.append(number)

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    process = _start(arguments)
    seen = dict(_files(Path.cwd()))
    try:
        while not told:
            time.sleep(_EVERY)
            now = dict(_files(Path.cwd()))
            if now == seen:
                continue  # also when the worker has ended: a mended file starts it again
            changed = sorted({*now.items()} ^ {*seen.items()})[0][0]
            seen = now
            session.out.note(f"{os.path.relpath(changed)} changed: starting again")
            _stop(process)
            process = _start(arguments)
        # A Ctrl-C has reached the worker too; a SIGTERM only this process.
        if told[0] == signal.SIGTERM and process.poll() is None:
            process.terminate()
        return process.wait()
    finally:
        if process.poll() is None:
            _stop(process)
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tenure", *arguments])  # noqa: S603 - ourselves


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Python files below a folder, and when each was written."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _PASSED_OVER]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    yield path, os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue  # an editor's, gone already
