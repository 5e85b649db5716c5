"""Open a Redis store: check the server's requirements before anything else starts."""

from __future__ import annotations

import os
import re
from typing import Any

import redis

from tenure.backends.redis.address import parse
from tenure.backends.redis.backend import RedisBackend
from tenure.backends.redis.commands import Commands
from tenure.backends.redis.core import INSPECT_LIMIT, Core
from tenure.backends.redis.filters import Filters, RotatingFilter
from tenure.backends.redis.produce import ATOMIC_BYTES
from tenure.backends.redis.shards import MAX_PARTITIONS
from tenure.backends.redis.topology import topology
from tenure.clock import Clock
from tenure.errors import FormatError, OpenError, SettingsError, StoreError, TenureError, Unavailable
from tenure.settings import Redis as RedisSettings
from tenure.storage.engine import Durability, Traits

FORMAT = 1
_OLDEST = {"valkey": (8, 0), "redis": (7, 0)}
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


def open_redis(
    url: str, settings: RedisSettings, clock: Clock, inspect_limit: int = INSPECT_LIMIT
) -> tuple[RedisBackend, list[str]]:
    """Return the backend, and remarks for its user. `inspect_limit`: see `storage.inspect_limit`."""
    address = parse(url)
    chosen = settings.with_options(address.options, address.shown)
    if not _PREFIX.match(chosen.prefix):
        raise SettingsError(f"storage.redis.prefix = {chosen.prefix!r}: 1 to 64 of letters, digits, '.', '_' and '-'")
    if chosen.one_slot and chosen.partitions > 1:
        raise SettingsError(
            "storage.redis.one_slot puts a queue into one slot, and storage.redis.partitions into several"
        )
    remarks: list[str] = []
    try:
        commands = Commands(
            topology(address, chosen.timeout, _tls(chosen, address.tls)),
            patience=chosen.patience,
            wait_replicas=chosen.wait_replicas,
            wait_aof=chosen.wait_aof,
            wait_timeout=chosen.timeout / 2,  # the answer comes before the socket gives up
        )
    except redis.exceptions.BusyLoadingError as exc:
        raise Unavailable(f"{address.shown}: the server is loading its data: try again in a while") from exc
    except (redis.RedisError, OSError) as exc:
        raise OpenError(f"{address.shown}: {exc}") from exc
    try:
        durability = _examine(commands, remarks)
        cluster = _in_cluster(commands)
        refused = commands.prepare(not cluster)
        if refused is not None:
            remarks.append(f"the server takes no functions from us, and is sent scripts instead: {refused}")
        core = Core(
            commands, chosen.prefix, chosen.partitions, clock, inspect_limit, round(1000 * chosen.grace), chosen.one_slot
        )  # fmt: skip
        _claim_format(core, address.shown)
        if cluster and chosen.one_slot:
            remarks += _elsewhere(core)
        core.filters = _filters(chosen, clock)
    except (Unavailable, OpenError) as exc:
        commands.close()
        if address.shown in str(exc):
            raise
        if isinstance(exc.__cause__, redis.exceptions.BusyLoadingError):
            raise Unavailable(f"{address.shown}: {exc}") from exc
        raise OpenError(f"{address.shown}: {exc}") from exc
    except TenureError:
        commands.close()
        raise
    traits = Traits(
        scope="cluster",
        order="strict" if chosen.partitions == 1 else "approximate",
        snapshot="queue",
        durability=durability,
        atomic_bytes=ATOMIC_BYTES,
        key_bytes=512 * 1024,
        value_bytes=ATOMIC_BYTES,
        journal="queue",
        quotas=False,
        any_queue=not cluster or chosen.one_slot,
        flows="queue" if chosen.partitions == 1 else "partition",
        grace_ms=round(1000 * chosen.grace),
    )
    return RedisBackend(core, address.shown, traits), remarks


def _tls(chosen: RedisSettings, wanted: bool) -> dict[str, Any]:
    """Return the driver's TLS options. Raises SettingsError naming an unreadable file, before a handshake fails."""
    if not wanted:
        return {}
    files = {"ssl_ca_certs": "ca_file", "ssl_certfile": "cert_file", "ssl_keyfile": "key_file"}
    for name in files.values():
        path = getattr(chosen, name)
        if path is not None and not os.access(path, os.R_OK):
            raise SettingsError(f"storage.redis.{name} = {path!r}: there is no such file, or it may not be read")
    return {"ssl": True} | {option: getattr(chosen, name) for option, name in files.items()}


