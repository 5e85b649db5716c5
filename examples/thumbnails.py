"""Thumbnails in a pool of processes: pictures are computed in parallel, and a broken one does not affect others.

python examples/thumbnails.py                                        make some pictures and their thumbnails
tenure worker examples/thumbnails.py --pool process --recycle 500  in production
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tenure import App, TaskFailed, current_job

app = App(os.environ.get("THUMBNAILS_STORE", "rocksdb:./data"))


@app.task(queue="thumbnails", max_attempts=2, timeout=60, dead_on=OSError)
def thumbnail(picture: Path, size: int = 64) -> dict[str, object]:
    """Write a small copy beside the picture. A file that is no picture raises OSError: a retry would not help."""
    from PIL import Image

    job = current_job()
    with Image.open(picture) as image:
        job.progress(0.3, "resizing")
        image.thumbnail((size, size))
        job.progress(0.9, "writing")
        # Write under the token's name first: a slower run of the same job must not replace a newer one's file.
        target = picture.with_suffix(".thumb.png")
        part = picture.with_suffix(f".{job.token}.part")
        image.save(part, "PNG")
        part.replace(target)
        return {"file": target.name, "width": image.width, "height": image.height, "process": os.getpid()}


def main() -> int:
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        for index in range(6):
            Image.linear_gradient("L").resize((640, 480 + 40 * index)).save(Path(folder) / f"{index}.png")
        (Path(folder) / "broken.png").write_bytes(b"not a picture")
        app.use(f"lmdb:{folder}/queue")
        handles = thumbnail.map(sorted(Path(folder).glob("*.png")))
        processes = set()
        with app, app.worker(pool="process", concurrency=2):
            for handle in handles:
                try:
                    made = handle.result(timeout=60)
                    processes.add(made.pop("process"))
                    print(made)
                except TaskFailed as failed:
                    print("dead:", (failed.error or "").splitlines()[0])
        print(f"by {len(processes)} processes" if os.getpid() not in processes else "by this process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
