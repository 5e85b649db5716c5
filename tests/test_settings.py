"""Settings: where they come from, which source wins, and what is said of a wrong one."""

import re
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.errors import OpenError, SettingsError, UnknownEngine
from tenure.queueing.outcomes import REQUEST_MEMORY_MS
from tenure.server_settings import Secret
from tenure.settings import ENGINES, SETTINGS, Settings, parse_url, variable

DOCUMENT = Path(__file__).parent.parent / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def load(**given):
    return Settings.load(**{"environ": {}, **given})


def refused(**given) -> str:
    with pytest.raises(SettingsError) as caught:
        load(**given)
    return str(caught.value)


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_defaults():
    settings = load()
    assert settings == Settings()
    assert settings.storage.engine == "rocksdb"
    assert settings.storage.path is None
    assert settings.storage.promised == "disk"
    assert settings.sweep.enabled
    assert load(url="memory:").storage.promised == "memory"


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings().storage.engine = "lmdb"  # type: ignore[misc]


def test_the_nearest_source_wins(tmp_path):
    file = tmp_path / "other.toml"
    file.write_text('[storage]\nengine = "lmdb"\npath = "file"\n[sweep]\ninterval = 3\n[log]\nlevel = "info"\n')
    environ = {"TENURE_STORAGE_PATH": "environment", "TENURE_SWEEP_INTERVAL": "4", "TENURE_CONFIG": str(file)}
    settings = load(environ=environ, overrides={"sweep.interval": 5, "log.level": None})
    assert settings.storage.engine == "lmdb"  # only the file says it
    assert settings.storage.path == "environment"
    assert settings.sweep.interval == 5.0
    assert settings.log.level == "info"  # None in the call: not said


def test_a_url_wins_over_everything():
    environ = {"TENURE_STORAGE_ENGINE": "lmdb", "TENURE_STORAGE_PATH": "elsewhere"}
    storage = load(url="rocksdb:./here", environ=environ).storage
    assert (storage.engine, storage.path) == ("rocksdb", "./here")
    storage = load(url="memory:", environ=environ).storage
    assert (storage.engine, storage.path) == ("memory", None)


def test_the_process_environment_is_read_unless_another_is_given(monkeypatch):
    monkeypatch.setenv("TENURE_STORAGE_ENGINE", "lmdb")
    assert Settings.load().storage.engine == "lmdb"
    assert load().storage.engine == "rocksdb"


