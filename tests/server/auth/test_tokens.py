"""Good tokens are taken, and every way known to forge one is refused, by each kind of key."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest

from tenure import Forbidden, InvalidArgument, ManualClock, NotFound, SettingsError, Unauthenticated
from tenure.protocol.identity import Identity
from tenure.server.auth import LoopbackAuthenticator
from tenure.server.auth.keys import FixedKeys, Key, from_pem, from_secret
from tenure.server.auth.tokens import MAX_TOKEN_BYTES, TokenAuthenticator
from tests.server.auth.conftest import ED, OTHER_ED, OTHER_RSA, RSA, RULES, SECRET, bearing, claims, jwk, public_pem

#: The server's key, what its friends sign with, what a stranger signs with.
KINDS: dict[str, tuple[Key, Any, Any]] = {
    "HS256": (from_secret(SECRET, "secret"), SECRET, b"another secret of some 32 bytes!!"),
    "RS256": (from_pem(public_pem(RSA), "key"), RSA, OTHER_RSA),
    "EdDSA": (from_pem(public_pem(ED), "key"), ED, OTHER_ED),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def door(kind: str, clock: ManualClock) -> TokenAuthenticator:
    return TokenAuthenticator(FixedKeys([KINDS[kind][0]]), RULES, clock)


def signed(kind: str, body: dict[str, Any], headers: dict[str, Any] | None = None, key: Any = None) -> str:
    return jwt.encode(body, key or KINDS[kind][1], algorithm=kind, headers=headers)


def part(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def hand_signed(header: dict[str, Any], body: dict[str, Any], key: bytes) -> str:
    """HS256 by hand, as an attacker's own tool has no scruples about keys."""
    text = f"{part(header)}.{part(body)}"
    return f"{text}.{part(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


# ── good ones ────────────────────────────────────────────────────────────────────────────────────────────────────────


@each_kind
def test_a_good_token(kind: str, clock: ManualClock):
    token = signed(kind, claims(clock, queues=["emails"]))
    expected = Identity("ada", "acme", frozenset({"produce", "consume"}), frozenset({"emails"}))
    assert door(kind, clock).identify(bearing(token)) == expected
    assert door(kind, clock).identify_at_once(bearing(token)) == expected
    assert door(kind, clock).identify({"authorization": f"bearer  {token}"}) == expected


@pytest.mark.parametrize(
    ("changes", "attribute", "value"),
    [
        ({"aud": ["other", "tenure"]}, "tenant", "acme"),
        ({"scope": ["admin", "openid"]}, "scopes", {"admin"}),
        ({"scope": "openid profile"}, "scopes", set()),
        ({"queues": []}, "queues", frozenset()),
        ({"tenant": None, "scope": "operator"}, "tenant", "default"),
        ({"nbf": 1}, "tenant", "acme"),
    ],
)
def test_what_a_token_may_also_say(changes: dict[str, Any], attribute: str, value: object, clock: ManualClock):
    identity = door("HS256", clock).identify(bearing(signed("HS256", claims(clock, **changes))))
    assert getattr(identity, attribute) == value


@pytest.mark.parametrize("tenant", ["ACME", "org_AbC123", "auth0|12", "a@b.com", "urn:example:1", "a+b=c~d", "a" * 128])
def test_tenants_as_identity_providers_name_them(tenant: str, clock: ManualClock):
    token = jwt.encode(claims(clock, tenant=tenant), SECRET, algorithm="HS256")
    assert door("HS256", clock).identify(bearing(token)).tenant == tenant


@pytest.mark.parametrize(
    ("tenant", "says"),
    [
        (None, "has no claim 'tenant'"),
        (["acme"], "not text but a list"),
        ("", "1 to 128 of"),
        ("a/b", "1 to 128 of"),
        ("{a}", "1 to 128 of"),
        ("a" * 129, "1 to 128 of"),
    ],
)
def test_a_refused_tenant_says_why(tenant: object, says: str, clock: ManualClock):
    token = jwt.encode(claims(clock, tenant=tenant), SECRET, algorithm="HS256")
    with pytest.raises(Unauthenticated, match=says):
        door("HS256", clock).identify(bearing(token))


