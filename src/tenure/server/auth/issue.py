"""Issue tokens for development and tests. In production an identity provider issues them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tenure.errors import SettingsError
from tenure.server.auth.claims import Rules
from tenure.server.auth.keys import Key, from_secret, key_id


def new_secret() -> str:
    """Return a random secret for HS256: 48 bytes, as 64 characters."""
    return secrets.token_urlsafe(48)


def mint(
    key: bytes,
    rules: Rules,
    *,
    subject: str,
    tenant: str | None,
    scopes: Sequence[str],
    queues: Sequence[str] | None,
    now: float,
    lifetime: float,
) -> str:
    """Return a token signed with a secret, or with a private key in PEM; its header names the key (`kid`)."""
    claims: dict[str, Any] = {
        "iss": rules.issuer,
        "aud": rules.audience,
        "sub": subject,
        "iat": int(now),
        "exp": int(now + lifetime),
        "scope": " ".join(scopes),
    }
    if tenant is not None:
        claims[rules.tenant_claim] = tenant
    if queues is not None:
        claims["queues"] = list(queues)
    algorithm, material, kid = _signing(key)
    return jwt.encode(claims, material, algorithm=algorithm, headers={"kid": kid})


def _signing(key: bytes) -> tuple[str, Any, str]:
    """Return algorithm, signing key, and the `kid` by which a server finds the public half."""
    if b"-----BEGIN" not in key:
        secret = from_secret(key, "the secret")
        return "HS256", secret.material, key_id(secret)
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as exc:
        raise SettingsError(f"not a private key in PEM without a password ({exc})") from None
    if isinstance(private, RSAPrivateKey):
        return "RS256", private, key_id(Key("RS256", private.public_key()))
    if isinstance(private, Ed25519PrivateKey):
        return "EdDSA", private, key_id(Key("EdDSA", private.public_key()))
    raise SettingsError(f"a {type(private).__name__} cannot sign tokens: an RSA or an Ed25519 key can")