def test_every_setting_has_a_variable():
    environ = {
        "TENURE_STORAGE_ENGINE": "lmdb",
        "TENURE_STORAGE_PATH": "null",
        "TENURE_STORAGE_DURABILITY": "os",
        "TENURE_STORAGE_INSPECT_LIMIT": "50",
        "TENURE_STORAGE_JOURNAL_RETENTION": "7200",
        "TENURE_STORAGE_ROCKSDB_CACHE_CAPACITY": "1GiB",
        "TENURE_STORAGE_ROCKSDB_MODE": "low_space",
        "TENURE_STORAGE_ROCKSDB_SYNC_INTERVAL": "0.25",
        "TENURE_STORAGE_ROCKSDB_LISTEN": "false",
        "TENURE_STORAGE_LMDB_MAP_SIZE": "1048576",
        "TENURE_STORAGE_FOUNDATIONDB_DIRECTORY": "app/queue",
        "TENURE_STORAGE_FOUNDATIONDB_GRACE": "5",
        "TENURE_STORAGE_FOUNDATIONDB_LEASE_VERSIONS": "900000",
        "TENURE_STORAGE_FOUNDATIONDB_RETRY_LIMIT": "7",
        "TENURE_STORAGE_FOUNDATIONDB_TIMEOUT": "3",
        "TENURE_STORAGE_REDIS_PREFIX": "p",
        "TENURE_STORAGE_REDIS_GRACE": "5",
        "TENURE_STORAGE_REDIS_PARTITIONS": "4",
        "TENURE_STORAGE_REDIS_ONE_SLOT": "false",
        "TENURE_STORAGE_REDIS_WAIT_REPLICAS": "1",
        "TENURE_STORAGE_REDIS_WAIT_AOF": "true",
        "TENURE_STORAGE_REDIS_TIMEOUT": "2",
        "TENURE_STORAGE_REDIS_PATIENCE": "3",
        "TENURE_STORAGE_REDIS_CA_FILE": "ca.pem",
        "TENURE_STORAGE_REDIS_CERT_FILE": "cert.pem",
        "TENURE_STORAGE_REDIS_KEY_FILE": "key.pem",
        "TENURE_STORAGE_REDIS_BLOOM_KEYS": "false",
        "TENURE_STORAGE_REDIS_BLOOM_GHOSTS": "false",
        "TENURE_STORAGE_REDIS_BLOOM_CLEANUP": "true",
        "TENURE_STORAGE_REDIS_BLOOM_CAPACITY": "10",
        "TENURE_STORAGE_REDIS_BLOOM_KEYS_CAPACITY": "20",
        "TENURE_STORAGE_REDIS_BLOOM_GHOSTS_CAPACITY": "30",
        "TENURE_STORAGE_REDIS_BLOOM_CLEANUP_CAPACITY": "40",
        "TENURE_STORAGE_REDIS_BLOOM_RATE": "0.1",
        "TENURE_STORAGE_REDIS_BLOOM_ROTATION": "60",
        "TENURE_STORAGE_HTTP_TOKEN_FILE": "t",
        "TENURE_STORAGE_HTTP_TOKEN": "t",
        "TENURE_STORAGE_HTTP_ENCODING": "json",
        "TENURE_STORAGE_HTTP_TIMEOUT": "3",
        "TENURE_STORAGE_HTTP_CA_FILE": "ca.pem",
        "TENURE_SWEEP_ENABLED": "false",
        "TENURE_SWEEP_INTERVAL": "7",
        "TENURE_LOG_LEVEL": "debug",
        "TENURE_LOG_FORMAT": "json",
        "TENURE_SERVER_AUTH_SECRET": "a secret",
        "TENURE_SERVER_AUTH_SECRET_FILE": "s",
        "TENURE_SERVER_AUTH_KEY_FILE": "k",
        "TENURE_SERVER_AUTH_JWKS_URL": "https://id.example/keys",
        "TENURE_SERVER_AUTH_JWKS_MAX_AGE": "60",
        "TENURE_SERVER_AUTH_JWKS_OVERLAP": "60",
        "TENURE_SERVER_AUTH_JWKS_MIN_INTERVAL": "60",
        "TENURE_SERVER_AUTH_ISSUER": "i",
        "TENURE_SERVER_AUTH_AUDIENCE": "a",
        "TENURE_SERVER_AUTH_TENANT_CLAIM": "t",
        "TENURE_SERVER_AUTH_LEEWAY": "0",
        "TENURE_SERVER_LIMITS_BODY": "1MB",
        "TENURE_SERVER_LIMITS_INFLATED": "1MB",
        "TENURE_SERVER_LIMITS_HEAD": "8KB",
        "TENURE_SERVER_LIMITS_BATCH": "100",
        "TENURE_SERVER_LIMITS_CLAIM": "100",
        "TENURE_SERVER_LIMITS_LEASE": "60",
        "TENURE_SERVER_LIMITS_WAIT": "60",
        "TENURE_SERVER_LIMITS_IDLE": "60",
        "TENURE_SERVER_LIMITS_ANSWER": "1MB",
        "TENURE_SERVER_LIMITS_BODIES": "64MB",
        "TENURE_SERVER_LIMITS_FREE": "64MB",
        "TENURE_SERVER_LIMITS_CONNECTIONS": "100",
        "TENURE_SERVER_METRICS_BIND": "localhost:9400",
        "TENURE_SERVER_TLS_CERT": "cert.pem",
        "TENURE_SERVER_TLS_KEY": "key.pem",
        "TENURE_SERVER_LOG_REQUESTS": "false",
        "TENURE_SERVER_OPEN_METRICS": "true",
    }
    assert set(environ) == {variable(name) for name in SETTINGS}
    settings = load(environ=environ)
    assert settings.storage.path == "null"  # a name like any other
    assert settings.storage.durability == settings.storage.promised == "os"
    assert settings.storage.rocksdb.cache_capacity == 1024**3
    assert settings.storage.rocksdb.sync_interval == 0.25
    assert settings.storage.lmdb.map_size == 1024**2
    assert settings.storage.http.timeout == 3
    assert settings.sweep.enabled is False
    assert settings.log.format == "json"


