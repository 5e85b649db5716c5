"""A CPU-bound pipeline with a fan-in: processes count the words of texts, and one last job adds the counts up.

    python examples/word_count.py                                     count the words of this project's documents
    tenure worker examples/word_count.py --pool process               in production: one process a core

`start` enqueues the parts and the total in one transaction. The total is blocked until all parts are done, and gets
their results as its argument.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from tenure import App, group
from tenure.worker.flow_handles import FlowHandle

app = App(os.environ.get("WORDS_STORE", "rocksdb:./data"))


@app.task(queue="parts", timeout=600)
def count(text: Path) -> dict[str, int]:
    """Count the words of one text. Its result is kept with its job, for a day."""
    return dict(Counter(re.findall(r"[a-z]{4,}", text.read_text().lower())).most_common(1000))


@app.task(queue="totals")
def total(parts: list[dict[str, int]]) -> list[tuple[str, int]]:
    """Add up the parts. If one of them is dead, this waits: `handle.retry()` continues from there."""
    return sum(map(Counter, parts), Counter()).most_common(3)


def start(texts: list[Path]) -> FlowHandle[list[tuple[str, int]]]:
    """Enqueue a job for each text, and the total that waits for them."""
    return group([count.s(text) for text in texts]).then(total.s()).enqueue()


def main() -> None:
    documents = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))[:8]
    with tempfile.TemporaryDirectory() as folder:
        app.use(f"lmdb:{folder}/data")
        with app, app.worker(["parts", "totals"], pool="process", concurrency=2):
            found = start(documents).result(timeout=60)
    print(f"{len(documents)} texts, the three most frequent words occur {sum(times for _, times in found)} times")


if __name__ == "__main__":
    main()
