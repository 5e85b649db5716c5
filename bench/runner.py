"""A run: its folder and size, the sections in order, and the reports of their rows (a table, Markdown, JSON)."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import chart
from bench.rows import Row, number

T = TypeVar("T")
Size = Literal["quick", "usual", "full"]
RESULTS = Path(__file__).parent / "results"
PERFORMANCE = Path(__file__).parents[1] / "docs" / "internals" / "benchmarks.md"
_BEGIN, _END = "<!-- run: begin -->", "<!-- run: end -->"
HEADINGS = (
    "what",
    "batch",
    "payload",
    "clients",
    "durability",
    "figure",
    "lowest - highest",
    "ratio",
    "target",
    "note",
)


@dataclass
class Run:
    """How much a section should do, and where."""

    size: Size
    folder: Path
    console: Console = field(default_factory=lambda: _console())
    _made: int = 0

    @property
    def rounds(self) -> int:
        return {"quick": 1, "usual": 7, "full": 11}[self.size]

    @property
    def seconds(self) -> float:
        """The seconds of one contender's round."""
        return {"quick": 0.02, "usual": 0.3, "full": 0.5}[self.size]

    def pick(self, quick: T, usual: T, full: T) -> T:
        return {"quick": quick, "usual": usual, "full": full}[self.size]

    def new_folder(self, name: str) -> Path:
        self._made += 1
        return self.folder / f"{self._made:03d}-{name}"

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{escape(text)}[/dim]", highlight=False)


@dataclass(frozen=True)
class Section:
    name: str
    about: str
    #: What a ratio in it means.
    ratio: str
    rows: Callable[[Run], Iterator[Row]]
    sizes: Sequence[Size] = ("quick", "usual", "full")


def run_sections(run: Run, sections: Sequence[Section]) -> list[Row]:
    """Run the sections in order, each in its own folders, and show each as soon as it is complete."""
    rows: list[Row] = []
    for section in sections:
        began = time.monotonic()
        found = list(section.rows(run))
        if run.size == "quick":
            for row in found:
                row.targets.clear()  # the figures of a quick run mean nothing
        rows += found
        show(run.console, section, found)
        run.say(f"{section.name}: {time.monotonic() - began:.0f} s")
        for left in run.folder.iterdir():
            shutil.rmtree(left, ignore_errors=True)
    return rows


def fresh_folder(inside: str | None) -> Path:
    """Return a folder for the run, readable by the account that a server may have to run as."""
    made = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=inside))
    made.chmod(0o755)
    return made


# ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def cells(row: Row) -> tuple[str, ...]:
    if row.skipped:
        return (row.what, *row.setting.columns(), "skipped", "", "", "", row.skipped)
    between = (
        "" if row.low is None or row.high is None else f"{number(row.low, row.unit)} - {number(row.high, row.unit)}"
    )
    targets = "; ".join(str(target) for target in row.targets)
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return (
        row.what, *row.setting.columns(), f"{number(row.value, row.unit)} {row.unit}".strip(), between, ratio, targets,
        row.note,
    )  # fmt: skip


def show(console: Console, section: Section, rows: Sequence[Row]) -> None:
    """Print the section: conditions in one column, notes below."""
    made = Table(
        title=f"{section.name}: {section.about}", title_justify="left", title_style="bold", box=SIMPLE_HEAD,
        caption=f"ratio: {section.ratio}", caption_justify="left",
    )  # fmt: skip
    for heading in ("what", "batch · payload · clients · durability", "figure", "lowest - highest", "ratio", "target"):
        right = heading in ("figure", "lowest - highest", "ratio")
        made.add_column(heading, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        style = "dim" if row.skipped else "red" if row.missed else ""
        what, *setting, figure, between, ratio, targets, _ = (escape(cell) for cell in cells(row))
        made.add_row(what, " · ".join(setting), figure, between, ratio, targets, style=style)
    console.print(made)
    for row in rows:
        note = row.skipped or row.note
        if note:
            console.print(f"  [dim]{escape(row.what)}: {escape(note)}[/dim]", highlight=False, soft_wrap=True)


def facts(run: Run) -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "size": run.size,
        "machine": f"{os.cpu_count()} cores, {_memory()}, {platform.system()} {platform.release()}, {_filesystem(run.folder)}",
        "load": f"{os.getloadavg()[0]:.1f} at the end, {os.getloadavg()[2]:.1f} over 15 minutes",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in ("tenure", "rocksdict", "lmdb")),
        "sync": f"one 4 KiB write and fdatasync: {_sync_us(run.folder):,.0f} µs (median of 50)",
    }


def markdown(run: Run, sections: Sequence[Section], rows: Sequence[Row], about: dict[str, str]) -> str:
    lines = [f"- {name}: {text}" for name, text in about.items()]
    for section in sections:
        mine = [row for row in rows if row.section == section.name]
        if not mine:
            continue
        lines += ["", f"### {section.name}", "", f"{section.about}. Ratio: {section.ratio}.", ""]
        lines += ["| " + " | ".join(HEADINGS) + " |", "| " + " | ".join("---" for _ in HEADINGS) + " |"]
        lines += ["| " + " | ".join(cell.replace("|", "/") for cell in cells(row)) + " |" for row in mine]
    return "\n".join(lines) + "\n"


def write_results(run: Run, sections: Sequence[Section], rows: Sequence[Row], into: Path) -> list[Path]:
    about = facts(run)
    into.mkdir(parents=True, exist_ok=True)
    name = "quick" if run.size == "quick" else "latest"
    as_markdown, as_json = into / f"{name}.md", into / f"{name}.json"
    as_markdown.write_text(markdown(run, sections, rows, about))
    as_json.write_text(json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return [as_markdown, as_json]


def publish(text: str) -> None:
    """Write a run into the document, between its marks, and draw its chart."""
    document = PERFORMANCE.read_text()
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{PERFORMANCE} has no place for a run: it lacks {_BEGIN} and {_END}")
    PERFORMANCE.write_text(f"{before}{begin}\n{text}{end}{after}")
    chart.draw()


def verdict(rows: Sequence[Row]) -> str:
    targets = [target for row in rows for target in row.targets if target.must]
    if not targets:
        return "no targets in these sections"
    lines = [f"{sum(target.met for target in targets)} of {len(targets)} targets met"]
    for row in rows:
        ratio = "" if row.ratio is None else f", ratio {row.ratio:.2f}"
        lines += [
            f"  missed: {row.section}, {row.what}{ratio}: {target.text}"
            for target in row.targets
            if target.must and not target.met
        ]
    return "\n".join(lines)


def _console() -> Console:
    found = Console()
    return found if found.is_terminal else Console(width=130)  # into a file or a pipe: do not wrap


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 2**30:.0f} GiB"


def _filesystem(path: Path) -> str:
    best, kind = "", "unknown file system"
    for line in Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").exists() else []:
        _, mount, fstype = line.split()[:3]
        if str(path).startswith(mount) and len(mount) > len(best):
            best, kind = mount, fstype
    return kind


def _sync_us(folder: Path) -> float:
    times = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    (folder / "sync").unlink()
    return sorted(times)[25] * 1e6
