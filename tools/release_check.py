"""Build the wheel and the sdist, and use the wheel in a new environment: `make release-check`.

    pyproject.toml ──▶ dist/*.whl, dist/*.tar.gz ──▶ a wheel from the sdist ──▶ the same files?
                            └──▶ a new virtual environment, away from the clone ──▶ import, `tenure --version`, one job's life

Everything but `dist/` is removed at the end. It needs the package index for the pinned dependencies, and raises SystemExit
with the reason if a step fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Files that are no Python modules: a build that forgets one works in the clone and fails for users.
DATA = ("tenure/py.typed", "tenure/server/capnp/tenure.capnp", "tenure/backends/redis/lua/")

#: One job's life on the default engine, as the README has it.
LIFE = """
import tenure
with tenure.open("rocksdb:./data") as store:
    queue = store.queue("emails")
    queue.enqueue(b"to ada")
    with queue.claim(limit=10, lease=30) as claim:
        for delivery in claim:
            assert delivery.payload == b"to ada"
            queue.ack(delivery)
    assert queue.counts().waiting == 0
    assert store.check().clean
print(tenure.__version__, tenure.__file__)
"""


def build(source: Path, target: Path) -> tuple[Path, Path]:
    """The wheel and the sdist that a source tree makes. Needs hatchling in this environment."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(target), where=source)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def contents(wheel: Path) -> list[str]:
    """The names of a wheel's files, in order."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def check_contents(wheel: Path) -> None:
    """Raise SystemExit if the wheel lacks a file that only users would miss, or has one that is not the package's."""
    names = contents(wheel)
    for wanted in DATA:
        if not any(name.startswith(wanted) for name in names):
            raise SystemExit(f"release-check: {wheel.name} has no {wanted}")
    packages = ("tenure/", "pyspark_tenure/", f"tenure-{PROJECT['version']}.dist-info/")
    for name in names:
        if not name.startswith(packages):
            raise SystemExit(f"release-check: {wheel.name} has {name}, which is not part of the package")


def check_changelog() -> None:
    """Raise SystemExit unless the changelog has a section for the version, or for what is not released yet."""
    sections = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    if not sections or not sections[0].startswith(("## Unreleased", f"## {PROJECT['version']}")):
        raise SystemExit(f"release-check: CHANGELOG.md does not begin with 'Unreleased' or {PROJECT['version']}")


def run(*command: str, where: Path) -> str:
    """Run a command without this clone's settings and paths; return what it printed, or raise SystemExit."""
    surroundings = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("TENURE_")
    }
    done = subprocess.run(command, cwd=where, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"release-check: {' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def main() -> None:
    check_changelog()
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    for old in (*dist.glob("*.whl"), *dist.glob("*.tar.gz")):
        old.unlink()
    wheel, sdist = build(ROOT, dist)
    check_contents(wheel)
    print(f"built {wheel.name} ({len(contents(wheel))} files) and {sdist.name}")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch / "sdist", filter="data")
        (unpacked,) = (scratch / "sdist").iterdir()
        rebuilt, _ = build(unpacked, scratch / "rebuilt")
        if contents(rebuilt) != contents(wheel):
            raise SystemExit("release-check: the sdist builds a wheel with other files than the clone does")
        print("the sdist builds the same wheel")

        venv.create(scratch / "venv", with_pip=True)
        binaries = scratch / "venv" / "bin"
        pip = (str(binaries / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q")
        run(*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "base.txt"), where=scratch)
        run(*pip, "--no-deps", str(wheel), where=scratch)
        said = run(str(binaries / "tenure"), "--version", where=scratch)
        if PROJECT["version"] not in said:
            raise SystemExit(f"release-check: tenure --version says {said!r}, and pyproject.toml {PROJECT['version']}")
        version, file = run(str(binaries / "python"), "-I", "-W", "error", "-c", LIFE, where=scratch).split()
        if version != PROJECT["version"] or not file.startswith(str(scratch)):
            raise SystemExit(f"release-check: imported {version} from {file}")
        run(str(binaries / "tenure"), "enqueue", "emails", "hello", "--store", "rocksdb:./data", where=scratch)
        run(str(binaries / "tenure"), "check", "--store", "rocksdb:./data", where=scratch)
    print(f"{wheel.name} works in a new environment: import, {said}, enqueue, claim, ack and check on rocksdb")


if __name__ == "__main__":
    main()
