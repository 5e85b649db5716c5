"""Flips bytes, one at a time, in all files of a small store, and records the outcome of each; or cuts its logs.

    python -m tests.damage.flips --count 2000       prints the table
    python -m tests.damage.flips --every 1          every byte of a smaller store (of `SPARSE` files, every 64th)
    python -m tests.damage.flips --cut 1            its logs, cut after every byte

    refused at open   a typed error on opening
    Corrupt raised    by one of the questions
    another error     a typed error of one of the questions
    found by check    an answer may be wrong, and check() reports it
    process died      a crash (LMDB follows a damaged pointer out of its map)
    harmless          every answer equals the undamaged store's
    untyped           an exception that is not ours                          must be 0
    hung              no answer within a minute                              must be 0
    silent            an answer differs, and nothing reported it             must be 0

Each try runs in its own process, forked from one that never opened a store, so that a crash affects only that try.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tenure
import tenure.backends.embedded
import tenure.storage.engines.lmdb  # all loaded before the first fork
import tenure.storage.engines.rocksdb
from tenure.errors import Corrupt, TenureError
from tests.damage import contents

ROOT = Path(__file__).parents[2]
LOUD = ("refused at open", "Corrupt raised", "another error", "found by check", "process died")
WRONG = ("untyped", "hung", "silent")
OUTCOMES = (*LOUD, "harmless", *WRONG)
PATIENCE = 60.0
AT_ONCE = 2

#: The share of tries for each kind of file. Within a share files are equally likely, and bytes within a file.
SHARES = {
    "rocksdb": {
        "db/*.sst": 40, "db/*.log": 24, "db/MANIFEST-*": 12, "db/CURRENT": 4, "db/OPTIONS-*": 3, "db/IDENTITY": 2,
        "db/LOG*": 2, "db/rocksdict-config.json": 3, "FORMAT": 4, "OWNER": 2, "DURABLE": 4,
    },
    "lmdb": {"db/data.mdb": 86, "db/lock.mdb": 2, "FORMAT": 4, "OWNER": 2, "DURABLE": 6},
}  # fmt: skip


#: Files that the engine writes and does not read when it opens a store.
SPARSE = ("db/OPTIONS-*", "db/LOG*", "db/lock.mdb")
#: Files to which the engine appends.
LOGS = ("db/*.log", "db/MANIFEST-*")


class Flip(NamedTuple):
    """The bits `mask` of the byte at `offset` are flipped; with mask 0, the file ends there."""

    file: str
    offset: int
    mask: int


class Tried(NamedTuple):
    flip: Flip
    outcome: str
    detail: str


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


def build(engine: str, folder: Path, small: bool = False) -> contents.Known:
    """Fill a store in several phases; the last ends without closing, so that the log holds rows too."""
    code = "import sys; from tests.damage import flips; flips._build(*sys.argv[1:])"
    fill = "fill_small" if small else "fill"
    subprocess.run([sys.executable, "-c", code, engine, str(folder), fill], cwd=ROOT, check=True)
    (folder / "data" / "db" / "LOCK").unlink(missing_ok=True)
    known: contents.Known = json.loads((folder / "known.json").read_text())
    return known


def _build(engine: str, folder: str, fill: str) -> None:
    known: contents.Known = {}
    for phase in range(contents.PHASES):
        store = tenure.open(f"{engine}:{folder}/data", sweep=False, clock=contents.clock_at(phase))
        getattr(contents, fill)(store, phase, known)
        if phase < contents.PHASES - 1 or engine != "rocksdb":
            store.close()
    Path(folder, "known.json").write_text(json.dumps(known))
    os._exit(0)


def sample(engine: str, store: Path, count: int, chance: random.Random) -> list[Flip]:
    """`count` different flips, distributed over the shares."""
    shares = SHARES[engine]
    chosen: dict[Flip, None] = {}
    for pattern, share in shares.items():
        files = sorted(path for path in store.glob(pattern) if path.stat().st_size)
        assert files, f"the store has no {pattern} with bytes in it"
        wanted = max(2, count * share // 100)
        for _ in range(wanted):
            file = chance.choice(files)
            chosen[Flip(str(file.relative_to(store)), _offset(file, chance), _mask(chance))] = None
    first = next(iter(shares))
    files = sorted(store.glob(first))
    while len(chosen) < count:
        file = chance.choice(files)
        chosen[Flip(str(file.relative_to(store)), _offset(file, chance), _mask(chance))] = None
    found = list(chosen)
    chance.shuffle(found)
    return found[:count]


def each_byte(store: Path, step: int, chance: random.Random) -> list[Flip]:
    """A flip of every `step`-th byte of all files, and of every 64th of those in SPARSE."""
    found: list[Flip] = []
    sparse = {path for pattern in SPARSE for path in store.glob(pattern)}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        name, steps = str(path.relative_to(store)), step * 64 if path in sparse else step
        found += [Flip(name, at, 1 << chance.randrange(8)) for at in range(0, path.stat().st_size, steps)]
    return found


def cuts(store: Path, step: int, chance: random.Random) -> list[Flip]:
    """The logs, cut after every `step`-th byte up to the last that is not zero."""
    files = sorted(path for pattern in LOGS for path in store.glob(pattern))
    ends = [(str(path.relative_to(store)), len(path.read_bytes().rstrip(b"\0"))) for path in files]
    return [Flip(name, at, 0) for name, end in ends for at in range(chance.randrange(step), end, step)]


def _offset(file: Path, chance: random.Random) -> int:
    size = file.stat().st_size
    if file.name == "data.mdb" and chance.random() < 0.5:
        # Page headers: a flip there misleads without changing a row. The first two pages are the meta pages.
        page = chance.randrange(2) if chance.random() < 0.15 else chance.randrange(size // 4096)
        return page * 4096 + chance.randrange(96)
    return chance.randrange(size)


def _mask(chance: random.Random) -> int:
    return 1 << chance.randrange(8) if chance.random() < 0.6 else chance.randrange(1, 256)


def copy(source: Path, target: Path, flip: Flip | None) -> None:
    """Copy a store and apply the flip. Large files that are never written in place are linked, unless damaged."""
    (target / "db").mkdir(parents=True)
    for file in source.rglob("*"):
        name = file.relative_to(source)
        if not file.is_file():  # a folder, or an owner's socket
            continue
        if file.suffix in (".sst", ".log") and (flip is None or str(name) != flip.file):
            os.link(file, target / name)
        else:
            shutil.copyfile(file, target / name)
    if flip is not None:
        if not flip.mask:
            os.truncate(target / flip.file, flip.offset)
            return
        with (target / flip.file).open("r+b") as damaged:
            damaged.seek(flip.offset)
            (byte,) = damaged.read(1)
            damaged.seek(flip.offset)
            damaged.write(bytes([byte ^ flip.mask]))


# ── one try ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def answers(url: str, known: contents.Known) -> tuple[dict[str, str], str, str]:
    """Open the store and ask all questions. Returns the answers, and the first error's kind and text ("" if none)."""
    found: dict[str, str] = {}
    outcome = detail = ""
    try:
        store = tenure.open(url, sweep=False, clock=contents.clock_at(contents.PHASES))
    except TenureError as error:
        return found, "refused at open", f"{type(error).__name__}: {error}"
    for questions in (contents.looks, None, contents.verbs):
        if questions is None:
            with contextlib.suppress(Corrupt):  # a question has reported it already
                report = store.check()
                if report.findings and not outcome:
                    outcome, detail = "found by check", f"{report.findings[0].rule}: {report.findings[0].detail}"
                continue
            outcome = outcome or "Corrupt raised"
            continue
        for name, question in questions(store, known):
            try:
                found[name] = contents.answer(question)
            except TenureError as error:
                found[name] = type(error).__name__
                # InvalidArgument and LeaseLost are answers; only errors about the store's state count as reports.
                if isinstance(error, tenure.errors.StoreError) and outcome not in LOUD[:3]:
                    outcome = "Corrupt raised" if isinstance(error, Corrupt) else "another error"
                    detail = f"{name}: {type(error).__name__}: {error}"
    return found, outcome, detail


