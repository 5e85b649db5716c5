"""The server's settings; `settings.py` reads them.

A `Secret` never shows its text: not in a repr, a log line, an error or a traceback.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0, le=86_400, extra={"seconds": True})]
Leeway = Annotated[float, Meta(ge=0, le=60, extra={"seconds": True})]
Text = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(ge=1024, le=2**40, extra={"size": True})]
Number = Annotated[int, Meta(ge=1, le=1_000_000, extra={"number": True})]


class Secret:
    """Text that must not be shown. Empty: no secret is set."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(...)" if self._text else "Secret()"


class Auth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How callers are known. At most one of `secret`, `secret_file`, `key_file` and `jwks_url`; none: loopback only."""

    #: HS256, at least 32 bytes. Several, one a line: the first signs, all verify.
    secret: Secret = Secret()
    #: The same, from a file.
    secret_file: Text | None = None
    #: Public keys in PEM: RSA is RS256, Ed25519 is EdDSA.
    key_file: Text | None = None
    #: An identity provider's keys, by https.
    jwks_url: Text | None = None
    #: When to look whether that set has changed.
    jwks_max_age: Seconds = 300.0
    #: How long a key that is no longer in the set stays trusted.
    jwks_overlap: Seconds = 600.0
    #: Between two fetches, however many tokens name a key that is not known.
    jwks_min_interval: Seconds = 30.0
    issuer: Text = "tenure"
    audience: Text = "tenure"
    #: The claim that names the tenant.
    tenant_claim: Text = "tenant"
    #: By how much clocks may differ.
    leeway: Leeway = 5.0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one request may ask for. Past it: a problem of its own, and nothing is done."""

    #: A request's body, as it is sent.
    body: Size = 64 * 1024**2
    #: The same where it is compressed, once it is opened.
    inflated: Size = 64 * 1024**2
    #: Its line and headers.
    head: Size = 32 * 1024
    #: Jobs enqueued, receipts settled or ids named by one request.
    batch: Number = 10_000
    #: Jobs of one claim.
    claim: Number = 10_000
    #: The longest lease.
    lease: Seconds = 86_400.0
    #: The longest wait; a caller that asks for more is answered then, and may ask again.
    wait: Seconds = 60.0
    #: Payloads of one claim: the rest is left for the next.
    answer: Size = 32 * 1024**2
    #: Bodies of all requests that are being read or carried out.
    bodies: Size = 512 * 1024**2
    #: Free space of the store's disk that is kept for the store's own work; at most a twentieth of the disk.
    free: Size = 256 * 1024**2
    #: Seconds in which a connection must send a request's head, and may stand still in a body or an answer.
    idle: Seconds = 30.0
    #: Connections at once; 0, and at most: three quarters of the process's limit of handles.
    connections: Annotated[int, Meta(ge=0, le=1_000_000, extra={"number": True})] = 0


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: A certificate with its chain, in PEM; `key` goes with it.
    cert: Text | None = None
    #: Its private key, in PEM.
    key: Text | None = None


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    auth: Auth = Auth()
    limits: Limits = Limits()
    tls: Tls = Tls()
    #: A line of log for every request, which says who asked for what and how it ended.
    log_requests: bool = True
    #: Show /metrics to everyone, not only to operators.
    open_metrics: bool = False
    #: Where else to serve /metrics, to everyone who gets there: HOST:PORT.
    metrics_bind: Text | None = None
