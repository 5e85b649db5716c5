"""Tests that several stores could run, and that `make test` runs on one of them, in turn. `make test-full` runs all (ALL_COMBINATIONS=1)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

ALL_COMBINATIONS = bool(os.environ.get("ALL_COMBINATIONS"))


def in_turn(test: str, choices: Sequence[T]) -> T:
    """One of the choices, by the name of the test: the same in every run."""
    return choices[crc32(test.encode()) % len(choices)]