def judge(url: str, known: contents.Known, good: dict[str, str]) -> tuple[str, str]:
    try:
        found, outcome, detail = answers(url, known)
    except Exception as error:
        return "untyped", repr(error)
    if outcome:
        return outcome, detail
    wrong = [name for name, value in good.items() if found.get(name) != value]
    return ("silent", f"{len(wrong)} answers differ: {', '.join(wrong[:4])}") if wrong else ("harmless", "")


# ── many tries ───────────────────────────────────────────────────────────────────────────────────────────────────────


def run(engine: str, folder: Path, flips: Sequence[Flip]) -> list[Tried]:
    """Try each flip of the store in `folder`, in a separate server process (see `serve`)."""
    (folder / "flips.json").write_text(json.dumps(flips))
    code = "import sys; from tests.damage import flips; flips.serve(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, engine, str(folder)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    tried = [Tried(Flip(*line[0]), line[1], line[2]) for line in map(json.loads, done.stdout.splitlines())]
    assert len(tried) == len(flips), "a try is missing"
    return tried


def serve(engine: str, folder: str) -> None:
    """Fork a process for each try, a few at once, and print the outcomes. Opens no store itself."""
    base = Path(folder)
    known = json.loads((base / "known.json").read_text())
    good = _baseline(engine, base, known)
    running: dict[int, tuple[Flip, Path, float]] = {}
    todo = [Flip(*flip) for flip in json.loads((base / "flips.json").read_text())]
    for number, flip in enumerate(todo):
        while len(running) >= AT_ONCE:
            _reap(running)
        work = base / f"try-{number}"
        copy(base / "data", work / "data", flip)
        pid = _fork(partial(judge, f"{engine}:{work}/data", known, good), work)
        running[pid] = (flip, work, time.monotonic() + PATIENCE)
    while running:
        _reap(running)


