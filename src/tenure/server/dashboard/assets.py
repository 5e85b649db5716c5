"""The pages' files, read once, and the security headers for them.

    static/   our own: the dashboard (index.html), and the frame of the API reference (docs.html)
    viewer/   Swagger UI, which shows the API reference; the build puts it there (tools/api_viewer.py)

Pages load no script, style, font or image from another host, and run nothing inline. In the dashboard no text can
become markup (`require-trusted-types-for`): it creates elements, never HTML from strings. Swagger UI makes HTML from
the descriptions in the server's own OpenAPI.
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

_OWN_ONLY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; img-src 'self'"
)
_NO_MARKUP = "; require-trusted-types-for 'script'; trusted-types 'none'"
#: Swagger UI's style embeds its icons as data URLs.
_ICONS = " data:"
_FOR_ALL = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
)


def headers_of(name: str) -> tuple[tuple[str, str], ...]:
    """Return the headers for a file."""
    return (("Content-Security-Policy", _OWN_ONLY + (_ICONS if name == "docs.html" else _NO_MARKUP)), *_FOR_ALL)


class Asset(NamedTuple):
    content_type: str
    body: bytes
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """Return all files, by name."""
    return {name: asset for folder in ("static", "viewer") for name, asset in read_assets(folder).items()}


def read_assets(folder: str) -> dict[str, Asset]:
    """Return the files of `static` or `viewer`, by name."""
    found = {}
    for file in files("tenure.server.dashboard").joinpath(folder).iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in _TYPES:
            body = file.read_bytes()
            found[file.name] = Asset(_TYPES[kind], body, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
