"""The client's token, and its renewal from a file.

A worker outlives its tokens. A token from a file is read again when the server refuses it, so the issuer of tokens only
has to replace the file.
"""

from __future__ import annotations

import re
from pathlib import Path

from tenure.errors import SettingsError

#: The characters of a token: none that could end the header.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+\Z")


class Credentials:
    def __init__(self, token: str | None = None, file: str | None = None) -> None:
        """Raises SettingsError."""
        if token and file:
            raise SettingsError("storage.http.token and storage.http.token_file are set: take one of them out")
        self._file = None if file is None else Path(file).expanduser()
        self._token = _checked(token, "storage.http.token") if token else None
        if self._file is not None:
            self._token = self._read()

    def __repr__(self) -> str:
        return "Credentials(...)"

    @property
    def header(self) -> str:
        """The Authorization header, or nothing."""
        return "" if self._token is None else f"Authorization: Bearer {self._token}\r\n"

    def renew(self) -> bool:
        """Read the file again; return whether it has another token than the refused one."""
        if self._file is None:
            return False
        before, self._token = self._token, self._read()
        return self._token != before

    def _read(self) -> str:
        assert self._file is not None
        try:
            return _checked(self._file.read_text().strip(), f"storage.http.token_file = {str(self._file)!r}")
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsError(f"storage.http.token_file = {str(self._file)!r}: {exc}") from None


def _checked(token: str, source: str) -> str:
    if not _TOKEN.match(token):
        raise SettingsError(f"{source}: that is not a token")  # the message does not show the text
    return token
