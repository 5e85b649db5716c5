"""Hatch's build hook: adds Swagger UI's files, with which `/docs` shows the API, to the package when it is built.

    swagger-ui-dist 5.33.1, as npm has it ──▶ drf-spectacular-sidecar, which carries it on PyPI ──▶ FOLDER ──▶ the wheel

They are not in the repository. Each file must have the digest below, which is that of the npm package's file. `make
setup` runs this, too: an editable install is a build.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CARRIER = "drf-spectacular-sidecar==2026.10.1"
_INSIDE = "drf_spectacular_sidecar/static/drf_spectacular_sidecar/swagger-ui-dist"
FOLDER = "src/tenure/server/dashboard/viewer"
FILES = {
    "swagger-ui-bundle.js": "050bc415ee7048dcd881682678f720264e7da5e373f7461d7c58c755305255f7",
    "swagger-ui.css": "1ac324f7dcd27e4b9386b4bd6421271ec147e922a22c05ba24b11515e9aa6321",
    "LICENSE": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
}


class ApiViewer(BuildHookInterface):  # type: ignore[type-arg]  # of a builder's settings, which it does not look at
    """The build hook, named in pyproject.toml, `tool.hatch.build.hooks.custom`."""

    def dependencies(self) -> list[str]:
        """Return the package with the files, unless they are there already, as in an sdist."""
        return [CARRIER] if missing(Path(self.root)) else []

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        put_files(Path(self.root))


def missing(root: Path) -> list[str]:
    """Return the files that are missing, or have another digest."""
    return [name for name, digest in FILES.items() if _digest(root / FOLDER / name) != digest]


def put_files(root: Path) -> None:
    """Copy the missing files from the installed package.

    Raises SystemExit if it is not installed, or has other files.
    """
    for name in missing(root):
        try:
            source = Path(str(metadata.distribution(CARRIER.partition("==")[0]).locate_file(f"{_INSIDE}/{name}")))
        except metadata.PackageNotFoundError:
            raise SystemExit(
                f"Swagger UI's files are missing: pip install --no-deps {CARRIER} (make setup does)"
            ) from None
        if _digest(source) != FILES[name]:
            raise SystemExit(f"{name} of the installed {CARRIER.partition('==')[0]} is not that of {CARRIER}")
        (root / FOLDER).mkdir(exist_ok=True)
        (root / FOLDER / name).write_bytes(source.read_bytes())


def _digest(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
