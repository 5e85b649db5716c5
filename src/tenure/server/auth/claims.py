"""Check a token's claims: a pure function, stricter than the standard where that leaves a choice.

sub, iss, aud, iat, exp   all required. Times are numbers, not text that looks like one.
tenant (or another name)  one string; a list is refused, because two programs could pick two different items of it.
                          Only an operator may omit it.
scope                     names separated by spaces, as in OAuth, or a list of them; unknown ones are ignored
queues                    optional: a list of names. Absent: every queue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tenure.errors import InvalidArgument, Unauthenticated
from tenure.model.names import DEFAULT_TENANT, checked
from tenure.protocol.identity import SCOPES, Identity

MAX_SUBJECT = 256
MAX_QUEUES = 100
#: The largest time in a claim: far beyond any clock, and exact as a float.
_LAST_SECOND = 2**53
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Rules:
    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    #: Seconds by which the clocks of two machines may differ.
    leeway: float = 5.0


def identity_of(claims: Mapping[str, object], rules: Rules, now: float) -> tuple[Identity, float]:
    """Return the identity, and the second at which its token expires. Raises Unauthenticated."""
    if claims.get("iss") != rules.issuer:
        raise Unauthenticated("the token's issuer (iss) is not the one this server trusts")
    audience = claims.get("aud")
    if audience != rules.audience and not (isinstance(audience, list) and rules.audience in audience):
        raise Unauthenticated("the token is not for this server: its audience (aud) is another")
    ends = _times(claims, rules.leeway, now)
    scopes = _scopes(claims.get("scope"))
    tenant = _tenant(claims, rules.tenant_claim, "operator" in scopes)
    return Identity(_subject(claims.get("sub")), tenant, scopes, _queues(claims.get("queues"))), ends


def _times(claims: Mapping[str, object], leeway: float, now: float) -> float:
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if now >= expires + leeway:
        raise Unauthenticated("the token has expired")
    if issued > now + leeway:
        raise Unauthenticated("the token says it was issued in the future (iat): are the clocks right?")
    if "nbf" in claims and _time(claims, "nbf") > now + leeway:
        raise Unauthenticated("the token is not valid yet (nbf)")
    return expires + leeway


def _time(claims: Mapping[str, object], name: str) -> float:
    value = claims.get(name)
    if value is None:
        raise Unauthenticated(f"the token has no {name}")
    # Compare before converting: JSON has whole numbers that no float can hold, and NaN is in no range.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_SECOND:
        raise Unauthenticated(f"the token's {name} is not a time in seconds since 1970")
    return float(value)


def _subject(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_SUBJECT or _UNPRINTABLE.search(value):
        raise Unauthenticated("the token has no subject (sub) of 1 to 256 printable characters")
    return value


def _tenant(claims: Mapping[str, object], claim: str, operator: bool) -> str:
    value = claims.get(claim)
    if value is None and operator:
        return DEFAULT_TENANT
    if value is None:
        raise Unauthenticated(
            f"the token names no tenant: it has no claim {claim!r} (setting server.auth.tenant_claim)"
        )
    if not isinstance(value, str):
        raise Unauthenticated(f"the token names no tenant: its claim {claim!r} is not text but a {_json_kind(value)}")
    try:
        return checked("tenant", value)
    except InvalidArgument as exc:
        raise Unauthenticated(f"the token's claim {claim!r} cannot be a tenant: {exc}") from None


def _json_kind(value: object) -> str:
    return {bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}.get(type(value), "value")


def _scopes(value: object) -> frozenset[str]:
    names = value.split(" ") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Unauthenticated("the token has no scope: names parted by spaces, or a list of them")
    return frozenset(names) & SCOPES


def _queues(value: object) -> frozenset[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MAX_QUEUES:
        raise Unauthenticated(f"the token's queues must be a list of at most {MAX_QUEUES} names")
    try:
        return frozenset(checked("queue", name) for name in value)
    except InvalidArgument:
        raise Unauthenticated("the token's queues must be names of queues") from None
