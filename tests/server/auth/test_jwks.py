"""Keys from an identity provider: a real HTTP server, and a clock that moves when told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest

from tenure import ManualClock, SettingsError, Unauthenticated, Unavailable
from tenure.server.auth import jwks as module
from tenure.server.auth.jwks import FetchFailed, Jwks, KeysPending, checked_url, fetch_document
from tenure.server.auth.tokens import TokenAuthenticator
from tests.server.auth.conftest import ED, OTHER_ED, OTHER_RSA, RSA, RULES, SECRET, bearing, claims, jwk, jwks


class Provider:
    """An identity provider: what it answers can be changed, and its requests are counted."""

    def __init__(self) -> None:
        self.document = jwks(jwk(RSA, "one"))
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.asked: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                (provider.answer or _body(provider.document))(self)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider()
    yield running
    running.close()


class Door:
    def __init__(self, provider: Provider, clock: ManualClock) -> None:
        self.keyring = Jwks(provider.url, max_age=300, min_interval=30, overlap=600, clock=clock)
        self.authenticator = TokenAuthenticator(self.keyring, RULES, clock)
        self.clock = clock

    def token(self, kid: str | None = "one", key: Any = RSA, alg: str = "RS256", **headers: Any) -> str:
        named = {} if kid is None else {"kid": kid}
        return jwt.encode(claims(self.clock, exp=9_999_999_999), key, algorithm=alg, headers={**named, **headers})

    def takes(self, *args: Any, **kwargs: Any) -> bool:
        try:
            self.authenticator.identify(bearing(self.token(*args, **kwargs)))
        except Unauthenticated:
            return False
        return True

    def settled(self) -> None:
        """Wait for a fetch in the background, if there is one."""
        for thread in threading.enumerate():
            if thread.name == "tenure-jwks":
                thread.join()


@pytest.fixture
def door(provider: Provider, clock: ManualClock) -> Door:
    return Door(provider, clock)


def test_keys_are_fetched_once_and_kept(provider: Provider, door: Door):
    provider.document = jwks(jwk(RSA, "one"), jwk(ED, "two"))
    for _ in range(3):
        assert door.takes("one")
        assert door.takes("two", ED, "EdDSA")
    assert provider.asked == ["/keys"]


def test_a_key_has_the_algorithm_of_its_type(provider: Provider, door: Door):
    provider.document = jwks(jwk(RSA, "one"), jwk(ED, "two"))
    assert not door.takes("two")
    assert not door.takes("one", ED, "EdDSA")
    assert not door.takes("one", OTHER_RSA)
    assert not door.takes("one", RSA, "RS512")
    assert not door.takes("one", RSA, "PS256")
    assert not door.takes("one", b"0" * 32, "HS256")


def test_an_event_loop_is_not_held_up(provider: Provider, door: Door):
    assert door.authenticator.identify_at_once(bearing(door.token())) is None
    assert provider.asked == []
    door.authenticator.identify(bearing(door.token()))
    assert door.authenticator.identify_at_once(bearing(door.token())) is not None


def test_unknown_keys_are_looked_for_no_more_often_than_allowed(provider: Provider, door: Door, clock: ManualClock):
    assert door.takes()
    clock.advance(30)
    for n in range(50):
        assert not door.takes(f"unknown-{n}")
    assert len(provider.asked) == 2
    clock.advance(29.9)
    assert not door.takes("unknown")
    assert len(provider.asked) == 2
    provider.document = jwks(jwk(RSA, "one"), jwk(ED, "new"))
    clock.advance(0.1)
    assert door.takes("new", ED, "EdDSA")
    assert len(provider.asked) == 3


def test_one_caller_waits_for_a_slow_provider_and_the_others_are_refused_at_once(
    provider: Provider, clock: ManualClock
):
    """A provider that drips its answer: one fetch, one deadline for all of it, and no thread held but the first caller's."""
    over = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        with contextlib.suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 600:
                request.wfile.write(bytes((byte,)))
                if over.wait(0.05):
                    return

    provider.answer = drip
    keyring = Jwks(provider.url, clock=clock, timeout=1.0)
    authenticator = TokenAuthenticator(keyring, RULES, clock)
    token = jwt.encode(claims(clock), RSA, algorithm="RS256", headers={"kid": "one"})
    said: list[tuple[float, Exception]] = []

    def ask(identify: Callable[[Any], object]) -> None:
        began = time.monotonic()
        try:
            identify(bearing(token))
        except Exception as exc:
            said.append((time.monotonic() - began, exc))

    try:
        first = threading.Thread(target=ask, args=(authenticator.identify,))
        first.start()
        while not provider.asked:
            time.sleep(0.005)
        for identify in (authenticator.identify, authenticator.identify_at_once) * 8:
            ask(identify)
        assert len(said) == 16, "the others do not wait"
        assert first.is_alive()
        assert all(isinstance(exc, KeysPending) for _, exc in said)
        assert "being fetched" in str(said[0][1])
        first.join(10)
        assert not first.is_alive()
        assert isinstance(said[-1][1], Unavailable)
        assert said[-1][0] < 10, "one deadline, not one for each byte"
        for thread in threading.enumerate():
            if thread.name == "tenure-jwks":
                thread.join(10)
                assert not thread.is_alive(), "the fetch itself ends by the deadline"
        assert len(provider.asked) == 1
    finally:
        over.set()


