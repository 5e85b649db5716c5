"""Settings: the only reader of the environment and of TOML.

    constructor  >  environment (TENURE_STORAGE_ENGINE, …)  >  tenure.toml  >  the defaults below

A setting has a dotted name (`storage.rocksdb.mode`). In TOML that is a table and a key; in the environment it is
`TENURE_` and the name in capitals with underscores. An unknown name or an invalid value raises SettingsError, which
names the setting, its source, and the nearest known name.

A token belongs to a server: `_bind_token` refuses to send it to a server that another source chose.

docs/settings.md lists all settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta, Struct

from tenure.errors import OpenError, SettingsError, UnknownEngine
from tenure.server_settings import Secret, Server

EngineName = Literal["rocksdb", "lmdb", "memory", "redis", "foundationdb", "http"]
ENGINES: tuple[str, ...] = get_args(EngineName)
#: The durability of each engine if the caller does not choose one.
_DEFAULT_DURABILITY: dict[str, Literal["disk", "os", "memory"]] = {
    "rocksdb": "disk",
    "lmdb": "disk",
    "memory": "memory",
    "redis": "memory",  # the server's own level is accepted, and logged
    "foundationdb": "disk",
    "http": "memory",  # the server's own level is accepted
}

PREFIX = "TENURE_"
CONFIG = "TENURE_CONFIG"
#: Not a setting: the cluster file for the tests of the FoundationDB engine.
TEST_CLUSTER = "TENURE_FDB_CLUSTER_FILE"
DEFAULT_FILE = "tenure.toml"

Size = Annotated[int, Meta(ge=64 * 1024, le=2**46, extra={"size": True})]
"""Bytes: a whole number, or a number with a unit ("64MB"). Units are powers of 1024."""

Seconds = Annotated[float, Meta(gt=0, le=86_400, extra={"seconds": True})]
#: Seconds for which a request is sent again. A server remembers a request for ten minutes: one that is repeated later, by
#: a client that waits for an answer and then goes on trying, could take effect twice.
Repeating = Annotated[float, Meta(gt=0, le=240, extra={"seconds": True})]
#: Seconds; 0 is allowed.
Grace = Annotated[float, Meta(ge=0, le=86_400, extra={"seconds": True})]
BloomCapacity = Annotated[int, Meta(ge=0, le=2**30, extra={"number": True})]
#: An hour to ten years.
Retention = Annotated[float, Meta(ge=3_600, le=10 * 366 * 86_400, extra={"seconds": True})]


class RocksDb(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Bytes of the block cache.
    cache_capacity: Size = 64 * 1024**2
    #: low_space: strong compression and small buffers. high_throughput: light compression and large buffers.
    mode: Literal["low_space", "high_throughput"] = "high_throughput"
    #: At durability `os`: seconds between two syncs of the log. A power cut may lose the writes of that time.
    sync_interval: Seconds = 0.1
    #: Whether the process that owns the store lets other processes in, through a socket in its folder.
    listen: bool = True


class Lmdb(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Size of the map at first, in address space; it grows when needed.
    map_size: Size = 1024**3


class Redis(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: The first part of every key: two stores on one server have two prefixes.
    prefix: Annotated[str, Meta(min_length=1, max_length=64)] = "tenure"
    #: Partitions of each queue created from now on; with more than one, the order of jobs is approximate.
    partitions: Annotated[int, Meta(ge=1, le=64, extra={"number": True})] = 1
    #: Whether all queues created from now on share one slot of a cluster, so that `claim_any` works there.
    one_slot: bool = False
    #: How many replicas must have a write before it is acknowledged (WAIT).
    wait_replicas: Annotated[int, Meta(ge=0, le=16, extra={"number": True})] = 0
    #: Whether the primary must also have written it to disk (WAITAOF).
    wait_aof: bool = False
    #: With `rediss://`: certificates to trust instead of the system's, and our own certificate and key.
    ca_file: Annotated[str, Meta(min_length=1)] | None = None
    cert_file: Annotated[str, Meta(min_length=1)] | None = None
    key_file: Annotated[str, Meta(min_length=1)] | None = None
    #: Seconds after its expiry before a lease is taken over.
    grace: Grace = 0.0
    #: Seconds to wait for an answer; half of them for WAIT.
    timeout: Repeating = 5.0
    #: Seconds for which the client sends a request again before it raises Unavailable.
    patience: Repeating = 15.0
    #: This process's Bloom filters: keys of large jobs it sent, ids that `get` found gone, ids given to `discard`.
    bloom_keys: bool = True
    bloom_ghosts: bool = True
    bloom_cleanup: bool = False
    #: Entries of each filter (0: no filter), its rate of false positives, and seconds until it starts again empty.
    bloom_capacity: BloomCapacity = 100_000
    #: The same for one filter. None: `bloom_capacity`.
    bloom_keys_capacity: BloomCapacity | None = None
    bloom_ghosts_capacity: BloomCapacity | None = None
    bloom_cleanup_capacity: BloomCapacity | None = None
    bloom_rate: Annotated[float, Meta(gt=0, lt=1, extra={"seconds": True})] = 0.01
    bloom_rotation: Seconds = 1800.0

    def with_options(self, options: Mapping[str, str], url: str) -> Redis:
        """Return these settings, changed by the options after a URL's `?`. Raises SettingsError."""
        changes = {
            name: _checked(f"storage.redis.{name}", _SettingValue(value, f"from the URL {url!r}", text=True))
            for name, value in options.items()
        }
        return msgspec.structs.replace(self, **changes)


