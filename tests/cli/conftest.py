"""The command line in this process, on a RocksDB store of each test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tenure
from tenure.cli.main import cli


@dataclass
class Ran:
    """One run: what a shell would see."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> Any:
        (only,) = self.lines
        return only


class Shell:
    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = CliRunner()

    def __call__(self, *args: str, stdin: str | bytes | None = None) -> Ran:
        result = self._runner.invoke(cli, ["--store", self.url, *args], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.stderr
        return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)

    def json(self, *args: str, stdin: str | bytes | None = None) -> Ran:
        return self(*args, "--json", stdin=stdin)

    def enqueue(self, queue: str, payload: str, *options: str) -> str:
        ran = self.json("enqueue", queue, payload, *options)
        assert ran.code == 0, ran.err
        return str(ran.object["id"])

    def claim(self, queue: str, *options: str) -> str:
        ran = self.json("claim", queue, *options)
        assert ran.code == 0, ran.err
        return str(ran.object["receipt"])

    def kill(self, queue: str, payload: str, error: str) -> str:
        """A dead job."""
        job = self.enqueue(queue, payload)
        assert self("fail", queue, self.claim(queue), "--error", error).code == 0
        return job


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but the test's."""
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    url = f"rocksdb:{tmp_path / 'store'}"
    yield Shell(url)
    if (tmp_path / "store").exists():
        with tenure.open(url, sweep=False) as store:
            assert store.check().clean
