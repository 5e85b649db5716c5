"""The options of a load or a save, checked once: an option that is not known is an error, not a shrug."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tenure.errors import InvalidArgument


def checked(options: Mapping[str, str], known: Collection[str], what: str) -> dict[str, str]:
    """The options by their proper names. Spark does not tell upper from lower case in them, so neither does this."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in options.items():
        name = names.get(key.lower())
        if name is None:
            raise InvalidArgument(f"unknown option {key!r} of {what}: it takes {', '.join(sorted(known))}")
        found[name] = value
    return found


def url_of(options: Mapping[str, str]) -> str:
    url = options.get("url")
    if not url:
        raise InvalidArgument('no store is named: .option("url", "rocksdb:/path"), or lmdb:/path, or http://host:port')
    return url


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise InvalidArgument(f"option {name}={value!r}: true or false")
    return value.lower() == "true"


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
