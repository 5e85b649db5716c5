"""Settings: the only reader of the environment and of TOML.

    constructor  >  environment (TENURE_STORAGE_ENGINE, …)  >  tenure.toml  >  the defaults below

A setting is known by its dotted name (`storage.rocksdb.mode`): a table and key in TOML, `TENURE_` and its words in capitals
in the environment. Nothing unknown is passed over: a name that is none, or a value that cannot be, is a
SettingsError which says which, where it came from, and what was probably meant.

docs/settings.md lists them all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta, Struct

from tenure.errors import OpenError, SettingsError, UnknownEngine
from tenure.server_settings import Secret, Server

EngineName = Literal["rocksdb", "lmdb", "memory", "redis", "http"]
ENGINES: tuple[str, ...] = get_args(EngineName)
#: Planned, and asked for by name already: better told apart from a misspelling.
_LATER = {"foundationdb", "fdb"}

#: What a store of that engine promises when nothing is asked for.
_DEFAULT_DURABILITY: dict[str, Literal["disk", "os", "memory"]] = {
    "rocksdb": "disk",
    "lmdb": "disk",
    "memory": "memory",
    "redis": "memory",  # what the server has is taken, and told of
    "http": "memory",  # whatever the server has will do
}

PREFIX = "TENURE_"
CONFIG = "TENURE_CONFIG"
DEFAULT_FILE = "tenure.toml"

Size = Annotated[int, Meta(ge=64 * 1024, le=2**46, extra={"size": True})]
"""Bytes: a whole number, or one with a unit ("64MB"), of which each is 1024 of the one before."""

Seconds = Annotated[float, Meta(gt=0, le=86_400, extra={"seconds": True})]
#: An hour to ten years.
Retention = Annotated[float, Meta(ge=3_600, le=10 * 366 * 86_400, extra={"seconds": True})]


class RocksDb(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Blocks kept in memory for reading.
    cache_capacity: Size = 64 * 1024**2
    #: Stronger compression and small buffers, or speed.
    mode: Literal["low_space", "high_throughput"] = "high_throughput"
    #: At durability `os`: how often the log is synced, which bounds what a power cut takes.
    sync_interval: Seconds = 0.1
    #: Whether the process that has the store open lets others in, by a socket in its folder.
    listen: bool = True


class Lmdb(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Address space to begin with; it grows by itself.
    map_size: Size = 1024**3


class Redis(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: What every key begins with: two stores of one server have two prefixes.
    prefix: Annotated[str, Meta(min_length=1, max_length=64)] = "tenure"
    #: Into how many partitions queues are split that are made from now on; with more than one, order is approximate.
    partitions: Annotated[int, Meta(ge=1, le=64, extra={"number": True})] = 1
    #: How many replicas must have a write before it is acknowledged (WAIT).
    wait_replicas: Annotated[int, Meta(ge=0, le=16, extra={"number": True})] = 0
    #: Whether the primary's disk must have it too (WAITAOF).
    wait_aof: bool = False
    #: With `rediss://`: certificates to trust instead of the system's, and who we are, where the server wants to know.
    ca_file: Annotated[str, Meta(min_length=1)] | None = None
    cert_file: Annotated[str, Meta(min_length=1)] | None = None
    key_file: Annotated[str, Meta(min_length=1)] | None = None
    #: For an answer, and for WAIT's.
    timeout: Seconds = 5.0
    #: For how long a request is sent again before it is given up as Unavailable.
    patience: Seconds = 15.0
    #: Bloom filters of this process: keys of large jobs it sent, ids it saw gone before it looks, or removes, again.
    bloom_keys: bool = True
    bloom_ghosts: bool = True
    bloom_cleanup: bool = False
    #: Of each: how many it holds (0: no filters), how often it may be wrong, when it turns over.
    bloom_capacity: Annotated[int, Meta(ge=0, le=2**30, extra={"number": True})] = 100_000
    bloom_rate: Annotated[float, Meta(gt=0, lt=1, extra={"seconds": True})] = 0.01
    bloom_rotation: Seconds = 1800.0

    def with_options(self, options: Mapping[str, str], url: str) -> Redis:
        """These, with what a URL says after its `?`."""
        said = {name: _checked(f"storage.redis.{name}", _Given(value, f"from the URL {url!r}", text=True))
                for name, value in options.items()}  # fmt: skip
        return msgspec.structs.replace(self, **said)


class Http(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For stores behind a server (`http://…`, `https://…`, `http+unix:…`)."""

    #: Who asks: a token of the server's.
    token: Secret = Secret()
    #: The same, out of a file, which is read again when the server no longer takes it.
    token_file: Annotated[str, Meta(min_length=1)] | None = None
    #: How requests and answers are written.
    encoding: Literal["msgpack", "json"] = "msgpack"
    #: How long a request is tried for before it is given up, besides the waiting it asks for.
    timeout: Seconds = 30.0
    #: Certificates to trust instead of the system's.
    ca_file: Annotated[str, Meta(min_length=1)] | None = None


