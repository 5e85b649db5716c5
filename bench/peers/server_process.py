"""Start another project's server in a folder of the run, and stop it whatever happens.

A peer that is not installed raises `Missing`, which says how to install it: the run continues without it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_START_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here: between fork and exec it is only called


class Missing(Exception):
    """This peer is not installed; the text says how to install it."""


def module(name: str, install: str) -> Any:
    """Import a peer's client library when needed: Tenure does not depend on it."""
    try:
        return import_module(name)
    except ImportError as exc:
        raise Missing(f"no Python module {name}: {install}") from exc


def program(name: str, install: str, *places: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *places]))
    if found is None:
        raise Missing(f"no program {name}: {install}")
    return found


def account() -> str | None:
    """Return the account for a server that refuses to run as root; None if this process is not root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise Missing("no account to run a server as that refuses root")


class Server:
    """A running server. Its output is in `folder/log`."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        ready: Callable[[], bool],
        *,
        user: str | None = None,
        stop: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._stop = stop
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                list(argv), cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=user,
                group=None if user is None else pwd.getpwnam(user).pw_gid, extra_groups=None if user is None else [],
                preexec_fn=_die_with_us,
            )  # fmt: skip
        atexit.register(self.stop)
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise Missing(f"{argv[0]} did not start: {(folder / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        if self.process.poll() is None:
            self.process.send_signal(self._stop)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _die_with_us() -> None:
    """End the server when the benchmark is killed."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
