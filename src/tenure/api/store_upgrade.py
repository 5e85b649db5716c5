"""Upgrade a store from the previous format."""

from __future__ import annotations

from tenure.clock import SystemClock
from tenure.contract.backend import Progress
from tenure.queueing import bulk_loads, upgrades
from tenure.queueing.core import Core
from tenure.storage.engine import Engine
from tenure.storage.folder import Folder
from tenure.storage.segments import SegmentedEngine


def upgrade_to_2(folder: Folder, progress: Progress) -> None:
    """Upgrade from format 1. After an interruption the folder cannot be opened; a second call continues the upgrade.

    Raises StoreLocked if a process has the store open, and Corrupt as opening it would.
    """
    engine = _opened(folder)
    try:
        folder.write_format(upgrading=True)
        core = Core(SegmentedEngine(engine) if engine.traits.scope == "process" else engine, SystemClock())
        bulk_loads.roll_forward(core)
        upgrades.to_format_2(core, progress)
    finally:
        engine.close()
    folder.write_format()


def _opened(folder: Folder) -> Engine:
    """Open the folder's engine, importing only that engine."""
    boot = SystemClock().boot_id()
    if folder.engine == "lmdb":
        from tenure.storage.engines.lmdb import LmdbEngine

        return LmdbEngine(str(folder.path), boot_id=boot, upgrading=True)
    from tenure.storage.engines.rocksdb import RocksEngine

    return RocksEngine(str(folder.path), boot_id=boot, upgrading=True)
