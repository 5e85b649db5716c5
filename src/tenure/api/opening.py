"""`tenure.open`: read settings, open the engine, build the store on it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tenure.api.store import Store
from tenure.api.sweeper import Sweeper
from tenure.clock import Clock, SystemClock
from tenure.contract.backend import Backend
from tenure.errors import OpenError, SettingsError, StoreLocked
from tenure.extras import needs
from tenure.settings import SETTINGS, Settings, Storage, parse_url, variable
from tenure.storage.engine import DURABILITIES, Durability, Engine
from tenure.storage.folder import expand, lets_in
from tenure.storage.keyspace import FORMAT

if TYPE_CHECKING:
    from tenure.backends.joined import JoinedBackend

_PARAMETERS = ("durability", "clock", "sweep", "config")
#: The engines' own settings by their last name, as a call gives them: `open("rocksdb:./data", mode="low_space")`.
OPTIONS: dict[str, tuple[str, ...]] = {}
for _name in SETTINGS:
    if _name.startswith("storage.") and _name.count(".") == 2:
        OPTIONS[_name.rsplit(".", 1)[1]] = (*OPTIONS.get(_name.rsplit(".", 1)[1], ()), _name)


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class _Opened(NamedTuple):
    backend: Backend
    #: Remarks for the log line about the opened store.
    remarks: Sequence[str] = ()
    #: The same backend as `backend`, if another process owns the store.
    joined: JoinedBackend | None = None


def open(
    url: str | None = None,
    *,
    durability: Durability | None = None,
    clock: Clock | None = None,
    sweep: bool | float | timedelta | None = None,
    config: str | os.PathLike[str] | None = None,
    **options: object,
) -> Store:
    """Open a store, creating it if it does not exist: `rocksdb:./data`, `lmdb:./data`, `memory:`, `redis://host`,
    `foundationdb:/etc/foundationdb/fdb.cluster`.

    Or connect to a server's store: `http://host:port`, `https://host`, `http+unix:/path/to/socket`.

    Settings not given here come from the environment, a TOML file (`config`, or ./tenure.toml) or the defaults: see
    docs/settings.md. `durability` is the least accepted. `sweep` turns the background sweeper on or off, or gives the
    seconds between its passes. `options` are settings of the engine by their last name: `mode="low_space"` sets
    `storage.rocksdb.mode`.

    Raises SettingsError, UnknownEngine, StoreLocked, FormatError or another OpenError, with nothing changed on disk;
    Corrupt.
    """
    overrides: dict[str, object] = {"storage.durability": durability, **_options(options)}
    if isinstance(sweep, bool):
        overrides["sweep.enabled"] = sweep
    elif sweep is not None:
        overrides |= {"sweep.enabled": True, "sweep.interval": sweep}
    settings = Settings.load(url, config, overrides=overrides)
    return open_with(settings, clock, given=frozenset(options), sweep=sweep not in (None, False))


def open_with(
    settings: Settings, clock: Clock | None = None, *, given: frozenset[str] = frozenset(), sweep: bool = False
) -> Store:
    """Open the store that the settings name.

    `given` are the options of the caller, which must be settings of the engine. `sweep`: the caller asked for a
    sweeper.
    """
    storage = settings.storage
    for option in given:
        engines = [name.split(".")[1] for name in OPTIONS[option]]
        if storage.engine not in engines:
            raise SettingsError(
                f"{option!r} is a setting of {' and '.join(engines)}, and this is a {storage.engine} store"
            )
    clock = SystemClock() if clock is None else clock
    opened = {"redis": _redis, "http": _http, "rocksdb": _owned}.get(storage.engine, _embedded)
    backend, remarks, joined = opened(storage, clock)
    sweeping = settings.sweep
    # A server and an owner sweep their stores themselves; their clients sweep only if asked to.
    wanted = sweeping.enabled and joined is None and (sweep or storage.engine != "http")
    store = Store(backend, sweeper=Sweeper(clock, sweeping.interval) if wanted else None)
    if joined is not None and sweeping.enabled:
        _sweep_once_owned(joined, store, clock, sweeping.interval)
    _stores.add(store)
    for remark in remarks:
        store._telemetry.warning("opened_with_a_remark", remark=remark)
    store._telemetry.info(
        "opened",
        engine=storage.engine,
        durability=store.durability,
        format=FORMAT,
        sweep=sweeping.interval if sweeping.enabled else None,
    )
    return store


def already_open(url: str) -> Store | None:
    """Return the store of that folder if this process has it open: a process cannot open one twice."""
    engine, path = parse_url(url)
    if path is None or engine not in ("rocksdb", "lmdb"):
        return None
    wanted = f"{engine}:{expand(path)}"
    return next((store for store in list(_stores) if store.url == wanted and not store.closed), None)


def _options(options: dict[str, object]) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for option, value in options.items():
        if option not in OPTIONS:
            from difflib import get_close_matches  # here, to keep `import tenure` fast

            near = get_close_matches(option, [*OPTIONS, *_PARAMETERS], 1)
            meant = f"did you mean {near[0]!r}? The" if near else "the"
            raise SettingsError(
                f"unknown option {option!r} (given to open): {meant} engines take {', '.join(sorted(OPTIONS))}"
            )
        overrides.update(dict.fromkeys(OPTIONS[option], value))
    return overrides


def _embedded(storage: Storage, clock: Clock) -> _Opened:
    from tenure.backends.embedded import (
        EmbeddedBackend,
    )  # imported here to keep `import tenure` fast

    engine, url = _ENGINES[storage.engine](storage, clock)
    try:
        _refuse_less(engine.traits.durability, storage.promised, url)
        return _Opened(
            EmbeddedBackend(engine, url, clock, storage.journal_retention, storage.inspect_limit), engine.remarks
        )
    except BaseException:
        engine.close()
        raise


def _owned(storage: Storage, clock: Clock) -> _Opened:
    """Open a store that one process owns.

    This process becomes the owner if no other is. Otherwise the owner carries out the verbs, and later its successor
    does.
    """
    if not storage.rocksdb.listen:
        return _embedded(storage, clock)
    from tenure.backends.owner.backend import OwnerBackend

    path = _path(storage)
    url = f"rocksdb:{path}"
    remarks: list[str] = []

    def own() -> Backend:
        engine, _ = _rocksdb(storage, clock)
        try:
            _refuse_less(engine.traits.durability, storage.promised, url)
            remarks[:] = engine.remarks
            return OwnerBackend(engine, url, clock, Path(path), storage.journal_retention, storage.inspect_limit)
        except BaseException:
            engine.close()
            raise

    try:
        return _Opened(own(), remarks)
    except StoreLocked as locked:
        if not lets_in(Path(path)):
            raise
        from tenure.backends.joined import JoinedBackend, joined

        backend = joined(url, own, Path(path), storage.http.timeout, locked)
    if storage.durability is not None:
        try:
            _refuse_less(backend.traits.durability, storage.durability, url)
        except OpenError:
            backend.close()
            raise
    return _Opened(backend, remarks, backend if isinstance(backend, JoinedBackend) else None)


def _sweep_once_owned(joined: JoinedBackend, store: Store, clock: Clock, interval: float) -> None:
    """Start the sweeper once this process owns the store: the owner sweeps."""
    found = weakref.ref(store)

    def begin() -> None:
        owned = found()
        if owned is not None:
            owned._begin_sweeping(Sweeper(clock, interval))

    joined.on_owner(begin)


def _redis(storage: Storage, clock: Clock) -> _Opened:
    if storage.path is None:
        raise SettingsError(
            f"no server is named: give open a URL ('redis://<host>'), or set {variable('storage.path')}"
        )
    with needs("redis", "Redis and Valkey stores"):
        from tenure.backends.redis.opening import open_redis
    backend, remarks = open_redis(storage.path, storage.redis, clock, storage.inspect_limit)
    try:
        _refuse_less(backend.traits.durability, storage.promised, backend.url)
    except BaseException:
        backend.close()
        raise
    return _Opened(backend, remarks)


def _http(storage: Storage, clock: Clock) -> _Opened:
    if storage.path is None:
        raise SettingsError(
            f"no server is named: give open a URL ('http://<host>:<port>'), or set {variable('storage.path')}"
        )
    from tenure.backends.remote.address import parse
    from tenure.backends.remote.backend import RemoteBackend
    from tenure.backends.remote.credentials import Credentials

    http = storage.http
    backend = RemoteBackend(
        parse(storage.path),
        encoding=http.encoding,
        credentials=Credentials(http.token.reveal(), http.token_file),
        timeout=http.timeout,
        ca_file=http.ca_file,
    )
    try:
        _refuse_less(backend.traits.durability, storage.promised, backend.url)
    except BaseException:
        backend.close()
        raise
    return _Opened(backend)


# ── the engines, each imported on first use ──────────────────────────────────────────────────────────────────────


def _memory(storage: Storage, clock: Clock) -> tuple[Engine, str]:
    _refuse_less("memory", storage.promised, "memory:")
    from tenure.storage.engines.memory import MemoryEngine

    return MemoryEngine(), "memory:"


def _rocksdb(storage: Storage, clock: Clock) -> tuple[Engine, str]:
    path = _path(storage)
    from tenure.storage.engines.rocksdb import RocksEngine

    engine = RocksEngine(
        path,
        # RocksDB always writes a log: also at "memory" the store survives a killed process.
        durability="disk" if storage.promised == "disk" else "os",
        cache_capacity=storage.rocksdb.cache_capacity,
        mode=storage.rocksdb.mode,
        sync_interval=storage.rocksdb.sync_interval,
        boot_id=clock.boot_id(),
        listens=storage.rocksdb.listen,
    )
    return engine, f"rocksdb:{path}"


def _lmdb(storage: Storage, clock: Clock) -> tuple[Engine, str]:
    path = _path(storage)
    from tenure.storage.engines.lmdb import LmdbEngine

    engine = LmdbEngine(
        path,
        map_size=storage.lmdb.map_size,
        boot_id=clock.boot_id(),
        durability="disk",  # the only level at which LMDB survives a power cut undamaged
    )
    return engine, f"lmdb:{path}"


def _foundationdb(storage: Storage, clock: Clock) -> tuple[Engine, str]:
    with needs("foundationdb", "FoundationDB stores"):
        from tenure.storage.engines.foundationdb.binding import load

        fdb = load()
    from tenure.storage.engines.foundationdb import FoundationEngine

    wanted = storage.foundationdb
    cluster_file = None if storage.path is None else str(expand(storage.path))
    engine = FoundationEngine(
        fdb,
        fdb.open(cluster_file),
        tuple(wanted.directory.split("/")),
        grace=wanted.grace,
        lease_versions=wanted.lease_versions,
        retry_limit=wanted.retry_limit,
        timeout=wanted.timeout,
    )
    return engine, f"foundationdb:{cluster_file or ''}"


_ENGINES: dict[str, Callable[[Storage, Clock], tuple[Engine, str]]] = {
    "memory": _memory,
    "rocksdb": _rocksdb,
    "lmdb": _lmdb,
    "foundationdb": _foundationdb,
}


def _path(storage: Storage) -> str:
    if storage.path is None:
        raise SettingsError(
            f"no store is named: give open a URL ('{storage.engine}:<path>'), or set storage.path ({variable('storage.path')})"
        )
    return str(expand(storage.path))


def _refuse_less(has: Durability, wanted: Durability, url: str) -> None:
    if DURABILITIES.index(has) < DURABILITIES.index(wanted):
        raise OpenError(f"{url} has durability {has!r}, and {wanted!r} was asked for")
