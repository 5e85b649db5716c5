"""Which store a command works on, and its opening and closing around the work.

Commands print after the store is closed, so that a RocksDB store is never held while a pager waits for its reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import tenure
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.cli.output import Output
from tenure.cli.progress import working
from tenure.errors import OpenError
from tenure.model.names import DEFAULT_TENANT, queue_name
from tenure.settings import Settings
from tenure.storage.folder import Folder
from tenure.telemetry import configure_logging

DEFAULT_PATH = "./data"


class Session:
    """What the common options said; they are set as they are parsed, before or after the command's name."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.config: str | None = None
        self.given_tenant: str | None = None
        self.json = False
        self.debug = False

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
        """The engine and its path: as --store says, else as settings say, else ./data."""
        storage = self.settings.storage
        if storage.engine == "memory":
            return storage.engine, None
        if storage.path is None:
            self.out.note(
                f"Using {storage.engine}:{DEFAULT_PATH}, as nothing else is configured (--store names another)."
            )
        return storage.engine, storage.path or DEFAULT_PATH

    def address(self) -> str:
        """The store's URL."""
        engine, path = self.where()
        return path if engine in ("redis", "http") and path else f"{engine}:{path or ''}"

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """The open store. Only what adds to it may `create` one: a mistyped path must not become an empty store.

        There is no sweeper: a claim takes over expired leases by itself, and whoever only looks should change nothing.
        """
        log = self.settings.log
        configure_logging("debug" if self.debug else log.level, "json" if self.json else log.format)
        url = self.address()
        engine, path = url.split(":", 1)
        if engine in ("rocksdb", "lmdb") and not create and not Folder(path, engine).check():
            raise OpenError(
                f"there is no store at {path}. Name another with --store, or enqueue a job to make this one."
            )
        with working(f"Opening {url}"):
            store = tenure.open(url, config=self.config, sweep=False)
        with store:
            yield store

    @contextmanager
    def queue(self, name: str, *, create: bool = False) -> Iterator[Queue]:
        queue_name(name, self.tenant)  # a bad name is refused before anything is opened or made
        with self.store(create=create) as store:
            yield store.queue(name, self.tenant)
