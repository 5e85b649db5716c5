"""Find the operation for a method and a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from tenure.errors import InvalidArgument, NotFound
from tenure.protocol.calls import Operation
from tenure.protocol.operations import OPERATIONS


class WrongMethod(InvalidArgument):
    """The path exists, but not for this method."""

    def __init__(self, path: str, method: str, allowed: Sequence[str]) -> None:
        self.allowed = allowed
        super().__init__(f"{path} takes {', '.join(allowed)}, not {method}")


class Routes:
    def __init__(self, operations: Mapping[str, Operation] = OPERATIONS) -> None:
        # A tree of dicts by path segment; the key "methods" holds the operations by method.
        self._root: dict[str, Any] = {}
        for operation in operations.values():
            node = self._root
            for word in operation.path.split("/")[1:]:
                node = node.setdefault("{}" if word[0] == "{" else word, {})
                if word[0] == "{":
                    node["name"] = word[1:-1]
            node.setdefault("methods", {})[operation.method] = operation

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        """Return the operation and the named segments of its path. Raises NotFound, WrongMethod."""
        node, named = self._root, {}
        for word in path.split("/")[1:]:
            below = node.get(word) if word not in ("name", "methods", "{}") else None
            if below is None:
                below = node.get("{}")
                if below is None or not word:
                    raise NotFound(f"there is nothing at {path}")
                named[below["name"]] = unquote(word) if "%" in word else word
            node = below
        methods = node.get("methods")
        if not methods:
            raise NotFound(f"there is nothing at {path}")
        operation: Operation | None = methods.get(method)
        if operation is None:
            raise WrongMethod(path, method, sorted(methods))
        return operation, named


ROUTES = Routes()
