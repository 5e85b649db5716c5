"""Signing in: a browser's token becomes a cookie that scripts cannot read.

    POST /session    {"token": "…"}     the token is verified, and comes back as a cookie: HttpOnly, SameSite=Strict
    DELETE /session                     the cookie is removed

The cookie is the token: nothing is kept here, so any server of the same keys knows it, and it ends when the token does.
It never is in a URL, a log or a place that a script can read.

A browser sends cookies on its own, so a request that is signed in by one has to come from this server's own page: the
browser says so (`Sec-Fetch-Site`, `Origin`), and what changes something carries the header `Tenure-Dashboard`, which
another site's page cannot send without being asked for permission first, which this server never gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

import msgspec
from msgspec import Struct

from tenure.errors import Forbidden, InvalidArgument, TooLarge

#: Of a server that speaks https, the name that browsers accept for this host and path alone.
COOKIE, SECURE_COOKIE = "tenure-token", "__Host-tenure-token"
PAGE_HEADER = "tenure-dashboard"
#: Browsers drop larger cookies without a word.
MAX_TOKEN_BYTES = 3800
_SAFE = ("GET", "HEAD")


class SignIn(Struct, forbid_unknown_fields=True):
    token: str


def token_of(headers: Mapping[str, str]) -> str | None:
    """The token in the cookie; None: there is none, or the request has an Authorization header, which goes first."""
    if "authorization" in headers or "cookie" not in headers:
        return None
    try:
        found = SimpleCookie(headers["cookie"])
    except CookieError:
        return None
    for name in (SECURE_COOKIE, COOKIE):
        if name in found and found[name].value:
            return found[name].value
    return None


def check_own_page(method: str, headers: Mapping[str, str]) -> None:
    """Whether this server's own page sent a request that is signed in by a cookie. Raises Forbidden."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Forbidden("another site's page sent this")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Forbidden("another site's page sent this")
    if method not in _SAFE and headers.get(PAGE_HEADER) != "1":
        raise Forbidden("a request that is signed in by a cookie and changes something needs 'Tenure-Dashboard: 1'")


def token_in(body: bytes) -> str:
    """The token of a request to sign in. Raises InvalidArgument, TooLarge."""
    try:
        token = msgspec.json.decode(body, type=SignIn).token.strip()
    except (msgspec.DecodeError, ValueError):
        raise InvalidArgument("signing in takes an object with a token") from None
    if len(token) > MAX_TOKEN_BYTES:
        raise TooLarge("the token", len(token), MAX_TOKEN_BYTES)
    if not token or any(not ("!" <= sign <= "~") or sign in '",;\\' for sign in token):
        raise InvalidArgument("that is no token")
    return token


def cookie(token: str, secure: bool) -> str:
    """The header that keeps a token until the browser is closed; an empty token removes it."""
    name = SECURE_COOKIE if secure else COOKIE
    ends = "" if token else "; Max-Age=0"
    return f"{name}={token}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}{ends}"
