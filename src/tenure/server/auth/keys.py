"""Keys that tokens are verified with. Each key has exactly one algorithm: its own, never the one a token asks for.

a secret of at least 32 bytes     HS256
an RSA public key, 2048 bits up   RS256
an Ed25519 public key             EdDSA
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from tenure.errors import SettingsError

MIN_SECRET_BYTES = 32
MIN_RSA_BITS = 2048

Algorithm = Literal["HS256", "RS256", "EdDSA"]


class Key(NamedTuple):
    algorithm: Algorithm
    material: bytes | RSAPublicKey | Ed25519PublicKey

    def __repr__(self) -> str:
        return f"Key({self.algorithm})"  # a secret must not reach a log by way of a traceback


class Keyring(Protocol):
    """Where a token's key comes from."""

    @property
    def version(self) -> int:
        """Grows whenever a key is no longer trusted, so that what was decided by it can be forgotten."""

    def find(self, kid: str | None) -> list[Key]:
        """The keys a token with this `kid` may be signed with; none if it is not known. Raises Unavailable."""

    def stale(self, kid: str | None) -> bool:
        """Whether `refresh` might bring a key that `find` does not have."""

    def refresh(self) -> None:
        """Fetch, if that is due. Failures are logged, and change nothing."""


class OneKey:
    """A key out of the settings. A token's `kid` has nothing to choose from, and is not looked at."""

    version = 0

    def __init__(self, key: Key) -> None:
        self._keys = [key]

    def find(self, kid: str | None) -> list[Key]:
        return self._keys

    def stale(self, kid: str | None) -> bool:
        return False

    def refresh(self) -> None:
        pass


def from_secret(secret: bytes, source: str) -> Key:
    """`source` names the setting, for the error."""
    if len(secret) < MIN_SECRET_BYTES:
        raise SettingsError(
            f"{source}: a secret has at least {MIN_SECRET_BYTES} bytes, and this one has {len(secret)}."
            " Make one: tenure token --new-secret"
        )
    if b"-----BEGIN" in secret:
        # Everybody knows a public key: as a secret it would let anyone sign.
        raise SettingsError(f"{source}: this is a key in PEM, not a secret: set server.auth.key_file")
    return Key("HS256", secret)


def from_public(key: object, source: str) -> Key:
    if isinstance(key, RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            raise SettingsError(f"{source}: an RSA key has at least {MIN_RSA_BITS} bits, and this one {key.key_size}")
        return Key("RS256", key)
    if isinstance(key, Ed25519PublicKey):
        return Key("EdDSA", key)
    raise SettingsError(f"{source}: a {type(key).__name__} cannot be used: an RSA or an Ed25519 public key can")


def from_pem(pem: bytes, source: str) -> Key:
    """A public key, or a certificate, in PEM."""
    if b"PRIVATE KEY-----" in pem:
        raise SettingsError(f"{source}: this is a private key, which a server must not have: give it the public one")
    try:
        if b"-----BEGIN CERTIFICATE-----" in pem:
            return from_public(load_pem_x509_certificate(pem).public_key(), source)
        return from_public(load_pem_public_key(pem), source)
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise SettingsError(f"{source}: not a public key in PEM ({exc})") from None


def secret_from_file(path: str | Path, source: str) -> bytes:
    """The file's bytes without the line end an editor leaves."""
    return read_file(path, source).rstrip(b"\r\n")


def read_file(path: str | Path, source: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as exc:
        raise SettingsError(f"{source} = {str(path)!r}: {exc.strerror or exc}") from None