def test_a_known_key_is_taken_while_others_are_fetched(provider: Provider, door: Door, clock: ManualClock):
    assert door.takes("one")
    begun, over = threading.Event(), threading.Event()

    def wait(request: BaseHTTPRequestHandler) -> None:
        begun.set()
        over.wait(10)
        _body(jwks(jwk(RSA, "one"), jwk(ED, "new")))(request)

    provider.answer = wait
    clock.advance(31)
    taken: list[bool] = []
    first = threading.Thread(target=lambda: taken.append(door.takes("new", ED, "EdDSA")))
    first.start()
    assert begun.wait(10)
    try:
        assert door.takes("one")
        with pytest.raises(KeysPending):
            door.takes("other", ED, "EdDSA")
    finally:
        over.set()
    first.join(10)
    assert taken == [True]


def test_keys_can_be_fetched_before_anyone_asks(provider: Provider, door: Door):
    door.authenticator.prepare()
    door.settled()
    assert provider.asked == ["/keys"]
    assert door.authenticator.identify_at_once(bearing(door.token())) is not None


def test_rotation_overlaps(provider: Provider, door: Door, clock: ManualClock):
    assert door.takes("one")
    provider.document = jwks(jwk(ED, "two"))
    clock.advance(30)
    assert door.takes("two", ED, "EdDSA")
    assert door.takes("one"), "a key that went stays for a time"
    clock.advance(599)
    assert door.takes("one")
    door.settled()
    assert door.takes("one"), "and is not renewed by another fetch, nor dropped by it"
    clock.advance(2)
    assert not door.takes("one"), "not even a token that was taken a moment ago"
    assert door.takes("two", ED, "EdDSA")


def test_one_name_for_two_keys_is_the_newer_at_once(provider: Provider, door: Door, clock: ManualClock):
    assert door.takes("one")
    provider.document = jwks(jwk(OTHER_RSA, "one"))
    clock.advance(301)
    door.takes("one")
    door.settled()
    assert not door.takes("one")
    assert door.takes("one", OTHER_RSA)


def test_an_old_set_is_renewed_in_the_background(provider: Provider, door: Door, clock: ManualClock):
    assert door.takes()
    clock.advance(301)
    assert door.takes(None), "not from memory"
    door.settled()
    assert len(provider.asked) == 2
    assert door.takes(None)
    door.settled()
    assert len(provider.asked) == 2


def _status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()

    return answer


def _body(body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(OSError):  # whoever asked has had enough
            request.wfile.write(body)

    return answer


def _cut_off(request: BaseHTTPRequestHandler) -> None:
    request.connection.close()


EVIL = jwks(jwk(OTHER_RSA, "evil"))
FAILURES: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "500": _status(500),
    "404": _status(404),
    "204": _status(204),
    "a redirect to a file": _status(302, Location="file:///etc/passwd"),
    "a redirect to plain http": _status(301, Location="http://127.0.0.1:1/keys"),
    "not JSON": _body(b"<html>"),
    "JSON of another kind": _body(b"[1, 2]"),
    "no keys": _body(b'{"keys": []}'),
    "keys as an object": _body(b'{"keys": {"one": 1}}'),
    "deep": _body(b'{"keys": [' + b"[" * 5000),
    "huge": _body(EVIL[:-1] + b" " * (module.MAX_BYTES + 1) + b"}"),
    "only a secret": _body(jwks({"kty": "oct", "kid": "evil", "k": "c2VjcmV0"})),
    "only short or broken keys": _body(jwks({"kty": "RSA", "kid": "evil", "n": "AQAB", "e": "AQAB"}, {"kty": "OKP", "crv": "Ed25519", "kid": "x", "x": "AA"}, {"kty": "RSA"})),
    "a connection cut off": _cut_off,
}  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_drops_no_key(failure: str, provider: Provider, door: Door, clock: ManualClock):
    assert door.takes()
    provider.answer = FAILURES[failure]
    clock.advance(1000)
    assert not door.takes("evil", OTHER_RSA)
    assert len(provider.asked) == 2
    assert door.takes()
    clock.advance(86_400)
    assert door.takes(), "however old"
    door.settled()