def test_the_tenant_is_in_the_claim_that_settings_name(clock: ManualClock):
    import dataclasses

    there = TokenAuthenticator(FixedKeys([KINDS["HS256"][0]]), dataclasses.replace(RULES, tenant_claim="org"), clock)
    assert there.identify(bearing(signed("HS256", claims(clock, tenant="evil", org="acme")))).tenant == "acme"
    with pytest.raises(Unauthenticated, match="'org'"):
        there.identify(bearing(signed("HS256", claims(clock))))


@each_kind
def test_a_remembered_token_still_ends(kind: str, clock: ManualClock):
    there, token = door(kind, clock), signed(kind, claims(clock))
    there.identify(bearing(token))
    clock.advance(64.9)
    there.identify(bearing(token))
    clock.advance(0.1)
    with pytest.raises(Unauthenticated, match="expired"):
        there.identify(bearing(token))


# ── attacks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

CLAIMS: dict[str, dict[str, Any]] = {
    "no exp": {"exp": None},
    "no iat": {"iat": None},
    "no aud": {"aud": None},
    "no iss": {"iss": None},
    "no sub": {"sub": None},
    "no tenant": {"tenant": None},
    "no scope": {"scope": None},
    "expired": {"exp": 1_799_999_990},
    "expired, as text": {"exp": "9999999999"},
    "exp true": {"exp": True},
    "exp a list": {"exp": [9999999999]},
    "exp past any float": {"exp": 10**400},
    "exp before 1970": {"exp": -1},
    "iat past any float": {"iat": -(10**400)},
    "issued in the future": {"iat": 1_800_000_060},
    "iat as text": {"iat": "1"},
    "not yet": {"nbf": 1_800_000_060},
    "for another server": {"aud": "other"},
    "for several others": {"aud": ["other", "tenure2"]},
    "aud an object": {"aud": {"tenure": 1}},
    "aud that contains ours": {"aud": "xtenurex"},
    "by another issuer": {"iss": "https://evil.example"},
    "issuers as a list": {"iss": ["https://id.example"]},
    "a list of tenants": {"tenant": ["acme", "globex"]},
    "a list of one tenant": {"tenant": ["acme"]},
    "tenant an object": {"tenant": {"acme": True}},
    "tenant a number": {"tenant": 7},
    "tenant empty": {"tenant": ""},
    "tenant with a separator": {"tenant": "acme/../globex"},
    "tenant with a line end": {"tenant": "acme\n"},
    "an operator's list of tenants": {"tenant": ["acme"], "scope": "operator"},
    "scope a number": {"scope": 1},
    "scope an object": {"scope": {"operator": True}},
    "scopes that are no text": {"scope": ["produce", 1]},
    "queues as text": {"queues": "emails"},
    "queues that are no names": {"queues": ["*"]},
    "too many queues": {"queues": [f"q{n}" for n in range(101)]},
    "sub a number": {"sub": 7},
    "sub with a line end": {"sub": "ada\nroot"},
    "a huge sub": {"sub": "a" * 257},
}


@each_kind
@pytest.mark.parametrize("attack", CLAIMS)
def test_claims_that_are_refused(attack: str, kind: str, clock: ManualClock):
    body = claims(clock, **CLAIMS[attack])
    # By hand where PyJWT would not even make such a token.
    token = hand_signed({"alg": "HS256"}, body, SECRET) if kind == "HS256" else _sign_raw(kind, body)
    refused(door(kind, clock), token)


def _sign_raw(kind: str, body: dict[str, Any]) -> str:
    return jwt.PyJWS().encode(json.dumps(body).encode(), KINDS[kind][1], algorithm=kind)


def refused(there: TokenAuthenticator, token: str, **headers: str) -> None:
    for identify in (there.identify, there.identify_at_once):
        with pytest.raises(Unauthenticated) as caught:
            identify(bearing(token, **headers))
        for piece in token.split("."):
            assert len(piece) < 8 or piece not in str(caught.value)


@each_kind
@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None, 0, ["HS256"]])
def test_no_algorithm(alg: object, kind: str, clock: ManualClock):
    for signature in ("", part(b"x" * 32)):
        refused(door(kind, clock), f"{part({'alg': alg, 'typ': 'JWT'})}.{part(claims(clock))}.{signature}")
    refused(door(kind, clock), f"{part({'typ': 'JWT'})}.{part(claims(clock))}.")


