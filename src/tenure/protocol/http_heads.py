"""Parse HTTP request heads and render replies, for the listener."""

from __future__ import annotations

from tenure.protocol.dispatcher import Reply

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict",
            405: "Method Not Allowed", 413: "Content Too Large", 429: "Too Many Requests", 500: "Internal Server Error",
            503: "Service Unavailable"}  # fmt: skip


def parse(head: str) -> tuple[str, str, dict[str, str]]:
    """Return method, target and headers (lower-case names) of a request; the method is empty if it is not HTTP/1.1."""
    line, _, rest = head.partition("\r\n")
    words = line.split(" ")
    headers: dict[str, str] = {}
    for header in rest.split("\r\n"):
        name, colon, value = header.partition(":")
        if colon:
            headers[name.lower()] = value.strip()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", "", headers
    return words[0], words[1], headers


def render(reply: Reply, keep: bool) -> bytes:
    """Return a reply as bytes. `keep`: the connection stays open."""
    status, content_type, body, extra = reply
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    for name, value in extra:
        head += f"{name}: {value}\r\n"
    head += "\r\n" if keep else "Connection: close\r\n\r\n"
    return head.encode("latin-1") + body