@pytest.mark.parametrize("failure", FAILURES)
def test_without_any_key_nobody_comes_in(failure: str, provider: Provider, door: Door, clock: ManualClock):
    provider.answer = FAILURES[failure]
    for _ in range(3):
        with pytest.raises(Unavailable):
            door.takes()
    assert len(provider.asked) == 1
    provider.answer = None
    clock.advance(31)
    assert door.takes()


def test_a_redirect_is_followed_nowhere(provider: Provider, door: Door):
    elsewhere = Provider()
    elsewhere.document = EVIL
    try:
        provider.answer = _status(302, Location=elsewhere.url)
        with pytest.raises(Unavailable):
            door.takes("evil", OTHER_RSA)
        assert elsewhere.asked == []
    finally:
        elsewhere.close()


def test_a_body_that_drips_is_given_up(provider: Provider, clock: ManualClock):
    over = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                request.wfile.write(b" ")

    provider.answer = drip
    try:
        with pytest.raises(FetchFailed, match=r"not done within 0\.5 s"):
            fetch_document(provider.url, 0.5)
    finally:
        over.set()


def test_a_provider_that_is_not_there(clock: ManualClock):
    keyring = Jwks("http://127.0.0.1:1/keys", clock=clock)
    keyring.refresh()
    with pytest.raises(Unavailable):
        keyring.find("one")


def test_a_token_cannot_say_where_keys_are(provider: Provider, door: Door):
    elsewhere = Provider()
    elsewhere.document = EVIL
    try:
        for header in ("jku", "x5u"):
            assert not door.takes("evil", OTHER_RSA, **{header: elsewhere.url})
        assert not door.takes("evil", OTHER_RSA, jwk=jwk(OTHER_RSA, "evil"))
        assert not door.takes(None, OTHER_RSA, jwk=jwk(OTHER_RSA, "evil"))
        assert elsewhere.asked == []
    finally:
        elsewhere.close()


def test_which_keys_of_a_set_count(provider: Provider, door: Door):
    provider.document = jwks(
        jwk(RSA, "one"),
        jwk(OTHER_RSA, "for-encryption", use="enc"),
        jwk(OTHER_RSA, "for-another-algorithm", alg="RS512"),
        jwk(OTHER_RSA, "one"),
        jwk(OTHER_ED, "ed", use="sig", alg="EdDSA", key_ops=["verify"]),
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"},
        {"kty": "EC", "kid": "ec"},
    )
    assert door.takes("one")
    assert door.takes("ed", OTHER_ED, "EdDSA")
    assert not door.takes("for-encryption", OTHER_RSA)
    assert not door.takes("for-another-algorithm", OTHER_RSA)
    assert not door.takes("one", OTHER_RSA)
    assert not door.takes("secret", b"secret" * 6, "HS256")
    assert not door.takes("secret", SECRET, "HS256")


def test_a_token_that_names_no_key_needs_a_set_of_one(provider: Provider, door: Door, clock: ManualClock):
    assert door.takes(None)
    provider.document = jwks(jwk(RSA, "one"), jwk(OTHER_RSA, "two"))
    clock.advance(31)
    assert not door.takes("unknown")
    assert not door.takes(None, OTHER_RSA)


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/keys",
        "file:///etc/passwd",
        "ftp://id.example/keys",
        "id.example/keys",
        "https://",
        "https://user:password@id.example/keys",
        "https://id.example:port/keys",
        "http://[::1",
        "http://127.0.0.1.evil.example/keys",
    ],
)
def test_urls_that_are_refused(url: str):
    with pytest.raises(SettingsError, match=r"server\.auth\.jwks_url") as caught:
        checked_url(url)
    assert "password" not in str(caught.value)


def test_https_and_loopback_are_taken():
    for url in ("https://id.example/keys", "http://localhost:1/keys", "http://[::1]:1/keys"):
        assert checked_url(url) == url
