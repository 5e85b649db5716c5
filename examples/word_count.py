"""A CPU-bound pipeline with a fan-in: texts are counted in processes, and one last job adds up what they found.

    python examples/word_count.py                                     count the words of this project's documents
    tenure worker examples/word_count.py --pool process               in production: one process a core

`start` enqueues the parts and the total at once. The total comes back every second until all parts have ended
(`Retry`), and finds their results by their keys.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from tenure import App, Retry, WaitTimeout
from tenure.worker.handles import Handle

app = App(os.environ.get("WORDS_STORE", "rocksdb:./data"))


@app.task(queue="parts", timeout=600)
def count(text: Path) -> dict[str, int]:
    """Count the words of one text. Its result is kept with its job, for a day."""
    return dict(Counter(re.findall(r"[a-z]{4,}", text.read_text().lower())).most_common(1000))


@app.task(queue="totals", max_attempts=100_000)
def total(run: str, texts: list[Path]) -> list[tuple[str, int]]:
    """Add up the parts' results, once there are all of them. A part that is dead makes the total fail."""
    queue = app.store.queue("parts")
    added: Counter[str] = Counter()
    for text in texts:
        job = queue.find(f"{run}:{text}")
        assert job is not None  # it was enqueued before the total
        try:
            added.update(count.handle(job, "parts").result(timeout=0))
        except WaitTimeout:
            raise Retry(f"{text.name} is not counted yet", after=1) from None
    return added.most_common(3)


def start(run: str, texts: list[Path]) -> Handle[list[tuple[str, int]]]:
    """Enqueue the parts, each with a key that leads to its job, then the total. Started twice, it is one run."""
    for text in texts:
        count.options(key=f"{run}:{text}").delay(text)
    return total.options(key=run).delay(run, texts)


def main() -> None:
    documents = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))[:8]
    with tempfile.TemporaryDirectory() as folder:
        app.use(f"lmdb:{folder}/data")
        with app, app.worker(["parts", "totals"], pool="process", concurrency=2):
            found = start("first", documents).result(timeout=60)
    print(f"{len(documents)} texts, the three most frequent words occur {sum(times for _, times in found)} times")


if __name__ == "__main__":
    main()
