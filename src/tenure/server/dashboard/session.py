"""Signing in: a browser's token becomes a cookie that scripts cannot read.

    POST /session    {"token": "…"}     the token is verified, and returned as a cookie: HttpOnly, SameSite=Strict
    DELETE /session                     the cookie is removed

The cookie is the token: nothing is stored here, so any server with the same keys accepts it, and it ends with the
token. It is never in a URL, a log or a place that a script can read.

A browser sends cookies by itself, so a request signed in by one must come from this server's own page: the browser says
so (`Sec-Fetch-Site`, `Origin`), and a request that changes something must carry the header `Tenure-Dashboard`. Another
site's page would need permission (CORS) to send that header, which this server never gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

import msgspec
from msgspec import Struct

from tenure.errors import Forbidden, InvalidArgument, TooLarge

#: The second is for https: browsers accept that name for this host and path only.
COOKIE, SECURE_COOKIE = "tenure-token", "__Host-tenure-token"
PAGE_HEADER = "tenure-dashboard"
#: Browsers silently drop larger cookies.
MAX_TOKEN_BYTES = 3800
_SAFE = ("GET", "HEAD")


class SignIn(Struct, forbid_unknown_fields=True):
    token: str


def token_of(headers: Mapping[str, str]) -> str | None:
    """Return the token in the cookie; None without one, or with an Authorization header, which takes precedence."""
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
    """Check that this server's own page sent a request signed in by a cookie. Raises Forbidden."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Forbidden("another site's page sent this")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Forbidden("another site's page sent this")
    if method not in _SAFE and headers.get(PAGE_HEADER) != "1":
        raise Forbidden("a request that is signed in by a cookie and changes something needs 'Tenure-Dashboard: 1'")


def token_in(body: bytes) -> str:
    """Return the token of a sign-in request. Raises InvalidArgument, TooLarge."""
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
    """Return the header that keeps a token until the browser is closed; an empty token removes it."""
    name = SECURE_COOKIE if secure else COOKIE
    ends = "" if token else "; Max-Age=0"
    return f"{name}={token}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}{ends}"
