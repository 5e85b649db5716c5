"""Verify a bearer token: its form, its signature, its claims, in that order.

Of the token's header only `alg` (which must be the key's own), `kid`, `typ` and `crit` are read. `jwk`, `jku`, `x5c`
and `x5u`, with which a token would bring its own key, are never read.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jwt

from tenure.clock import Clock, SystemClock
from tenure.errors import Unauthenticated
from tenure.protocol.identity import Identity
from tenure.server.auth.claims import Rules, identity_of
from tenure.server.auth.keys import Key, Keyring

MAX_TOKEN_BYTES = 8 * 1024
#: How many verified tokens are cached: checking a signature costs more than the rest of a small request.
REMEMBERED = 1024

_TYPES = (
    None,
    "JWT",
    "AT+JWT",
)  # types of access tokens: an identity token of another kind must not pass
_JWS = jwt.PyJWS(options={"verify_signature": True, "enforce_minimum_key_length": True})


class TokenAuthenticator:
    """Identifies callers by their JWT."""

    def __init__(self, keyring: Keyring, rules: Rules, clock: Clock | None = None) -> None:
        self._keyring = keyring
        self._rules = rules
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[Identity, float, int]] = OrderedDict()

    def identify(self, headers: Mapping[str, str]) -> Identity:
        return self.verify(bearer(headers))

    def identify_at_once(self, headers: Mapping[str, str]) -> Identity | None:
        token = bearer(headers)
        identity = self._remembered(token)
        if identity is None:
            if self._keyring.stale(_kid(_header(token))):
                return None
            identity = self._verified(token)
        return identity

    def check_page(self, headers: Mapping[str, str]) -> None:
        pass  # pages show nothing that needs a token

    def prepare(self) -> None:
        self._keyring.prepare()

    def verify(self, token: str) -> Identity:
        """Return the bearer of this token. May fetch keys. Raises Unauthenticated, Unavailable."""
        identity = self._remembered(token)
        if identity is not None:
            return identity
        if self._keyring.stale(_kid(_header(token))):
            self._keyring.refresh()
        return self._verified(token)

    def _verified(self, token: str) -> Identity:
        header = _header(token)
        version = self._keyring.version
        claims = _claims(token, header, self._keyring.find(_kid(header)))
        identity, ends = identity_of(claims, self._rules, self._now())
        with self._lock:
            self._known[_digest(token)] = identity, ends, version
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return identity

    def _remembered(self, token: str) -> Identity | None:
        found = self._known.get(_digest(token))
        if found is None:
            return None
        identity, ends, version = found
        return identity if version == self._keyring.version and self._now() < ends else None

    def _now(self) -> float:
        return self._clock.wall_ms() / 1000


def bearer(headers: Mapping[str, str]) -> str:
    """Return the token of `Authorization: Bearer …`. Raises Unauthenticated."""
    value = headers.get("authorization")
    if not value:
        raise Unauthenticated("no token: send one as 'Authorization: Bearer …'")
    if len(value) > MAX_TOKEN_BYTES:
        raise Unauthenticated(f"the token is larger than {MAX_TOKEN_BYTES:,} bytes")
    scheme, _, token = value.partition(" ")
    token = token.strip(" ")
    if scheme.lower() == "bearer" and token.count(".") != 2:
        raise Unauthenticated("the token is not a JSON Web Token: 'tenure token' issues one")
    if scheme.lower() != "bearer" or not token.isascii() or " " in token or "," in token:
        raise Unauthenticated("the Authorization header is not 'Bearer' and one token")
    return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()  # a digest instead of the token, which a memory dump would reveal


def _header(token: str) -> dict[str, Any]:
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.InvalidTokenError, RecursionError):  # JSON nested as deep as the token is long
        raise Unauthenticated("the token is malformed") from None
    if "crit" in header or "b64" in header:
        raise Unauthenticated("the token asks for an extension that is not known here")
    kind = header.get("typ")
    if (kind.upper() if isinstance(kind, str) else kind) not in _TYPES:
        raise Unauthenticated("the token is of another type (typ) than an access token")
    return header


def _kid(header: Mapping[str, Any]) -> str | None:
    kid = header.get("kid")
    return kid if isinstance(kid, str) else None


def _claims(token: str, header: Mapping[str, Any], keys: list[Key]) -> Mapping[str, object]:
    if not keys:
        raise Unauthenticated("the token is signed with a key that is not known here (kid)")
    for key in keys:
        if header.get("alg") != key.algorithm:
            continue
        try:
            payload = _JWS.decode(token, key.material, algorithms=[key.algorithm])
        except (jwt.InvalidTokenError, jwt.InvalidKeyError):
            continue
        return _object(payload)
    raise Unauthenticated("the token's signature is not by a key and algorithm this server trusts")


def _object(payload: bytes) -> Mapping[str, object]:
    import msgspec

    try:
        claims = msgspec.json.decode(payload, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        raise Unauthenticated("the token's claims are malformed") from None
    return claims