def test_an_empty_variable_is_not_set():
    assert load(environ={"TENURE_STORAGE_ENGINE": "", "TENURE_CONFIG": ""}) == Settings()


def test_tenure_toml_in_the_working_directory(tmp_path):
    (tmp_path / "tenure.toml").write_text('storage.rocksdb.mode = "low_space"\n')
    assert load().storage.rocksdb.mode == "low_space"


def test_a_given_file_goes_before_the_others(tmp_path):
    (tmp_path / "tenure.toml").write_text('log.level = "error"\n')
    (tmp_path / "a.toml").write_text('log.level = "info"\n')
    (tmp_path / "b.toml").write_text('log.level = "debug"\n')
    environ = {"TENURE_CONFIG": "a.toml"}
    assert load(environ=environ).log.level == "info"
    assert load(environ=environ, config=Path("b.toml")).log.level == "debug"


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_variable_is_named_with_the_nearest():
    message = refused(environ={"TENURE_STORAGE_ENGIN": "lmdb"})
    assert "TENURE_STORAGE_ENGIN:" in message
    assert "did you mean 'TENURE_STORAGE_ENGINE'" in message


def test_an_unknown_variable_that_is_near_to_none_lists_all():
    message = refused(environ={"TENURE_XYZZY": ""})
    assert "TENURE_XYZZY" in message
    assert "TENURE_SWEEP_INTERVAL" in message


@pytest.mark.parametrize(
    ("text", "named", "meant"),
    [
        ("[storage]\nengin = 'lmdb'", "'storage.engin'", "'storage.engine'"),
        ("[storage.rocksdb]\ncache = 5", "'storage.rocksdb.cache'", "'storage.rocksdb.cache_capacity'"),
        ("[stroage]\nengine = 'lmdb'", "'stroage'", "'storage'"),
        ("[storage.rocks]\nmode = 'low_space'", "'storage.rocks'", "'storage.rocksdb'"),
    ],
)
def test_an_unknown_key_of_a_file_is_named_with_the_nearest(tmp_path, text, named, meant):
    (tmp_path / "tenure.toml").write_text(text)
    message = refused()
    assert named in message
    assert "tenure.toml" in message
    assert f"did you mean {meant}?" in message


def test_an_unknown_override_is_named():
    assert "'storage.rocksdb.mod' (given to the call): did you mean" in refused(overrides={"storage.rocksdb.mod": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storage.engine", "sqlite"),
        ("storage.durability", "paper"),
        ("storage.path", 5),
        ("storage.path", ""),
        ("storage.rocksdb.cache_capacity", "lots"),
        ("storage.rocksdb.cache_capacity", -1),
        ("storage.rocksdb.cache_capacity", 1.5),
        ("storage.lmdb.map_size", True),
        ("storage.lmdb.map_size", "9" * 15 + "TB"),
        ("storage.rocksdb.sync_interval", 0),
        ("storage.rocksdb.sync_interval", "1"),
        ("sweep.interval", float("nan")),
        ("sweep.interval", float("inf")),
        ("sweep.enabled", 1),
        ("log.level", "loud"),
    ],
)
def test_a_wrong_value_is_named(name, value):
    message = refused(overrides={name: value})
    assert message.startswith(f"{name} = {value!r} (given to the call): expected ")


def test_a_wrong_value_says_where_it_came_from(tmp_path):
    assert "TENURE_SWEEP_ENABLED): expected true or false" in refused(environ={"TENURE_SWEEP_ENABLED": "maybe"})
    (tmp_path / "tenure.toml").write_text("[storage]\nengine = 'oracle'")
    assert refused().endswith("(in tenure.toml): expected one of rocksdb, lmdb, memory, redis, foundationdb, http")


