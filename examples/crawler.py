"""A crawler with a limit for each host: many hosts at once, each with at most two pages at a time and ten a second.

    python examples/crawler.py                                     crawl two small sites of this program's own
    tenure worker examples/crawler.py --concurrency 50             in production: any number of workers

Each host is a group of the queue. Groups take turns, and each has its limit, which the store applies over all workers.
The key makes one job of a page, however many pages link to it.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urljoin, urlsplit

from tenure import App, Backoff, GroupPolicy, Policy

PER_HOST = GroupPolicy(max_leased=2, rate="10/s")
app = App(
    os.environ.get("CRAWLER_STORE", "rocksdb:./data"),
    policies={"pages": Policy(group=PER_HOST, max_attempts=3, backoff=Backoff.fixed(1))},  # set when a worker starts
)


def host(url: str) -> str:
    return urlsplit(url).netloc.replace(":", "-")


@app.task(queue="pages", group=host, timeout=60)
def fetch(url: str) -> int:
    """Fetch a page and enqueue the pages that it links to, each once. Returns how many links it has."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    links = [urljoin(url, link) for link in re.findall(r'href="([^"]+)"', text)]
    for link in links:
        fetch.options(key=link).delay(link)
    return len(links)


# ── two sites, so that the example needs no network ──────────────────────────────────────────────────────────────────


class Site(ThreadingHTTPServer):
    """Ten pages, each with links to the next one, to the first, and to a page of the other site."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.other: str = ""
        self.seen: Counter[str] = Counter()
        self.at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site, number = self.server, int(self.path.strip("/") or 0)
        with site.lock:
            site.seen[self.path] += 1
            site.at_once += 1
            site.most_at_once = max(site.most_at_once, site.at_once)
        time.sleep(0.01)
        body = f'<a href="/{(number + 1) % 10}"> <a href="/0"> <a href="{site.other}/{number}">'.encode()
        with site.lock:
            site.at_once -= 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Do not log requests."""


def main() -> None:
    sites = [Site(), Site()]
    sites[0].other, sites[1].other = sites[1].url, sites[0].url
    for site in sites:
        threading.Thread(target=site.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        app.use(f"rocksdb:{folder}/data")
        with app, app.worker(concurrency=8):
            first = sites[0].url + "/0"
            fetch.options(key=first).delay(first)
            pages = app.store.queue("pages")
            while (counts := pages.counts()).waiting or counts.leased:
                time.sleep(0.1)
    for site in sites:
        print(f"{sum(site.seen.values())} requests for {len(site.seen)} pages")
    print("failed:", counts.dead)
    for site in sites:
        site.shutdown()
        site.server_close()
    print("at most two pages of a host at once:", all(site.most_at_once <= 2 for site in sites))


if __name__ == "__main__":
    main()
