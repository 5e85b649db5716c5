"""A PostgreSQL server in a folder of its own, which a test can kill and start again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path

import pytest

from bench.peers.server_process import Missing, Server, account, module, program

_INSTALL = "apt-get install postgresql"
_databases = count(1)


class PostgresServer:
    """Listens on a Unix socket only. `kill` ends it as a power cut would end its processes; `start` starts it again."""

    def __init__(self) -> None:
        self.psycopg = module("psycopg", "pip install 'tenure[postgres]'")
        bins = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
        self._program = program("postgres", _INSTALL, *bins)
        initdb = program("initdb", _INSTALL, *bins)
        # Not in pytest's folder: the server runs as another user, who may not look into that.
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._user = account()
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        made = subprocess.run(
            [initdb, "-D", str(self._folder / "data"), "-U", "app", "-A", "trust", "--no-sync", "-E", "UTF8"],
            user=self._user, cwd=self._folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            raise Missing(f"initdb failed: {made.stderr[-300:]}")
        self.start()

    @classmethod
    def started_or_skipped(cls) -> PostgresServer:
        try:
            return cls()
        except Missing as exc:
            pytest.skip(f"no PostgreSQL here: {exc}")

    def address(self, name: str) -> str:
        return f"postgresql:///{name}?host={self._folder}&user=app"

    def new_database(self) -> str:
        name = f"app{next(_databases)}"
        with self.psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def start(self) -> None:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), "shared_buffers": "16MB"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._server = Server(
            [self._program, "-D", str(self._folder / "data"), *options], self._folder, self._answers,
            user=self._user, stop=signal.SIGINT,
        )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the server and all its children; it recovers from its log at the next start."""
        parent = self._server.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in (parent, *map(int, children)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._server.process.wait()
        while any(Path(f"/proc/{pid}").exists() for pid in children):  # they hold the shared memory
            time.sleep(0.01)
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def remove(self) -> None:
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            self.psycopg.connect(self.address("postgres")).close()
        except self.psycopg.OperationalError:
            return False
        return True
