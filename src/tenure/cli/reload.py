"""--reload: run the worker in a child process, and restart it whenever a Python file under this folder changes."""

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
#: Folders whose files do not belong to the app.
_IGNORED = {"node_modules", "__pycache__", "venv", "env"}
#: Seconds for a worker to end before it is killed, so that a change takes effect soon.
_STOP_SECONDS = 10.0


def supervise(session: Session) -> int:
    """Run until SIGINT or SIGTERM; return the last worker's exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    signals: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    process = _start(arguments)
    seen = dict(_files(Path.cwd()))
    try:
        while not signals:
            time.sleep(_EVERY)
            now = dict(_files(Path.cwd()))
            if now == seen:
                continue  # also if the worker has ended: a changed file starts it again
            changed = sorted({*now.items()} ^ {*seen.items()})[0][0]
            seen = now
            session.out.note(f"{os.path.relpath(changed)} changed: starting again")
            _stop(process)
            process = _start(arguments)
        return _pass_on(signals, process)
    finally:
        if process.poll() is None:
            _stop(process)
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(signals: list[int], process: subprocess.Popen[bytes]) -> int:
    """Pass the signals on to the worker until it has ended, and return its exit code, as a shell counts it.

    Ctrl-C on a terminal has reached the worker too, and a second signal would end it without grace. So a first SIGINT
    is passed on only if there is no terminal.
    """
    passed = 1 if signals[0] == signal.SIGINT and _has_terminal() else 0
    while (code := process.poll()) is None:
        if passed < len(signals):
            passed += 1
            process.terminate()
        time.sleep(0.05)
    return 128 - code if code < 0 else code


def _has_terminal() -> bool:
    try:
        os.close(os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tenure_command", *arguments])  # noqa: S603 - runs this program itself


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the Python files below a folder, and the time each was last written."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _IGNORED]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    yield path, os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue  # an editor's temporary file, already removed