class Storage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engine: EngineName = "rocksdb"
    #: A folder of its own; `~` and variables are expanded. Not for `memory`.
    path: Annotated[str, Meta(min_length=1)] | None = None
    #: The least an acknowledged write survives. None: the engine's own, `disk` for those that have one.
    durability: Literal["disk", "os", "memory"] | None = None
    #: How long a store in a folder or in memory keeps its journal, in seconds.
    journal_retention: Retention = 7 * 86_400.0
    rocksdb: RocksDb = RocksDb()
    lmdb: Lmdb = Lmdb()
    redis: Redis = Redis()
    http: Http = Http()

    @property
    def promised(self) -> Literal["disk", "os", "memory"]:
        """The durability asked for, or the engine's own."""
        return self.durability or _DEFAULT_DURABILITY[self.engine]


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    #: Between two looks at what is due.
    interval: Seconds = 1.0


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For the command line. A library's logs are configured by the program that uses it."""

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
        """Gather settings from everywhere, the nearest source first.

        `overrides` are the constructor's, by dotted name; None among them means: not said. A `url` says engine and
        path. `environ` stands in for the process's environment, in tests.
        """
        environ = os.environ if environ is None else environ
        given: dict[str, _Given] = {}
        for source in (_from_file(config, environ), _from_environment(environ), _from_call(url, overrides or {})):
            given.update(source)
        tree: dict[str, Any] = {}
        for name, item in given.items():
            table = tree
            *tables, key = name.split(".")
            for step in tables:
                table = table.setdefault(step, {})
            table[key] = _checked(name, item)
        return msgspec.convert(tree, cls)


class _Given(NamedTuple):
    value: object
    #: In the user's words, for an error: "TENURE_LOG_LEVEL", "log.level in ./tenure.toml".
    source: str
    #: Whether it is text that stands for a value, as in the environment.
    text: bool = False


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
    """The environment's name for a setting."""
    return PREFIX + name.upper().replace(".", "_")


_VARIABLES = {variable(name): name for name in SETTINGS}


# ── the sources ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_call(url: str | None, overrides: Mapping[str, object]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for name, value in overrides.items():
        if name not in _FIELDS:
            raise SettingsError(f"unknown setting {name!r} (given to the call){_nearest(name, _FIELDS)}")
        if value is not None:
            given[name] = _Given(value, "given to the call")
    if url is not None:
        engine, path = parse_url(url)
        given["storage.engine"] = _Given(engine, f"from the URL {url!r}")
        given["storage.path"] = _Given(path, f"from the URL {url!r}")
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for key in sorted(environ):
        if not key.startswith(PREFIX) or key == CONFIG:
            continue
        name = _VARIABLES.get(key)
        if name is None:
            raise SettingsError(f"unknown environment variable {key}{_nearest(key, (*_VARIABLES, CONFIG))}")
        if environ[key]:  # an empty variable is how many tools say "not set"
            given[name] = _Given(environ[key], f"from the environment variable {key}", text=True)
    return given


