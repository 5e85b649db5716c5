"""Keys made once, and a clock that stands still."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tenure import ManualClock
from tenure.server.auth.claims import Rules

SECRET = b"0123456789abcdef0123456789abcdef"
RULES = Rules("https://id.example", "tenure", leeway=5)
RSA = rsa.generate_private_key(65537, 2048)
ED = ed25519.Ed25519PrivateKey.generate()
OTHER_RSA = rsa.generate_private_key(65537, 2048)
OTHER_ED = ed25519.Ed25519PrivateKey.generate()


def public_pem(private: Any) -> bytes:
    pem: bytes = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def private_pem(private: Any) -> bytes:
    pem: bytes = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def jwk(private: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(private, rsa.RSAPrivateKey) else jwt.algorithms.OKPAlgorithm
    found: dict[str, Any] = json.loads(kind.to_jwk(private.public_key()))
    return {**found, **({} if kid is None else {"kid": kid}), **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def claims(clock: ManualClock, **changes: Any) -> dict[str, Any]:
    """A good token's claims; a change to None leaves a claim out."""
    now = clock.wall_ms() // 1000
    good = {
        "iss": RULES.issuer,
        "aud": RULES.audience,
        "sub": "ada",
        "iat": now,
        "exp": now + 60,
        "tenant": "acme",
        "scope": "produce consume",
    }
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def bearing(token: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **more}
