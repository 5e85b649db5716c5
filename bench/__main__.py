"""`python -m bench`: the benchmarks, on the screen and in bench/results/latest.md and latest.json."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from pathlib import Path

from bench.runner import RESULTS, Run, Size, fresh_folder, publish, run_sections, verdict, write_results
from bench.sections import SECTIONS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="all rows at full size (an hour)")
    size.add_argument(
        "--quick", action="store_true", help="a smoke run of a few seconds, without peers: no figures to use"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only sections whose name starts so"
    )
    parser.add_argument("--list", action="store_true", help="name the sections and leave")
    parser.add_argument("--dir", help="where to put the stores (default: the system's temporary folder)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write latest.md and latest.json")
    parser.add_argument("--publish", action="store_true", help="put the run into docs/internals/benchmarks.md, too")
    options = parser.parse_args(arguments)
    if options.list:
        for section in SECTIONS:
            print(f"{section.name:16} {section.about}")
        return 0
    chosen = [s for s in SECTIONS if not options.only or any(s.name.startswith(name) for name in options.only)]
    if not chosen:
        parser.error(f"no section is named {', '.join(options.only)}: --list names them")
    kind: Size = "full" if options.full else "quick" if options.quick else "usual"
    chosen = [section for section in chosen if kind in section.sizes or options.only]
    logging.disable(logging.INFO)
    run = Run(kind, fresh_folder(options.dir))
    try:
        rows = run_sections(run, chosen)
        written = write_results(run, chosen, rows, options.results)
    finally:
        shutil.rmtree(run.folder, ignore_errors=True)
    if kind != "quick":
        run.console.print(verdict(rows), highlight=False, markup=False)
    if options.publish:
        publish(written[0].read_text())
    for path in written:
        run.say(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
