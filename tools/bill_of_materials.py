"""List the packages of an installed Tenure: `python bill_of_materials.py`, run by a clean environment's interpreter.

Prints one JSON document: a CycloneDX 1.6 bill of materials, with the licence and the installed size of each package.
Needs the standard library only, so that the environment stays clean.
"""

from __future__ import annotations

import json
import platform
from importlib.metadata import Distribution, distributions

#: Part of every environment, not installed with Tenure.
TOOLS = {"pip", "setuptools", "wheel"}


def licence(package: Distribution) -> str:
    """Return the licence as the package declares it: an SPDX expression, else its classifiers, else free text."""
    about = package.metadata

    def declared(field: str) -> str:
        return str((about.get_all(field) or [""])[0]).strip()

    classified = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")
    ]
    return (
        declared("License-Expression") or ", ".join(classified) or declared("License").partition("\n")[0] or "unknown"
    )


def size(package: Distribution) -> int:
    """Return the bytes of its installed files."""
    total = 0
    for file in package.files or ():
        path = package.locate_file(file)
        total += path.stat().st_size if path.is_file() else 0  # type: ignore[attr-defined]  # a path, where files are
    return total


def component(package: Distribution) -> dict[str, object]:
    name = package.metadata["Name"]
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{package.version}",
        "licenses": [{"license": {"name": licence(package)}}],
        "properties": [{"name": "installed:bytes", "value": str(size(package))}],
    }


def main() -> None:
    found = {package.metadata["Name"]: package for package in distributions()}
    own = found.pop("tenure")
    parts = [component(package) for name, package in sorted(found.items()) if name.lower() not in TOOLS]
    print(
        json.dumps(
            {
                "bomFormat": "CycloneDX",
                "specVersion": "1.6",
                "version": 1,
                "metadata": {
                    "component": component(own) | {"type": "application"},
                    "properties": [{"name": "python", "value": platform.python_version()}],
                },
                "components": parts,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
