"""The page's own files, read once, with the headers that a browser is held to.

No script, style, font or image of another host is loaded, nothing inline is run, and no text can become markup
(`require-trusted-types-for`): the page makes elements, never HTML from strings.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
)


class Asset(NamedTuple):
    content_type: str
    body: bytes
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """By name."""
    found = {}
    for file in files("tenure.server.dashboard").joinpath("static").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in _TYPES:
            body = file.read_bytes()
            found[file.name] = Asset(_TYPES[kind], body, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
