"""The options of a read or a write, checked once. An unknown option is an error.

Spark does not tell upper from lower case in the names of options, and neither does this module. The same holds for
values that are words of ours (`mode`, `onInvalid`, `table`, `startingOffsets`, `true`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tenure.errors import InvalidArgument

#: Options that Spark adds by itself: `.queryName(…)`, `.save(path)`, `.load(path)`, and every stream's checkpoint.
SPARKS_OWN = frozenset({"queryname", "path", "paths", "checkpointlocation"})


def checked(options: Mapping[str, str], known: Collection[str], what: str) -> dict[str, str]:
    """The options by their proper names, without those that Spark added. Raises InvalidArgument for an unknown one."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in options.items():
        name = names.get(key.lower())
        if name is not None:
            found[name] = value
        elif key.lower() not in SPARKS_OWN:
            raise InvalidArgument(f"unknown option {key!r} of {what}: it takes {', '.join(sorted(known))}")
    return found


def url_of(options: Mapping[str, str]) -> str:
    url = options.get("url")
    if not url:
        raise InvalidArgument(
            'no store is named: .option("url", "rocksdb:/path"), or lmdb:/path, or http://host:port'
            " (in SQL: OPTIONS (url '…') of a view, WITH (url = '…') behind a table's name)"
        )
    return url


def choice(options: Mapping[str, str], name: str, default: str, allowed: Collection[str] = ()) -> str:
    """A word, in lower case. Raises InvalidArgument if only some are `allowed` and it is none of them."""
    value = options.get(name) or default
    if allowed and value.lower() not in allowed:
        raise InvalidArgument(f"option {name}={value!r}: {' or '.join(allowed)}")
    return value.lower()


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    return choice(options, name, str(default).lower(), ("true", "false")) == "true"


def whole(options: Mapping[str, str], name: str, default: int, low: int = 1, high: int = 2**62) -> int:
    value = options.get(name)
    if value is None:
        return default
    try:
        number = int(value.replace("_", ""))
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise InvalidArgument(f"option {name}={value!r}: a whole number from {low} to {high}")
    return number