@pytest.mark.parametrize("kind", ["RS256", "EdDSA"])
def test_the_public_key_taken_for_a_secret(kind: str, clock: ManualClock):
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private = KINDS[kind][1]
    shapes = [
        private.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
        for encoding in (Encoding.PEM, Encoding.DER)
    ]
    for known in (*shapes, shapes[0].strip()):
        refused(door(kind, clock), hand_signed({"alg": "HS256", "typ": "JWT"}, claims(clock), known))
        refused(door(kind, clock), hand_signed({"alg": kind, "typ": "JWT"}, claims(clock), known))


@each_kind
def test_every_other_algorithm(kind: str, clock: ManualClock):
    for alg, key in (("HS256", SECRET), ("HS384", SECRET * 2), ("HS512", SECRET * 2), ("RS256", RSA), ("RS384", RSA), ("RS512", RSA), ("PS256", RSA), ("EdDSA", ED)):  # fmt: skip
        if alg != kind:
            refused(door(kind, clock), jwt.encode(claims(clock), key, algorithm=alg))


@each_kind
def test_another_key(kind: str, clock: ManualClock):
    refused(door(kind, clock), signed(kind, claims(clock), key=KINDS[kind][2]))


def test_short_secrets_of_an_attacker(clock: ManualClock):
    for key in (b"", b"\0", b"a", b"secret"):
        refused(door("HS256", clock), hand_signed({"alg": "HS256"}, claims(clock), key))


@each_kind
def test_a_token_that_brings_its_own_key(kind: str, clock: ManualClock):
    mine = OTHER_ED if kind == "EdDSA" else OTHER_RSA
    for brought in (
        {"jwk": jwk(mine, "x")},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/cert"},
        {"x5c": ["MIIB"]},
    ):
        for alg, key in (("RS256", OTHER_RSA), ("EdDSA", OTHER_ED), ("HS256", b"z" * 32)):
            refused(door(kind, clock), jwt.encode(claims(clock), key, algorithm=alg, headers=brought))


@each_kind
def test_extensions_and_other_types(kind: str, clock: ManualClock):
    header: dict[str, Any]
    for header in ({"crit": ["exp"], "exp": 1}, {"crit": []}, {"typ": "dpop+jwt"}, {"typ": "logout+jwt"}, {"typ": 7}):
        refused(door(kind, clock), jwt.PyJWS().encode(json.dumps(claims(clock)).encode(), KINDS[kind][1], algorithm=kind, headers=header))  # fmt: skip
    body = jwt.PyJWS().encode(
        json.dumps(claims(clock)).encode(), KINDS[kind][1], algorithm=kind, is_payload_detached=True
    )
    refused(door(kind, clock), body)


@each_kind
def test_every_flipped_character(kind: str, clock: ManualClock):
    there, token = door(kind, clock), signed(kind, claims(clock))
    there.identify(bearing(token))  # known now: only the very same token is taken from memory
    start = token.rindex(".")
    for at in (*range(0, start, 7), *range(start + 1, len(token) - 1, 5)):
        if token[at] == ".":
            continue
        flipped = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        refused(there, flipped)


