"""`make release-check`: build the wheel and the sdist, and use the wheel in a new environment of each installed Python.

    pyproject.toml ──▶ dist/*.whl, dist/*.tar.gz ──▶ a wheel from the sdist ──▶ the same files?
         └──▶ for each Python: a new virtual environment, away from the clone ──▶ import, `tenure --version`, one job's life
         └──▶ in the first of them: a user's program by mypy and pyright; the licences and sizes of what was installed
              (dist/tenure-VERSION.cdx.json, a CycloneDX bill of materials; dist/LICENCES.md)

Everything but `dist/` is removed at the end. It needs the package index for the pinned dependencies, and raises
SystemExit with the reason if a step fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Files that are no Python modules: a build that omits one works in the clone and fails for users.
VIEWER = tuple(
    f"tenure/server/dashboard/viewer/{name}" for name in ("NOTICE", "LICENSE", "swagger-ui-bundle.js", "swagger-ui.css")
)
DATA = ("tenure/py.typed", "tenure/server/capnp/tenure.capnp", "tenure/backends/redis/lua/", *VIEWER)

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")

#: One job's life on the default engine, as in the README.
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
    """Build and return the wheel and the sdist of a source tree. Needs hatchling in this environment."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(target), where=source)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def contents(wheel: Path) -> list[str]:
    """Return the names of a wheel's files, in order."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def check_contents(wheel: Path) -> None:
    """Raise SystemExit if the wheel lacks a file that only users would miss, or has one that does not belong to the
    package.
    """
    names = contents(wheel)
    for wanted in DATA:
        if not any(name.startswith(wanted) for name in names):
            raise SystemExit(f"release-check: {wheel.name} has no {wanted}")
    packages = ("tenure/", "tenure_command/", "pyspark_tenure/", f"tenure-{PROJECT['version']}.dist-info/")
    for name in names:
        if not name.startswith(packages):
            raise SystemExit(f"release-check: {wheel.name} has {name}, which is not part of the package")


def check_changelog() -> None:
    """Raise SystemExit unless the changelog has a section for the version, or for unreleased changes."""
    sections = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    if not sections or not sections[0].startswith(("## Unreleased", f"## {PROJECT['version']}")):
        raise SystemExit(f"release-check: CHANGELOG.md does not begin with 'Unreleased' or {PROJECT['version']}")


def run(*command: str, where: Path) -> str:
    """Run a command without this clone's settings and paths; return its output, or raise SystemExit."""
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

        for index, python in enumerate(pythons()):
            environment = scratch / f"python-{index}"
            version = try_wheel(python, wheel, environment)
            print(f"{wheel.name} works with {version}: import, enqueue, claim, ack and check on rocksdb")
            if index == 0:
                check_types(environment)
                write_bill(environment, dist)


def pythons() -> list[str]:
    """Return this interpreter, and one of each other supported version that can create environments."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    installed = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[1-9]*/bin/python3"))
    for candidate in (*(f"python3.{minor}" for minor in range(11, 15)), *map(str, installed)):
        probe = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run(
            ["sh", "-c", f'exec {candidate} -c "{probe}"'], capture_output=True, text=True, check=False
        )
        version = done.stdout.strip()
        if done.returncode == 0 and version in SUPPORTED:
            found.setdefault(version, candidate)
    return list(found.values())


def try_wheel(python: str, wheel: Path, environment: Path) -> str:
    """Install the wheel with the pinned dependencies, and use it. Return the Python's version."""
    run(python, "-m", "venv", str(environment), where=environment.parent)
    here = environment / "work"
    here.mkdir()
    inside, tenure = str(environment / "bin" / "python"), str(environment / "bin" / "tenure")
    pip = (inside, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    run(*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "base.txt"), where=here)
    run(*pip, "--no-deps", str(wheel), where=here)
    printed = run(tenure, "--version", where=here)
    if PROJECT["version"] not in printed:
        raise SystemExit(f"release-check: tenure --version says {printed!r}, and pyproject.toml {PROJECT['version']}")
    version, file = run(inside, "-I", "-W", "error", "-c", LIFE, where=here).split()
    if version != PROJECT["version"] or not file.startswith(str(environment)):
        raise SystemExit(f"release-check: imported {version} from {file}")
    run(tenure, "enqueue", "emails", "hello", "--store", "rocksdb:./data", where=here)
    run(tenure, "check", "--store", "rocksdb:./data", where=here)
    return run(inside, "--version", where=here)


def check_types(environment: Path) -> None:
    """Run type checkers on a user's program with the installed package, to verify `py.typed`."""
    program = environment / "work" / "user_program.py"
    program.write_text((ROOT / "tests" / "packaging" / "user_program.py").read_text())
    inside = str(environment / "bin" / "python")
    run(sys.executable, "-m", "mypy", "--strict", "--python-executable", inside, program.name, where=program.parent)
    print("mypy --strict: a user's program is well typed")
    if importlib.util.find_spec("basedpyright") is None:
        print("pyright: not checked, basedpyright is not installed (requirements/release.txt)")
        return
    run(
        sys.executable,
        "-m",
        "basedpyright",
        "--level",
        "error",
        "--pythonpath",
        inside,
        program.name,
        where=program.parent,
    )
    print("pyright: likewise")


def write_bill(environment: Path, dist: Path) -> None:
    """Write the bill of materials, and the same as a table for people."""
    inside = str(environment / "bin" / "python")
    text = run(inside, "-I", str(ROOT / "tools" / "bill_of_materials.py"), where=environment / "work")
    (dist / f"tenure-{PROJECT['version']}.cdx.json").write_text(text + "\n")
    bill = json.loads(text)
    rows, total = [], 0
    for part in (bill["metadata"]["component"], *bill["components"]):
        size = int(part["properties"][0]["value"])
        total += size
        rows.append(
            f"| {part['name']} | {part['version']} | {part['licenses'][0]['license']['name']} | {size / 2**20:.1f} |"
        )
        if part["licenses"][0]["license"]["name"] == "unknown":
            raise SystemExit(f"release-check: {part['name']} does not say under which licence it is")
    head = "| package | version | licence | MiB installed |\n| --- | --- | --- | ---: |\n"
    (dist / "LICENCES.md").write_text("# What is installed with Tenure\n\n" + head + "\n".join(rows) + "\n")
    print(f"{len(rows)} packages, {total / 2**20:.0f} MiB installed: dist/LICENCES.md")


if __name__ == "__main__":
    main()
