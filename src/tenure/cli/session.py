"""The store of a command: choose it, and open and close it around the work.

Commands print after they closed the store, so that a pager or a slow pipe does not keep a RocksDB store open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property

import tenure
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.cli.output import Output
from tenure.cli.progress import progress_bar
from tenure.errors import NotFound, OpenError
from tenure.model.names import DEFAULT_TENANT, queue_name
from tenure.settings import Settings
from tenure.storage.folder import Folder
from tenure.telemetry import configure_logging

DEFAULT_PATH = "./data"


class Session:
    """The common options, set while click parses them, and the store that they name."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.config: str | None = None
        self.given_tenant: str | None = None
        self.json = False
        self.debug = False
        self._opened: Store | None = None

    @property
    def tenant(self) -> str:
        return self.given_tenant or DEFAULT_TENANT

    @cached_property
    def out(self) -> Output:
        return Output(self.json)

    @cached_property
    def settings(self) -> Settings:
        return Settings.load(self.url, self.config)

    def where(self) -> tuple[str, str | None]:
        """Return the engine and its path: from --store, else the settings, else ./data."""
        return self._where

    @cached_property
    def _where(self) -> tuple[str, str | None]:
        """As `where`. Says once that nothing is configured: `top` asks at each refresh, and draws where that goes."""
        storage = self.settings.storage
        if storage.engine == "memory":
            return storage.engine, None
        if storage.path is None:
            self.out.note(
                f"Using {storage.engine}:{DEFAULT_PATH}, as nothing else is configured (--store names another)."
            )
        return storage.engine, storage.path or DEFAULT_PATH

    def address(self) -> str:
        """Return the store's URL."""
        engine, path = self.where()
        return path if engine in ("redis", "http") and path else f"{engine}:{path or ''}"

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """Open the store for a block.

        Without `create`, raise OpenError if it does not exist: a mistyped path must not create one.

        It runs no sweeper: a claim takes over expired leases by itself, and a command that only reads changes nothing.
        """
        log = self.settings.log
        configure_logging("debug" if self.debug else log.level, "json" if self.json else log.format)
        url = self.address()
        engine, path = url.split(":", 1)
        if engine in ("rocksdb", "lmdb") and not create and not Folder(path, engine).check():
            raise OpenError(
                f"there is no store at {path}. Name another with --store, or enqueue a job to make this one."
            )
        with progress_bar(f"Opening {url}"):
            store = tenure.open(url, config=self.config, sweep=False)
        with store:
            self._opened = store
            yield store

    @contextmanager
    def queue(self, name: str, *, create: bool = False) -> Iterator[Queue]:
        """Open the store for a block, and yield one of its queues.

        Raises InvalidArgument for an invalid name, before it opens.
        """
        queue_name(name, self.tenant)
        with self.store(create=create) as store:
            yield store.queue(name, self.tenant)

    def require_queue(self, name: str) -> None:
        """Raise NotFound if the tenant has no such queue. Call it inside `store` or `queue`, when an answer is empty.

        The first enqueue creates a queue, so the store treats an unknown queue as an empty one; but a person has
        usually mistyped the name.
        """
        assert self._opened is not None
        known = [info.queue for info in self._opened.queues(self.tenant)]
        if name not in known:
            near = get_close_matches(name, known, 1, 0.7)
            hint = f": did you mean {near[0]!r}?" if near else ". See 'tenure queues' for those there are"
            raise NotFound(f"tenant {self.tenant!r} has no queue {name!r}{hint}")