def _baseline(engine: str, base: Path, known: contents.Known) -> dict[str, str]:
    """The undamaged store's answers. Two copies must give the same ones, or comparisons are meaningless."""
    found = []
    for name in ("good-1", "good-2"):
        copy(base / "data", base / name / "data", None)
        pid = _fork(partial(answers, f"{engine}:{base / name}/data", known), base / name)
        _, status = os.waitpid(pid, 0)
        assert status == 0, "asking the undamaged store failed"
        found.append(json.loads((base / name / "said").read_text()))
    assert found[0] == found[1], [k for k in found[0][0] if found[0][0][k] != found[1][0].get(k)]
    assert found[0][1] == "", f"the undamaged store complains: {found[0][1:]}"
    good: dict[str, str] = found[0][0]
    assert good
    return good


def _fork(work: Any, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # Capture the driver's own messages (an assertion, an abort).
        fd = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        (folder / "said").write_text(json.dumps(work()))
        code = 0
    finally:
        os._exit(code)


def _reap(running: dict[int, tuple[Flip, Path, float]]) -> None:
    for pid, (flip, work, deadline) in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            outcome = _said(status, work)
        elif time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            outcome = ["hung", ""]
        else:
            continue
        del running[pid]
        print(json.dumps([flip, *outcome]), flush=True)
        shutil.rmtree(work)
        return
    time.sleep(0.002)


def _said(status: int, work: Path) -> list[str]:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return ["process died", signal.Signals(-code).name]
    if code == 0:
        outcome: list[str] = json.loads((work / "said").read_text())
        return outcome
    return ["untyped", (work / "stderr").read_text()[-2000:]]


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(results: dict[str, list[Tried]]) -> str:
    """Outcomes by kind of file, for each engine."""
    lines = []
    for engine, tried in results.items():
        kinds: dict[str, Counter[str]] = {}
        for one in tried:
            kinds.setdefault(_kind(engine, one.flip.file), Counter())[one.outcome] += 1
        total = Counter(one.outcome for one in tried)
        shown = [name for name in OUTCOMES if total[name] or name in WRONG]
        widths = [max(len(name), 5) for name in shown]
        lines.append(f"{engine}: {len(tried)} flipped bytes, one at a time")
        lines.append("  ".join([" " * 22, *(name.rjust(width) for name, width in zip(shown, widths, strict=True))]))
        for kind, row in [*sorted(kinds.items()), ("all", total)]:
            cells = [str(row[name] or "·").rjust(width) for name, width in zip(shown, widths, strict=True)]
            lines.append("  ".join([kind.ljust(22), *cells]))
        lines.append("")
    return "\n".join(lines)


def _kind(engine: str, file: str) -> str:
    from fnmatch import fnmatch

    return next((pattern for pattern in SHARES[engine] if fnmatch(file, pattern)), file).removeprefix("db/")


def trial(engine: str, folder: Path, choose: Callable[[Path], list[Flip]], *, small: bool = False) -> list[Tried]:
    """Build a store and try the flips that `choose(store)` returns; assert that the linked files did not change."""
    folder.mkdir(parents=True, exist_ok=True)
    build(engine, folder, small)
    store = folder / "data"
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    tried = run(engine, folder, choose(store))
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    return tried


@contextlib.contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given)
    else:
        with tempfile.TemporaryDirectory(prefix="tenure-flips-") as made:
            yield Path(made)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("--count", type=int, default=2000, help="flips in all, half of them on each engine")
    options.add_argument("--every", type=int, metavar="N", help="flip every N-th byte of a smaller store's files")
    options.add_argument("--cut", type=int, metavar="N", help="cut a smaller store's logs after every N-th byte")
    options.add_argument("--seed", type=int, default=None)
    options.add_argument("--engine", choices=list(SHARES), action="append")
    options.add_argument("--folder", help="where to work; a temporary folder if not given")
    options.add_argument("--list", action="store_true", help="tell of every flip, and what came of it")
    given = options.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    engines = given.engine or list(SHARES)
    print(f"seed {seed}")
    results = {}
    with _folder(given.folder) as folder:
        for engine in engines:
            chance = random.Random(seed)
            choose = (
                partial(each_byte, step=given.every, chance=chance) if given.every
                else partial(cuts, step=given.cut, chance=chance) if given.cut
                else partial(sample, engine, count=given.count // len(engines), chance=chance)
            )  # fmt: skip
            results[engine] = trial(engine, folder / engine, choose, small=bool(given.every or given.cut))
    print(table(results))
    every = [one for tried in results.values() for one in tried]
    wrong = [one for one in every if one.outcome in WRONG]
    for one in every if given.list else wrong:
        print(f"{one.outcome}: {one.flip.file} at {one.flip.offset}, mask {one.flip.mask:02x}: {one.detail}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