def test_files_that_are_none(tmp_path):
    assert "nowhere.toml (named by config=) cannot be read" in refused(config="nowhere.toml")
    assert "named by TENURE_CONFIG" in refused(environ={"TENURE_CONFIG": str(tmp_path)})
    (tmp_path / "bad.toml").write_text("storage = [")
    assert "bad.toml is not TOML" in refused(config="bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"log.level = '\xff'")
    assert "bad.toml is not TOML" in refused(config="bad.toml")
    (tmp_path / "bad.toml").write_text("storage = 'rocksdb'")
    assert "storage in bad.toml is a table" in refused(config="bad.toml")


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("100000", 100_000),
        ("64KB", 65_536),
        ("64MB", 64 * 1024**2),
        ("64 MiB", 64 * 1024**2),
        ("64m", 64 * 1024**2),
        ("2GB", 2 * 1024**3),
        (70_000, 70_000),
        ("70000B", 70_000),
    ],
)
def test_sizes(text, size):
    assert load(overrides={"storage.lmdb.map_size": text}).storage.lmdb.map_size == size


def test_intervals_may_be_timedelta():
    assert load(overrides={"sweep.interval": timedelta(milliseconds=250)}).sweep.interval == 0.25


def test_paths_may_be_path_objects():
    assert load(overrides={"storage.path": Path("a/b")}).storage.path == "a/b"


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("rocksdb:./data", ("rocksdb", "./data")),
        ("rocksdb:data", ("rocksdb", "data")),
        ("rocksdb:/abs/data", ("rocksdb", "/abs/data")),
        ("rocksdb:///abs/data", ("rocksdb", "/abs/data")),
        ("LMDB:~/data", ("lmdb", "~/data")),
        ("lmdb:$HOME/a b:c", ("lmdb", "$HOME/a b:c")),
        ("memory:", ("memory", None)),
        ("memory://", ("memory", None)),
        ("foundationdb:", ("foundationdb", None)),
        ("foundationdb:/etc/foundationdb/fdb.cluster", ("foundationdb", "/etc/foundationdb/fdb.cluster")),
    ],
)
def test_urls(url, meaning):
    assert parse_url(url) == meaning


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("./data", "'rocksdb:./data'"),
        ("/var/data", "'rocksdb:/var/data'"),
        (Path("data"), "'rocksdb:data'"),
        ("memory", "'memory:'"),
        (":memory:", "'memory:'"),
        ("lmdb", "'lmdb:PATH'"),
        ("", "'rocksdb:PATH'"),
        ("sqlite:./data", "'rocksdb:PATH', 'lmdb:PATH', 'memory:'"),
        (5, "'rocksdb:PATH'"),
    ],
)
def test_other_urls_get_a_hint(url, hint):
    with pytest.raises(UnknownEngine, match=re.escape(hint)):
        parse_url(url)


@pytest.mark.parametrize("url", ["rocksdb:", "rocksdb://", "rocksdb://data/x", "memory:x", "lmdb:./data?map_size=5"])
def test_urls_that_cannot_be_meant(url):
    with pytest.raises(OpenError, match=r"write|give"):
        parse_url(url)


# ── the document ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_document_names_every_setting_its_variable_and_its_default():
    rows = {}
    for line in DOCUMENT.read_text().splitlines():
        if match := re.match(r"\| `([a-z_.]+)` \| `(TENURE_[A-Z_]+)` \| (.+?) \|", line):
            rows[match[1]] = (match[2], match[3])
    assert set(rows) == set(SETTINGS)
    for name, default in SETTINGS.items():
        documented, shown = rows[name]
        assert documented == variable(name)
        if default is not None and default != Secret():
            written = shown.strip("`")
            value = written if isinstance(default, str) or "B" in written else tomllib.loads(f"v = {written}")["v"]
            assert load(overrides={name: value}) == Settings()


def test_a_secret_is_never_shown(tmp_path):
    settings = load(environ={"TENURE_SERVER_AUTH_SECRET": "hunter2"})
    assert settings.server.auth.secret.reveal() == "hunter2"
    assert "hunter2" not in repr(settings)
    (tmp_path / "tenure.toml").write_text("[server.auth]\nsecret = 8273645\n")
    with pytest.raises(SettingsError) as caught:
        load()
    assert "server.auth.secret" in str(caught.value)
    assert "8273645" not in str(caught.value)


