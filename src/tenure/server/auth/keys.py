"""Keys that verify tokens. Each key has exactly one algorithm: its own, never the one that a token asks for.

Settings may give several keys, so that one can replace another while tokens of both are in use: the first signs
(`tenure token`), all verify. Each has a name, `kid`, derived from the key itself. A token that names a key is checked
against that one only, any other token against all.

a secret of at least 32 bytes     HS256
an RSA public key, 2048 bits up   RS256
an Ed25519 public key             EdDSA
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from tenure.errors import SettingsError

MIN_SECRET_BYTES = 32
MIN_RSA_BITS = 2048

_PRINTABLE = re.compile(rb"[\x21-\x7e]+")
_PEM = re.compile(rb"-----BEGIN [^-]+-----.*?-----END [^-]+-----", re.DOTALL)

Algorithm = Literal["HS256", "RS256", "EdDSA"]


class Key(NamedTuple):
    algorithm: Algorithm
    material: bytes | RSAPublicKey | Ed25519PublicKey

    def __repr__(self) -> str:
        return f"Key({self.algorithm})"  # keeps a secret out of tracebacks and logs


class Keyring(Protocol):
    """The source of keys."""

    @property
    def version(self) -> int:
        """Grows whenever a key loses trust, so that cached verifications can be dropped."""

    def find(self, kid: str | None) -> list[Key]:
        """Return the keys that may have signed a token with this `kid`; none if it is unknown. Raises Unavailable."""

    def stale(self, kid: str | None) -> bool:
        """Whether `refresh` might bring a key that `find` lacks. Raises Unavailable while a fetch is under way."""

    def refresh(self) -> None:
        """Fetch if due, and wait for it. Failures are logged, and change nothing.

        Raises Unavailable if another caller's fetch is under way, or this one takes too long.
        """

    def prepare(self) -> None:
        """Start a fetch in the background, if due."""


class FixedKeys:
    """The keys given in the settings, fixed until a restart."""

    version = 0

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = list(keys)
        self._by_id = {key_id(key): key for key in keys}

    def find(self, kid: str | None) -> list[Key]:
        named = self._by_id.get(kid) if kid is not None else None
        return self._keys if named is None else [named]

    def stale(self, kid: str | None) -> bool:
        return False

    def refresh(self) -> None:
        pass

    prepare = refresh


def key_id(key: Key) -> str:
    """Return the `kid` of a key from the settings: a digest of its public part, or of the secret."""
    material = key.material
    if not isinstance(material, bytes):
        material = material.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.blake2b(material, digest_size=6, person=b"tenure kid").hexdigest()


def split_secrets(text: bytes) -> list[bytes]:
    """Return the secrets in a setting or a file, one per line.

    A secret of random bytes may contain a line feed: if a line is too short or not printable, the whole text is one
    secret.
    """
    lines = [line.strip() for line in text.split(b"\n")]
    lines = [line for line in lines if line]
    if len(lines) > 1 and all(_PRINTABLE.fullmatch(line) and len(line) >= MIN_SECRET_BYTES for line in lines):
        return lines
    return [text.rstrip(b"\r\n")]


def split_pem(pem: bytes) -> list[bytes]:
    """Return the keys and certificates in a PEM file, one by one; other text is returned whole, to be refused."""
    return _PEM.findall(pem) or [pem]


def from_secret(secret: bytes, source: str) -> Key:
    """Return the HS256 key of a secret. Raises SettingsError, naming the setting `source`."""
    if len(secret) < MIN_SECRET_BYTES:
        raise SettingsError(
            f"{source}: a secret has at least {MIN_SECRET_BYTES} bytes, and this one has {len(secret)}."
            " Make one: tenure token --new-secret"
        )
    if b"-----BEGIN" in secret:
        # A public key is known to everyone: as a secret it would let anyone sign.
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
    """Return the key of a public key or a certificate in PEM. Raises SettingsError."""
    if b"PRIVATE KEY-----" in pem:
        raise SettingsError(f"{source}: this is a private key, which a server must not have: give it the public one")
    try:
        if b"-----BEGIN CERTIFICATE-----" in pem:
            return from_public(load_pem_x509_certificate(pem).public_key(), source)
        return from_public(load_pem_public_key(pem), source)
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise SettingsError(f"{source}: not a public key in PEM ({exc})") from None


def secrets_from_file(path: str | Path, source: str) -> list[bytes]:
    """Return the secrets in a file, one per line, without the final line end."""
    return split_secrets(read_file(path, source))


def read_file(path: str | Path, source: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as exc:
        raise SettingsError(f"{source} = {str(path)!r}: {exc.strerror or exc}") from None
