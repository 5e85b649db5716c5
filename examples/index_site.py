"""A flow: crawl → parse (1,000 pages, in parallel) → index → report, with workers that are killed on the way.

    python examples/index_site.py                                     1,000 pages, ten kills
    tenure worker examples/index_site.py --pool process               in production: as many as you like, anywhere

The flow is enqueued in one transaction. Each page is parsed by its own job, whose result is an argument of `index`; the
jobs of a killed worker go to the next one. `index` stores its parts as steps, which a later delivery does not repeat.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tenure import App, Flow, Policy, WaitTimeout, current_job
from tenure.worker.flow_handles import FlowHandle

app = App(
    os.environ.get("SITE_STORE", "rocksdb:./data"),
    policies={"site": Policy(lease=2, max_attempts=100)},
    queue="site",
)
WORDS = ("tenure", "lease", "token", "queue", "worker", "crash", "replay", "journal")


@app.task
def crawl(folder: Path, pages: int) -> Path:
    """Fetch a site: here, generated pages, the same at every attempt."""
    for number in range(pages):
        words = random.Random(number).choices(WORDS, k=50)
        (folder / f"{number}.txt").write_text(" ".join(words))
    return folder


@app.task
def parse(folder: Path, number: int) -> dict[str, int]:
    """Count the words of one page."""
    return dict(Counter((folder / f"{number}.txt").read_text().split()))


@app.task
def index(pages: list[dict[str, int]]) -> dict[str, int]:
    """Add the pages up in ten steps: a later delivery continues after the last stored one."""
    job = current_job()
    size = max(1, len(pages) // 10)
    added: Counter[str] = Counter()
    for first in range(0, len(pages), size):
        added.update(job.step(f"pages from {first}", _sum, pages[first : first + size]))
    return dict(added)


def _sum(pages: list[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, pages), Counter()))


@app.task
def report(found: dict[str, int]) -> str:
    return f"{sum(found.values())} words, {len(found)} different ones"


def start(folder: Path, pages: int) -> FlowHandle[str]:
    """Enqueue the whole flow: all of its jobs, or none."""
    flow = Flow()
    site = flow.add(crawl.s(folder, pages))
    parsed = [flow.add(parse.s(site, number)) for number in range(pages)]
    flow.add(report.s(flow.add(index.s(parsed))))
    return flow.enqueue()


def finish(handle: FlowHandle[str], store: str, kills: int) -> str:
    """Run the flow with one worker after another; each except the last is killed after a short time."""
    while True:
        worker = subprocess.Popen([sys.executable, __file__, "--work"], env=os.environ | {"SITE_STORE": store})
        try:
            if not kills:
                return handle.result(timeout=600)
            time.sleep(random.uniform(0.5, 2))
            kills -= 1
            return handle.result(timeout=0)
        except WaitTimeout:
            pass
        finally:
            worker.kill()
            worker.wait()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pages", type=int, default=1_000)
    options.add_argument("--kills", type=int, default=10)
    options.add_argument("--work", action="store_true", help="be a worker")
    given = options.parse_args()
    if given.work:
        sys.exit(app.worker(concurrency=2).run())
    with tempfile.TemporaryDirectory() as folder:
        store = f"rocksdb:{folder}/store"
        app.use(store)
        with app:
            (Path(folder) / "pages").mkdir()
            handle = start(Path(folder) / "pages", given.pages)
            print(finish(handle, store, given.kills))
            ended = Counter(step.status() for step in handle.steps)
            print(f"{ended['done']} of {given.pages + 3} jobs are done")


if __name__ == "__main__":
    main()
