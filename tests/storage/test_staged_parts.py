"""Pieces of staged writes, as a tenant's quota counts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tenure.storage.staged_parts import Pieces


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
    assert pieces.held_by("acme") == 100
    pieces.put(write, "part", 0, b"z" * 30)
    assert pieces.held_by("acme") == 30
