"""Pieces of staged writes, as a tenant's quota counts them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tenure.storage.staged_parts import Pieces, folder_of


def test_a_piece_that_could_not_be_written_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, write = Pieces(tmp_path), "acme/w"
    pieces.put(write, "part", 0, b"x" * 100)
    assert pieces.held_by("acme") == 100

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        pieces.put(write, "part", 1, b"y" * 50)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.new"))
    assert pieces.held_by("acme") == 100
    pieces.put(write, "part", 0, b"z" * 30)
    assert pieces.held_by("acme") == 30


def test_a_stored_piece_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set[str]()
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    Pieces(tmp_path).put("acme/w", "part", 0, b"x")
    folder = folder_of(str(tmp_path / "staging"), "acme/w")
    assert {str(folder), str(folder.parent), str(tmp_path)} <= synced


def test_expired_writes_are_removed_and_no_longer_count(tmp_path: Path) -> None:
    pieces = Pieces(tmp_path)
    pieces.put("acme/old", "part", 0, b"x" * 100)
    pieces.put("acme/new", "part", 0, b"y" * 10)
    assert pieces._root is not None
    for file in folder_of(pieces._root, "acme/old").iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))
    pieces._looked = time.monotonic()
    pieces.tend()
    assert pieces.held_by("acme") == 110  # at most once an hour
    pieces._looked -= 3601
    pieces.tend()
    assert pieces.held_by("acme") == 10