@each_kind
def test_huge_and_malformed_tokens(kind: str, clock: ManualClock):
    there = door(kind, clock)
    refused(there, signed(kind, claims(clock, more="x" * MAX_TOKEN_BYTES)))
    deep = part(b'{"alg":"HS256","kid":' + b"[" * 3000 + b"]" * 3000 + b"}")
    for token in (
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        f"{deep}.{part({})}.",
        f"{part([])}.{part({})}.{part(b'x')}",
        f"{part({'alg': kind})}.{part({})}.{part(b'x')}.{part(b'x')}",
        "é.é.é",
        signed(kind, claims(clock)) + ", Bearer " + signed(kind, claims(clock)),
    ):
        refused(there, token)
    for header in ({}, {"authorization": ""}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer"}):
        with pytest.raises(Unauthenticated):
            there.identify(header)


@each_kind
@pytest.mark.parametrize(
    "payload", [b"[]", b"7", b'"x"', b"null", b"{", b"\xff", b"[" * 3000, b'{"exp": 1e999}', b'{"exp": NaN}']
)
def test_claims_that_are_none(payload: bytes, kind: str, clock: ManualClock):
    refused(door(kind, clock), jwt.PyJWS().encode(payload, KINDS[kind][1], algorithm=kind))


# ── tenants by header ────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_an_operator_chooses_a_tenant(clock: ManualClock):
    there = door("HS256", clock)
    plain, operator = (
        there.identify(bearing(signed("HS256", claims(clock, scope=scope))))
        for scope in ("produce consume admin", "operator")
    )
    assert operator.acting("globex") == "globex"
    assert operator.acting(None) is None
    assert plain.acting(None) == plain.acting("acme") == "acme"
    messages = set()
    for other in ("globex", "not-there", "NOT A NAME", ""):
        with pytest.raises(Forbidden) as caught:
            plain.acting(other)
        messages.add(str(caught.value))
    assert len(messages) == 1
    with pytest.raises(InvalidArgument, match="tenant"):
        operator.acting("NOT A NAME")


@pytest.mark.parametrize(
    ("scope", "may"),
    [
        ("", ""),
        ("produce", "any produce"),
        ("consume", "any consume"),
        ("admin", "any produce consume admin"),
        ("operator", "any produce consume admin operator"),
    ],
)
def test_what_a_scope_includes(scope: str, may: str):
    identity = Identity("ada", "acme", frozenset(scope.split()))
    for one in ("any", "produce", "consume", "admin", "operator"):
        assert identity.may(one) == (one in may.split())


def test_a_token_for_some_queues():
    identity = Identity("ada", "acme", frozenset({"produce"}), frozenset({"emails"}))
    assert identity.queue("emails", "acme") == ("acme", "emails")
    with pytest.raises(NotFound):
        identity.queue("invoices", "acme")
    with pytest.raises(InvalidArgument):
        identity.queue("globex/emails", "acme")


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "secret", [b"", b"a", b"a" * 31, public_pem(RSA)], ids=["empty", "one byte", "31 bytes", "a public key"]
)
def test_secrets_that_are_none(secret: bytes):
    with pytest.raises(SettingsError) as caught:
        from_secret(secret, "server.auth.secret")
    assert "server.auth.secret" in str(caught.value)
    assert len(secret) < 2 or secret.decode() not in str(caught.value)


def test_public_keys_that_are_none():
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa

    from tests.server.auth.conftest import private_pem

    for pem, why in (
        (b"", "not a public key"),
        (b"x" * 64, "not a public key"),
        (private_pem(RSA), "private key"),
        (private_pem(ED), "private key"),
        (public_pem(rsa.generate_private_key(65537, 1024)), "2048"),
        (public_pem(ec.generate_private_key(ec.SECP256R1())), "cannot be used"),
        (public_pem(ed448.Ed448PrivateKey.generate()), "cannot be used"),
    ):
        with pytest.raises(SettingsError, match=why):
            from_pem(pem, "server.auth.key_file")


def test_a_key_does_not_show_itself():
    assert SECRET.decode() not in repr(KINDS["HS256"][0])
    assert SECRET.decode() not in str(KINDS["HS256"][0])


# ── no authentication ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST.", "127.9.9.9"]
)
def test_loopback_is_the_operator(host: str):
    assert LoopbackAuthenticator().identify({"host": host}).operator


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1:8080", "[::2]"]
)
def test_a_page_that_resolves_its_name_to_loopback_is_refused(host: str):
    with pytest.raises(Forbidden, match="localhost"):
        LoopbackAuthenticator().identify({"host": host})
    assert LoopbackAuthenticator(check_host=False).identify({"host": host}).operator


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, True),
        ({"origin": "http://localhost:8400"}, True),
        ({"origin": "http://LOCALHOST:8400"}, True),
        ({"origin": "http://localhost:3000"}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "http://127.0.0.1:8400"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "file://localhost:8400"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
    ],
)
def test_only_its_own_pages_are_answered_without_tokens(headers: dict[str, str], taken: bool):
    """The page of another server on this machine is another origin, too."""
    with contextlib.nullcontext() if taken else pytest.raises(Forbidden):
        LoopbackAuthenticator().identify({"host": "localhost:8400", **headers})