def _from_file(config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> dict[str, _Given]:
    if config is not None:
        file, asked = Path(config).expanduser(), "config="
    elif environ.get(CONFIG):
        file, asked = Path(environ[CONFIG]).expanduser(), CONFIG
    else:
        file, asked = Path(DEFAULT_FILE), ""
        if not file.exists():
            return {}
    import tomllib

    try:
        text = file.read_bytes().decode()
        tree = tomllib.loads(text)
    except OSError as exc:
        named = f" (named by {asked})" if asked else ""
        raise SettingsError(f"the settings file {file}{named} cannot be read: {exc.strerror or exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the settings file {file} is not TOML: {exc}") from exc
    return dict(_flattened(tree, file))


def _flattened(tree: Mapping[str, object], file: Path, prefix: str = "") -> Iterator[tuple[str, _Given]]:
    for key, value in tree.items():
        name = prefix + key
        if name in _TABLES:
            if not isinstance(value, dict):
                raise SettingsError(f"{name} in {file} is a table of settings, not {value!r}")
            yield from _flattened(value, file, name + ".")
        elif name in _FIELDS:
            yield name, _Given(value, f"in {file}")
        else:
            raise SettingsError(
                f"unknown setting {name!r} in {file}{_nearest(name, _TABLES if isinstance(value, dict) else _FIELDS)}"
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    # Compared by what sets them apart: a variable's prefix, or the table they are in, would make any two of them alike.
    table = PREFIX if name.startswith(PREFIX) else name.rpartition(".")[0] + "."
    beside = {one[len(table) :]: one for one in known if one.startswith(table)}
    if beside:
        meant = [beside[one] for one in difflib.get_close_matches(name[len(table) :], beside, n=1, cutoff=0.5)]
    else:
        meant = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {meant[0]!r}?" if meant else f". Known are {', '.join(sorted(known))}"


# ── the values ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _checked(name: str, given: _Given) -> object:
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
    # Text stands for a number or a switch; a path of the name "null" stays one.
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


def _secret(name: str, given: _Given) -> Secret:
    if isinstance(given.value, Secret):
        return given.value
    if not isinstance(given.value, str):
        raise SettingsError(f"{name} ({given.source}): expected text")  # and not a word about what it is
    return Secret(given.value)


_UNITS = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def _bytes_of(text: str) -> int | str:
    """ "64MB", "64 MiB" and "64m" are one size; what is none comes back as it is, and is refused with its name."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*(?:([KMGT])(?:i?B)?|B)?\s*", text, re.IGNORECASE)
    return int(match[1]) * _UNITS[(match[2] or "").upper()] if match else text


def _extra(kind: Any) -> Mapping[str, object]:
    meta = get_args(kind)[1:] if hasattr(kind, "__metadata__") else ()
    return {key: value for part in meta for key, value in (getattr(part, "extra", None) or {}).items()}


def _choices(kind: Any) -> list[str]:
    if isinstance(kind, type) or not get_args(kind):
        return []
    return [choice for part in (kind, *get_args(kind)) for choice in get_args(part) if isinstance(choice, str)]


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_REDIS = re.compile(r"(redis|valkey)s?(\+(unix|cluster|sentinel))?\Z")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


def parse_url(url: object) -> tuple[str, str | None]:
    """Engine and path of `rocksdb:./data`, `rocksdb:///var/data`, `lmdb:~/data`, `memory:`."""
    if isinstance(url, os.PathLike):
        url = os.fspath(url)
    if not isinstance(url, str):
        raise UnknownEngine(f"{url!r} is not a store's URL: write {_known()}")
    match = _SCHEME.fullmatch(url)
    if match is None:
        raise UnknownEngine(f"{url!r} does not say which engine: {_meant(url)}")
    engine, rest = match[1].lower(), match[2]
    if _REDIS.match(engine):
        return "redis", url  # who and where, for its own reader
    if engine in ("http", "https", "http+unix"):
        return "http", url
    if engine in _LATER:
        raise UnknownEngine(f"{url!r}: this release does not have {engine} yet. It has {_known()}")
    if engine not in ENGINES:
        raise UnknownEngine(f"{url!r}: no engine is called {engine!r}. There are {_known()}")
    return engine, _path_of(url, engine, rest)


def _path_of(url: str, engine: str, rest: str) -> str | None:
    if engine == "memory":
        if rest.strip("/"):
            raise OpenError(f"{url!r}: a memory store has no path: write 'memory:'")
        return None
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
        raise OpenError(f"{url!r} has no path: write '{engine}:<path>'")
    return path


def _known() -> str:
    forms = {"memory": "'memory:'", "redis": "'redis://<host>'", "http": "'http://<host>:<port>'"}
    return ", ".join(forms.get(engine, f"'{engine}:<path>'") for engine in ENGINES)


def _meant(url: str) -> str:
    bare = url.strip(":")
    if bare == "memory":
        return "write 'memory:'"
    if bare in ENGINES:
        return f"write '{bare}:<path>'"
    return f"write 'rocksdb:{url}'" if url else f"write {_known()}"