def test_the_document_shows_a_url_of_every_engine_and_each_is_taken():
    table = re.search(r"## URLs\n\n((?:\|.*\n)+)", DOCUMENT.read_text())
    assert table is not None
    shown = [url for line in table[1].splitlines()[2:] for url in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert {parse_url(url)[0] for url in shown} == set(ENGINES)
    assert parse_url("redis://host?prefix=mail")[0] == "redis", "only redis: takes options"


def test_the_example_in_the_document_is_valid(tmp_path):
    example = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "tenure.toml").write_text(example[1])
    assert load().storage.rocksdb.cache_capacity == 256 * 1024**2


# ── a token belongs to a server ──────────────────────────────────────────────────────────────────────────────────────

SERVER = "https://queue.example.org"
FILE_WITH_SERVER = f'[storage]\nengine = "http"\npath = "{SERVER}"\n'
TOKEN = "TENURE_STORAGE_HTTP_TOKEN"
TOKEN_FILE = "TENURE_STORAGE_HTTP_TOKEN_FILE"


@pytest.mark.parametrize("name", [TOKEN, TOKEN_FILE])
def test_a_file_that_lies_around_does_not_choose_who_gets_the_token(tmp_path, name):
    (tmp_path / "tenure.toml").write_text(FILE_WITH_SERVER)
    said = refused(environ={name: "abc"})
    assert f"{SERVER} (in tenure.toml) would receive the token" in said
    assert name in said
    assert "'abc'" not in said
    with pytest.raises(SettingsError, match="would receive the token"):
        Settings.load(environ={}, overrides={"storage.http.token": "abc"})


def test_a_token_goes_to_the_server_that_its_own_source_or_a_nearer_one_names(tmp_path):
    file = tmp_path / "named.toml"
    file.write_text(FILE_WITH_SERVER)
    for given in (
        {"url": SERVER, "environ": {TOKEN: "abc"}},
        {"environ": {TOKEN: "abc", "TENURE_STORAGE_ENGINE": "http", "TENURE_STORAGE_PATH": SERVER}},
        {"environ": {TOKEN: "abc"}, "config": file},
        {"environ": {TOKEN: "abc", "TENURE_CONFIG": str(file)}},
        {"environ": {TOKEN: "abc"}, "url": "rocksdb:./data"},
    ):
        assert load(**given).storage.http.token == Secret("abc")
    (tmp_path / "tenure.toml").write_text(FILE_WITH_SERVER + '[storage.http]\ntoken = "abc"\n')
    assert load().storage.http.token == Secret("abc")
    assert load(url=SERVER + "/").storage.http.token == Secret("abc")


def test_the_token_of_a_file_that_names_its_server_goes_nowhere_else(tmp_path):
    (tmp_path / "tenure.toml").write_text(FILE_WITH_SERVER + '[storage.http]\ntoken_file = "token"\n')
    said = refused(url="http://other.example.org")
    assert f"is for {SERVER}, and the store is http://other.example.org" in said
    assert load(url="http://other.example.org", environ={TOKEN: "abc"}).storage.http.token_file is None, "the nearest"
    assert load(url="http://other.example.org", overrides={"storage.http.token": ""}).storage.http.token == Secret()


def test_each_bloom_filter_may_have_its_own_size():
    redis = load(environ={"TENURE_STORAGE_REDIS_BLOOM_GHOSTS_CAPACITY": "5000"}).storage.redis
    assert (redis.bloom_capacity, redis.bloom_ghosts_capacity, redis.bloom_keys_capacity) == (100_000, 5000, None)


@pytest.mark.parametrize("name", ["storage.redis.timeout", "storage.redis.patience", "storage.http.timeout"])
def test_no_request_is_repeated_after_the_server_has_forgotten_it(name):
    """The last repeat begins when the timeout and the patience have passed."""
    assert REQUEST_MEMORY_MS / 1000 > 2 * 240
    assert load(overrides={name: 240})
    assert name in refused(overrides={name: 241})


def test_the_inspect_limit_is_a_setting():
    assert load().storage.inspect_limit == 200
    assert load(environ={"TENURE_STORAGE_INSPECT_LIMIT": "50"}).storage.inspect_limit == 50
