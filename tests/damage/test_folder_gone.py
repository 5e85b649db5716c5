"""A store whose folder is removed, moved or replaced notices it and stops."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tenure.errors import Unavailable
from tenure.testing.conformance.world import eventually

engines = pytest.mark.parametrize(("engine", "durability"), [("rocksdb", "disk"), ("rocksdb", "os"), ("lmdb", "disk")])


def replaced(data: Path) -> None:
    shutil.copytree(data, data.with_name("copy"), ignore=shutil.ignore_patterns("SOCKET"))
    shutil.rmtree(data)
    data.with_name("copy").rename(data)


def moved(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def database_removed(data: Path) -> None:
    shutil.rmtree(data / "db")


@engines
@pytest.mark.parametrize("change", [shutil.rmtree, replaced, moved, database_removed])
def test_the_store_stops_when_its_folder_is_gone(
    tmp_path: Path, engine: str, durability: str, change: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    store = tenure.open(f"{engine}:{data}", durability=durability, sweep=False)  # type: ignore[arg-type]
    queue = store.queue("work")
    queue.enqueue(b"before")
    change(data)

    def refused() -> bool:
        try:
            queue.enqueue(b"after")
        except Unavailable as error:
            return "removed, moved or replaced" in str(error)
        return False

    if durability == "disk":
        assert refused(), "a call was acknowledged without a folder"
    assert eventually(refused)
    with pytest.raises(Unavailable):
        store.sweep()
    with contextlib.suppress(Unavailable):  # `close` may report again that it could not sync
        store.close()


@engines
def test_a_sweep_notices_it_too(tmp_path: Path, engine: str, durability: str) -> None:
    data = tmp_path / "data"
    store = tenure.open(f"{engine}:{data}", durability=durability, sweep=False)  # type: ignore[arg-type]
    shutil.rmtree(data)
    with pytest.raises(Unavailable, match="removed, moved or replaced"):
        store.sweep()
    with pytest.raises(Unavailable, match="removed, moved or replaced"):
        store.queue("work").enqueue(b"x")
    with contextlib.suppress(Unavailable):  # the next test may get a folder of the same name
        store.close()
