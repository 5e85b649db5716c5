"""From settings to a door, and `tenure token` to a key for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner

from tenure import SettingsError, SystemClock, Unauthenticated
from tenure.cli.main import cli
from tenure.protocol.identity import Identity
from tenure.server.auth.configuration import authenticator
from tenure.server.auth.keys import from_secret, key_id
from tenure.server_settings import Auth, Secret
from tests.server.auth.conftest import ED, RSA, SECRET, bearing, private_pem, public_pem


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("secret", SECRET + b"\n"),
        ("short", b"x"),
        ("rsa", private_pem(RSA)),
        ("rsa.pub", public_pem(RSA)),
        ("ed", private_pem(ED)),
        ("ed.pub", public_pem(ED)),
    ):
        Path(name).write_bytes(content)
    return tmp_path


def token(*args: str, code: int = 0) -> str:
    ran = CliRunner().invoke(cli, ["token", *args])
    assert ran.exit_code == code, ran.output
    return ran.stderr if code else ran.stdout.strip()


@pytest.mark.parametrize(
    ("auth", "key_file"),
    [
        (Auth(secret=Secret(SECRET.decode())), "secret"),
        (Auth(secret_file="secret"), "secret"),
        (Auth(key_file="rsa.pub"), "rsa"),
        (Auth(key_file="ed.pub"), "ed"),
    ],
    ids=["secret", "secret_file", "RSA", "Ed25519"],
)
def test_a_minted_token_opens(auth: Auth, key_file: str):
    door = authenticator(auth, SystemClock())
    assert door is not None
    made = token(
        "--key-file", key_file, "--tenant", "acme", "--scope", "produce", "--queue", "emails", "--subject", "ada"
    )
    identity = door.identify(bearing(made))
    assert identity == Identity("ada", "acme", frozenset({"produce"}), frozenset({"emails"}))
    assert door.identify(bearing(token("--key-file", key_file))).scopes == {"produce", "consume", "admin"}
    operator = door.identify(bearing(token("--key-file", key_file, "--scope", "operator")))
    assert operator.operator


@pytest.mark.parametrize("where", ["secret", "secret_file"])
def test_two_secrets_at_once_while_one_replaces_the_other(where: str):
    """The first signs, both verify; a third does not."""
    old, new = SECRET.decode(), "fedcba9876543210fedcba9876543210"
    Path("both").write_text(f"{new}\n{old}\n")
    auth = Auth(secret=Secret(f"{new}\n{old}")) if where == "secret" else Auth(secret_file="both")
    Path("new").write_text(new)
    Path("other").write_text("x" * 32)
    door = authenticator(auth, SystemClock())
    assert door is not None
    for signer in ("secret", "new", "both"):
        made = token("--key-file", signer, "--tenant", "acme")
        assert door.identify(bearing(made)).tenant == "acme"
    with pytest.raises(Unauthenticated):
        door.identify(bearing(token("--key-file", "other")))
    now_only = authenticator(Auth(secret_file="new"), SystemClock())
    assert now_only is not None
    assert now_only.identify(bearing(token("--key-file", "both"))).subject == "developer", "the first line signs"


def test_two_public_keys_at_once():
    Path("keys.pem").write_bytes(public_pem(ED) + b"\n" + public_pem(RSA))
    door = authenticator(Auth(key_file="keys.pem"), SystemClock())
    assert door is not None
    for signer in ("ed", "rsa"):
        assert door.identify(bearing(token("--key-file", signer, "--tenant", "acme"))).tenant == "acme"


def test_a_token_names_its_key_and_is_held_to_it():
    other = "fedcba9876543210fedcba9876543210"
    Path("both").write_text(f"{SECRET.decode()}\n{other}")
    door = authenticator(Auth(secret_file="both"), SystemClock())
    assert door is not None
    named = key_id(from_secret(other.encode(), "a test"))
    good = jwt.decode(token("--key-file", "secret"), options={"verify_signature": False})
    forged = jwt.encode(good, SECRET, algorithm="HS256", headers={"kid": named})
    with pytest.raises(Unauthenticated):
        door.identify(bearing(forged))
    foreign = jwt.encode(good, SECRET, algorithm="HS256", headers={"kid": "an issuer's own"})
    assert door.identify(bearing(foreign)).subject == "developer"


def test_random_bytes_with_line_feeds_are_one_secret():
    Path("bytes").write_bytes(b"\x80" * 40 + b"\n" + b"\x81" * 40 + b"\n")
    door = authenticator(Auth(secret_file="bytes"), SystemClock())
    assert door is not None
    assert door.identify(bearing(token("--key-file", "bytes", "--tenant", "acme"))).tenant == "acme"
    Path("half").write_bytes(b"\x80" * 40)
    with pytest.raises(Unauthenticated):
        door.identify(bearing(token("--key-file", "half")))


def test_a_token_by_the_servers_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENURE_SERVER_AUTH_SECRET_FILE", "secret")
    monkeypatch.setenv("TENURE_SERVER_AUTH_ISSUER", "https://id.example")
    monkeypatch.setenv("TENURE_SERVER_AUTH_TENANT_CLAIM", "org")
    auth = Auth(secret_file="secret", issuer="https://id.example", tenant_claim="org")
    door = authenticator(auth, SystemClock())
    assert door is not None
    assert door.identify(bearing(token("--tenant", "acme"))).tenant == "acme"


def test_a_new_secret_is_one():
    first, second = token("--new-secret"), token("--new-secret")
    assert first != second
    assert authenticator(Auth(secret=Secret(first))) is not None


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "nothing to sign with"),
        (("--key-file", "short"), "at least 32 bytes"),
        (("--key-file", "rsa.pub"), "not a private key"),
        (("--key-file", "not-there"), "No such file"),
        (("--key-file", "secret", "--lifetime", "0"), "--lifetime"),
        (("--key-file", "secret", "--tenant", "NO NAME"), "tenant"),
        (("--key-file", "secret", "--queue", "*"), "queue"),
        (("--key-file", "secret", "--scope", "root"), "operator"),
    ],
)
def test_tokens_that_are_not_made(args: tuple[str, ...], says: str):
    assert says in token(*args, code=2)


def test_no_source_is_no_authentication():
    assert authenticator(Auth()) is None


@pytest.mark.parametrize(
    ("auth", "says"),
    [
        (Auth(secret=Secret("x" * 31)), "at least 32 bytes"),
        (Auth(secret_file="short"), "at least 32 bytes"),
        (Auth(secret_file="rsa.pub"), "key_file"),
        (Auth(secret_file="not-there"), "No such file"),
        (Auth(key_file="rsa"), "private key"),
        (Auth(key_file="secret"), "not a public key"),
        (Auth(jwks_url="http://id.example/keys"), "https"),
        (Auth(secret_file="secret", key_file="rsa.pub"), "one of them"),
    ],
)
def test_what_cannot_be_secure_does_not_start(auth: Auth, says: str):
    with pytest.raises(SettingsError, match=says) as caught:
        authenticator(auth)
    assert SECRET.decode() not in str(caught.value)


def test_without_the_extra_it_says_what_to_install():
    script = (
        "import sys; sys.modules['jwt'] = None\n"
        "from tenure.cli.main import cli; cli.main(['token', '--new-secret'], standalone_mode=False)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "pip install 'tenure[server]'" in ran.stderr


def test_importing_tenure_imports_none_of_it():
    script = "import tenure, tenure.cli.main, sys; print([m for m in ('jwt', 'cryptography', 'uvicorn') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
