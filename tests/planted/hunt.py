"""Plants each bug in a copy of the sources, and lets the simulation look for it.

python -m tests.planted.hunt                 all, as a table: how each was found, and how fast
python -m tests.planted.hunt "a token is given twice"
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.planted.bugs import BUGS, ROOT, Bug

#: Seconds of a core within which a bug must be found.
PATIENCE = 60.0


class Catch(NamedTuple):
    """How a bug was found. `how` is empty if it was not."""

    seconds: float
    #: Of those, seconds of a core.
    cpu: float
    seed: int
    how: str


def planted(bug: Bug, folder: Path) -> Path:
    """A copy of the sources with the bug in it. Requires: it fits."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "static"))
    static = Path("tenure", "server", "dashboard", "static")  # large, and the same in each copy
    (source / static).symlink_to(ROOT / "src" / static)
    file = source / "tenure" / bug.file
    file.write_text(file.read_text().replace(bug.right, bug.wrong))
    return source


def hunt(bug: Bug, patience: float = PATIENCE) -> Catch:
    """Look for the bug with the simulation, in a process that imports the copy."""
    with tempfile.TemporaryDirectory(prefix="tenure-planted-") as folder:
        source = planted(bug, Path(folder))
        environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "tests.planted.hunt", "--here", str(source), str(patience)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        return Catch(seconds, cpu, 0, "it does not start: " + done.stderr[-300:])
    seed, _, how = done.stdout.partition("\n")
    return Catch(seconds, cpu, int(seed), how.strip())


def here(source: str, patience: float) -> None:
    """In the process with the bug: prints the seed of the first history that fails, and how it fails."""
    import tenure
    from tests.simulation.shrinking import failure_of
    from tests.simulation.world import History

    logging.disable(logging.CRITICAL)
    assert tenure.__file__.startswith(source), f"{tenure.__file__} is not the copy"
    seed = 0
    while time.process_time() < patience:
        failed = failure_of(History(seed))
        if failed is not None:
            print(seed, failed, sep="\n")
            return
        seed += 1
    print(seed)


def main(names: Sequence[str]) -> int:
    missed = 0
    for bug in BUGS:
        if names and bug.name not in names:
            continue
        if not bug.fits():
            print(f"{bug.name:55} no longer fits {bug.file}")
            continue
        catch = hunt(bug)
        missed += not catch.how
        how = " ".join(catch.how.split())[:110]
        print(
            f"{bug.name:55} {catch.seconds:5.1f} s ({catch.cpu:4.1f} of a core)  seed {catch.seed:>4}  {how or 'NOT FOUND'}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(sys.argv[2], float(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))