def _filters(chosen: RedisSettings, clock: Clock) -> Filters:
    wanted = (
        (chosen.bloom_keys, chosen.bloom_keys_capacity),
        (chosen.bloom_ghosts, chosen.bloom_ghosts_capacity),
        (chosen.bloom_cleanup, chosen.bloom_cleanup_capacity),
    )
    made: list[RotatingFilter | None] = []
    for on, own in wanted:
        capacity = chosen.bloom_capacity if own is None else own
        made.append(
            RotatingFilter(clock, capacity, chosen.bloom_rate, chosen.bloom_rotation) if on and capacity else None
        )
    return Filters(*made)


def _examine(commands: Commands, remarks: list[str]) -> Durability:
    """Return the lowest durability of the servers. Raises OpenError if one of them cannot be used."""
    levels: list[Durability] = []
    for info in commands.on_primaries("INFO", "server"):
        _check_version(_text(info))
    for config in _configs(commands, remarks):
        policy = config.get("maxmemory-policy", "noeviction")
        if policy != "noeviction":
            raise OpenError(
                f"the server's maxmemory-policy is {policy!r}: it would throw jobs away when memory runs short. "
                "Set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
            )
        if config.get("appendonly", "no") != "yes":
            levels.append("memory")
        else:
            levels.append("disk" if config.get("appendfsync") == "always" else "os")
    least: Durability = "memory" if "memory" in levels else "os" if "os" in levels else "disk"
    if least == "memory":
        remarks.append("the server keeps no append-only file: a restart loses what was written since its last snapshot")
    return least


def _in_cluster(commands: Commands) -> bool:
    """Whether the servers form a cluster, also one of a single node: a step then reaches the keys of one slot."""
    return any("cluster_enabled:1" in _text(info) for info in commands.on_primaries("INFO", "cluster"))


def _elsewhere(core: Core) -> list[str]:
    others = [str(queue.name) for queue in core.shards.queues() if not queue.in_registry_slot]
    if not others:
        return []
    return [f"claim_any does not serve {len(others)} queues that were created without one_slot, such as {others[0]}"]


def _configs(commands: Commands, remarks: list[str]) -> list[dict[str, str]]:
    try:
        found = commands.on_primaries("CONFIG", "GET", "maxmemory-policy", "appendonly", "appendfsync")
    except StoreError as exc:
        if not isinstance(exc.__cause__, redis.ResponseError):
            raise
        remarks.append(
            f"the server does not show its settings, so appendfsync is assumed to be everysec: {exc.__cause__}"
        )
    else:
        return [_pairs(raw) for raw in found]
    configs = []
    for server, memory in zip(
        commands.on_primaries("INFO", "persistence"), commands.on_primaries("INFO", "memory"), strict=True
    ):
        info = dict(line.split(":", 1) for line in f"{_text(server)}\n{_text(memory)}".splitlines() if ":" in line)
        configs.append({
            "appendonly": "yes" if info.get("aof_enabled") == "1" else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": info.get("maxmemory_policy", "noeviction"),
        })  # fmt: skip
    return configs


def _check_version(info: str) -> None:
    found = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    kind = "valkey" if "valkey_version" in found else "redis"
    version = found.get(f"{kind}_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST[kind]:
        wanted = ".".join(str(part) for part in _OLDEST[kind])
        raise OpenError(f"this server is {kind} {version}, and {kind} {wanted} or newer is needed")


def _claim_format(core: Core, shown: str) -> None:
    """Write our format under the prefix, if nothing is there. Raises FormatError for another format."""
    key = core.shards.registry + b":format"
    raw = core.commands.plain(key, "GET", key)
    if raw is None:
        core.commands.plain(key, "SET", key, f"tenure {FORMAT}", "NX")
        core.cursor_seal()  # create the key now: a server that is full later would not accept it
        core.commands.plain(key, "SET", core.shards.registry + b":indexed", "1")  # every queue will have its place
    elif raw not in (f"tenure {FORMAT}".encode(), f"leasehold {FORMAT}".encode()):  # the project's former name
        raise FormatError(f"{shown} holds {raw.decode('utf-8', 'replace')!r}, and this Tenure reads format {FORMAT}")


def _pairs(raw: Any) -> dict[str, str]:
    items = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
    return {_text(key): _text(value) for key, value in items}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


__all__ = ["MAX_PARTITIONS", "open_redis"]