class FoundationDb(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For `foundationdb:CLUSTER_FILE`."""

    #: The store's directory in the cluster, its names separated by `/`.
    directory: Annotated[str, Meta(min_length=1, max_length=200)] = "tenure"
    #: Seconds after its expiry before a lease is taken over. Must exceed the difference between the hosts' clocks.
    grace: Grace = 30.0
    #: Versions of the cluster that must pass for each second of a lease before it is taken over.
    lease_versions: Annotated[int, Meta(ge=1_000, le=10_000_000, extra={"number": True})] = 1_000_000
    #: How often a transaction is tried, and for how many seconds.
    retry_limit: Annotated[int, Meta(ge=1, le=100_000, extra={"number": True})] = 100
    timeout: Seconds = 10.0


class Http(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For stores behind a server (`http://…`, `https://…`, `http+unix:…`)."""

    #: The token that the client sends.
    token: Secret = Secret()
    #: A file that holds the token. The client reads it again when the server refuses the token.
    token_file: Annotated[str, Meta(min_length=1)] | None = None
    #: The format of requests and answers.
    encoding: Literal["msgpack", "json"] = "msgpack"
    #: Seconds for which the client tries a request; the waiting that the request asks for is added.
    timeout: Repeating = 30.0
    #: Certificates to trust instead of the system's.
    ca_file: Annotated[str, Meta(min_length=1)] | None = None


class Storage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engine: EngineName = "rocksdb"
    #: The store's folder (`~` and variables are expanded), or the server's URL. Not for `memory`.
    path: Annotated[str, Meta(min_length=1)] | None = None
    #: The least that an acknowledged write must survive. None: the engine's default.
    durability: Literal["disk", "os", "memory"] | None = None
    #: How many rows one claim inspects beyond those it returns: expired leases it takes over, jobs it skips.
    inspect_limit: Annotated[int, Meta(ge=1, le=100_000, extra={"number": True})] = 200
    #: How long a store in a folder or in memory keeps its journal, in seconds.
    journal_retention: Retention = 7 * 86_400.0
    rocksdb: RocksDb = RocksDb()
    lmdb: Lmdb = Lmdb()
    redis: Redis = Redis()
    foundationdb: FoundationDb = FoundationDb()
    http: Http = Http()

    @property
    def promised(self) -> Literal["disk", "os", "memory"]:
        """The chosen durability, or the engine's default."""
        return self.durability or _DEFAULT_DURABILITY[self.engine]


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    #: Seconds between two passes of the sweeper.
    interval: Seconds = 1.0


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For the command line. As a library, Tenure leaves logging to the program that uses it."""

    level: Literal["debug", "info", "warning", "error"] = "warning"
    #: auto: lines for people on a terminal, JSON otherwise.
    format: Literal["auto", "json", "console"] = "auto"


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    storage: Storage = Storage()
    sweep: Sweep = Sweep()
    log: Log = Log()
    server: Server = Server()

    @classmethod
    def load(
        cls,
        url: str | None = None,
        config: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> Settings:
        """Collect settings from the call, the environment, the TOML file and the defaults; the first source that has
        one wins.

        `overrides` are the call's settings by dotted name; None means not given. `url` sets engine and path. `environ`
        replaces the process's environment, in tests. Raises SettingsError, UnknownEngine or OpenError.
        """
        environ = os.environ if environ is None else environ
        file = _from_file(config, environ)
        given = file | _from_environment(environ) | _from_call(url, overrides or {})
        _bind_token(given, file)
        tree: dict[str, Any] = {}
        for name, item in given.items():
            table = tree
            *tables, key = name.split(".")
            for step in tables:
                table = table.setdefault(step, {})
            table[key] = _checked(name, item)
        return msgspec.convert(tree, cls)


class _Origin(IntEnum):
    """The source of a setting; a greater one wins."""

    FOUND_FILE = 1  # the working directory's tenure.toml, which the caller did not name
    NAMED_FILE = 2
    ENVIRONMENT = 3
    CALL = 4


class _SettingValue(NamedTuple):
    value: object
    #: The source, for an error message: "from the environment variable TENURE_LOG_LEVEL", "in tenure.toml".
    source: str
    #: Whether the value is text that needs conversion, as in the environment.
    text: bool = False
    origin: _Origin = _Origin.CALL


def _walk(struct: type[Struct], prefix: str = "") -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            yield from _walk(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


_FIELDS = dict(_walk(Settings))


def _default(name: str) -> object:
    value: object = Settings()
    for step in name.split("."):
        value = getattr(value, step)
    return value


#: Every setting by its dotted name, with its default.
SETTINGS: dict[str, object] = {name: _default(name) for name in _FIELDS}

_TABLES = {name.rsplit(".", depth)[0] for name in SETTINGS for depth in range(1, name.count(".") + 1)}


def variable(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return PREFIX + name.upper().replace(".", "_")


_VARIABLES = {variable(name): name for name in SETTINGS}


# ── the sources ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_call(url: str | None, overrides: Mapping[str, object]) -> dict[str, _SettingValue]:
    given: dict[str, _SettingValue] = {}
    for name, value in overrides.items():
        if name not in _FIELDS:
            raise SettingsError(f"unknown setting {name!r} (given to the call){_nearest(name, _FIELDS)}")
        if value is not None:
            given[name] = _SettingValue(value, "given to the call")
    if url is not None:
        engine, path = parse_url(url)
        source = f"from the URL {without_password(str(url))!r}"
        given["storage.engine"] = _SettingValue(engine, source)
        given["storage.path"] = _SettingValue(path, source)
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, _SettingValue]:
    given: dict[str, _SettingValue] = {}
    for key in sorted(environ):
        if not key.startswith(PREFIX) or key in (CONFIG, TEST_CLUSTER):
            continue
        name = _VARIABLES.get(key)
        if name is None:
            raise SettingsError(f"unknown environment variable {key}{_nearest(key, (*_VARIABLES, CONFIG))}")
        if environ[key]:  # an empty variable is how many tools say "not set"
            source = f"from the environment variable {key}"
            given[name] = _SettingValue(environ[key], source, text=True, origin=_Origin.ENVIRONMENT)
    return given


def _from_file(config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> dict[str, _SettingValue]:
    if config is not None:
        file, named_by = Path(config).expanduser(), "config="
    elif environ.get(CONFIG):
        file, named_by = Path(environ[CONFIG]).expanduser(), CONFIG
    else:
        file, named_by = Path(DEFAULT_FILE), ""
        if not file.exists():
            return {}
    import tomllib

    try:
        text = file.read_bytes().decode()
        tree = tomllib.loads(text)
    except OSError as exc:
        named = f" (named by {named_by})" if named_by else ""
        raise SettingsError(f"the settings file {file}{named} cannot be read: {exc.strerror or exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the settings file {file} is not TOML: {exc}") from exc
    origin = _Origin.NAMED_FILE if named_by else _Origin.FOUND_FILE
    return {name: _SettingValue(value, f"in {file}", origin=origin) for name, value in _flattened(tree, file)}


def _flattened(tree: Mapping[str, object], file: Path, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        name = prefix + key
        if name in _TABLES:
            if not isinstance(value, dict):
                raise SettingsError(f"{name} in {file} is a table of settings, not {value!r}")
            yield from _flattened(value, file, name + ".")
        elif name in _FIELDS:
            yield name, value
        else:
            raise SettingsError(
                f"unknown setting {name!r} in {file}{_nearest(name, _TABLES if isinstance(value, dict) else _FIELDS)}"
            )


def _bind_token(given: dict[str, _SettingValue], file: Mapping[str, _SettingValue]) -> None:
    """Keep only the nearest token in `given`, and refuse it if another source chose the server. Raises SettingsError.

    - A tenure.toml found in the working directory must not choose the server that receives a token from the
      environment or the call: anyone who can write to that folder would get the token.
    - The token of a settings file that names its server goes to that server only.
    """
    tokens = [name for name in _TOKENS if name in given]
    nearest = max((given[name].origin for name in tokens), default=None)
    for name in tokens:
        if given[name].origin != nearest:
            del given[name]
    server = given.get("storage.path")
    token = next((given[name] for name in tokens if name in given and given[name].value), None)
    if token is None or server is None or not _is_http(server.value):
        return
    if server.origin == _Origin.FOUND_FILE != token.origin:
        raise SettingsError(
            f"{server.value} ({server.source}) would receive the token that is {token.source}. Name the server in the"
            f" call (--store), by {variable('storage.path')}, or in a file given as config= or {CONFIG};"
            " or put the token into the same file"
        )
    own = file.get("storage.path")
    if token.origin in (_Origin.FOUND_FILE, _Origin.NAMED_FILE) and own and not _same_server(own.value, server.value):
        raise SettingsError(
            f"the token {token.source} is for {own.value}, and the store is {server.value} ({server.source}): give that"
            f" server's token in the call (token=) or by {variable('storage.http.token')}"
        )


_TOKENS = ("storage.http.token", "storage.http.token_file")


def _is_http(path: object) -> bool:
    return isinstance(path, str) and path.lower().startswith(("http:", "https:", "http+unix:"))


def _same_server(one: object, other: object) -> bool:
    return str(one).rstrip("/").lower() == str(other).rstrip("/").lower()


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    # Compare without the common prefix: TENURE_ or the table's name would make any two names look alike.
    table = PREFIX if name.startswith(PREFIX) else name.rpartition(".")[0] + "."
    beside = {one[len(table) :]: one for one in known if one.startswith(table)}
    if beside:
        meant = [beside[one] for one in difflib.get_close_matches(name[len(table) :], beside, n=1, cutoff=0.5)]
    else:
        meant = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {meant[0]!r}?" if meant else f". Known are {', '.join(sorted(known))}"


# ── the values ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _checked(name: str, given: _SettingValue) -> object:
    value = given.value
    kind = _FIELDS[name].type
    extra = _extra(kind)
    if kind is Secret:
        return _secret(name, given)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif "seconds" in extra and isinstance(value, timedelta):
        value = value.total_seconds()
    elif "size" in extra and isinstance(value, str):
        value = _bytes_of(value)
    # Convert text only to a number or a switch: a path named "null" stays a path.
    lax = given.text and (kind is bool or "seconds" in extra or "number" in extra)
    try:
        return msgspec.convert(value, kind, strict=not lax)
    except msgspec.ValidationError as exc:
        reason = str(exc).replace("`", "").replace("Expected", "expected")
        if choices := _choices(kind):
            reason = f"expected one of {', '.join(choices)}"
        elif kind is bool:
            reason = "expected true or false"
        elif "size" in extra and "expected int, got" in reason:
            reason = 'expected bytes as a whole number, or with a unit as in "64MB"'
        raise SettingsError(f"{name} = {given.value!r} ({given.source}): {reason}") from None


def _secret(name: str, given: _SettingValue) -> Secret:
    if isinstance(given.value, Secret):
        return given.value
    if not isinstance(given.value, str):
        raise SettingsError(f"{name} ({given.source}): expected text")  # the value stays out of the message
    return Secret(given.value)


_UNITS = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def _bytes_of(text: str) -> int | str:
    """Return the bytes of "64MB", "64 MiB" or "64m"; text that is no size is returned unchanged, and the caller refuses
    it.
    """
    match = re.fullmatch(r"\s*(\d{1,15})\s*(?:([KMGT])(?:i?B)?|B)?\s*", text, re.IGNORECASE)
    return int(match[1]) * _UNITS[(match[2] or "").upper()] if match else text


def _extra(kind: Any) -> Mapping[str, object]:
    """Return the `extra` of a field's type; for `Annotated[…] | None`, that of its first part."""
    if not hasattr(kind, "__metadata__"):
        kind = next((part for part in get_args(kind) if hasattr(part, "__metadata__")), kind)
    meta = getattr(kind, "__metadata__", ())
    return {key: value for part in meta for key, value in (getattr(part, "extra", None) or {}).items()}


def _choices(kind: Any) -> list[str]:
    if isinstance(kind, type) or not get_args(kind):
        return []
    return [choice for part in (kind, *get_args(kind)) for choice in get_args(part) if isinstance(choice, str)]


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_REDIS = re.compile(r"(redis|valkey)s?(\+(unix|cluster|sentinel))?\Z")
#: How a URL of each engine is written; help texts and documents show these.
URL_FORMS = {
    "rocksdb": "rocksdb:PATH",
    "lmdb": "lmdb:PATH",
    "memory": "memory:",
    "redis": "redis://HOST",
    "foundationdb": "foundationdb:CLUSTER_FILE",
    "http": "http://HOST:PORT",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


def without_password(url: str) -> str:
    """Return the URL for people, logs and metrics, with the password hidden.

    Everything between `://` and the last `@` is hidden except the user's name, because a password may itself contain
    `@`, `/`, `?` or `:`. A URL without a host (`redis+unix:///path`) has no login.
    """
    scheme, found, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if not found or not at or rest.startswith("/"):
        return url
    user, colon, _ = login.partition(":")
    return f"{scheme}://{user if colon else ''}{':' if colon else ''}***@{place}"


def parse_url(url: object) -> tuple[str, str | None]:
    """Split a store's URL (`rocksdb:./data`, `rocksdb:///var/data`, `lmdb:~/data`, `memory:`) into engine and path.

    Raises UnknownEngine or OpenError.
    """
    if isinstance(url, os.PathLike):
        url = os.fspath(url)
    if not isinstance(url, str):
        raise UnknownEngine(f"{url!r} is not a store's URL: write {_known()}")
    match = _SCHEME.fullmatch(url)
    shown = without_password(url)
    if match is None:
        raise UnknownEngine(f"{shown!r} does not say which engine: {_meant(shown)}")
    engine, rest = match[1].lower(), match[2]
    if _REDIS.match(engine):
        return "redis", url  # the redis backend parses the rest
    if engine in ("http", "https", "http+unix"):
        return "http", url
    if engine not in ENGINES:
        raise UnknownEngine(f"{shown!r}: no engine is called {engine!r}. There are {_known()}")
    return engine, _path_of(url, engine, rest)


def _path_of(url: str, engine: str, rest: str) -> str | None:
    if engine == "memory":
        if rest.strip("/"):
            raise OpenError(f"{url!r}: a memory store has no path: write 'memory:'")
        return None
    if engine == "foundationdb" and not rest:
        return None  # the client's own default: FDB_CLUSTER_FILE, ./fdb.cluster, /etc/foundationdb/fdb.cluster
    if "?" in rest:
        raise OpenError(f"{url!r}: a URL takes no options: give them to the call, or as settings")
    path = rest
    if rest.startswith("//"):
        path = rest[2:]
        if path and not path.startswith("/"):
            raise OpenError(
                f"{url!r} names a host: write '{engine}:{path}', or '{engine}:///{path}' for a path from the root"
            )
    if not path:
        raise OpenError(f"{url!r} has no path: write '{engine}:PATH'")
    return path


def _known() -> str:
    return ", ".join(f"'{form}'" for form in URL_FORMS.values())


def _meant(url: str) -> str:
    bare = url.strip(":")
    if bare in URL_FORMS:
        return f"write '{URL_FORMS[bare]}'"
    return f"write 'rocksdb:{url}'" if url else f"write {_known()}"
