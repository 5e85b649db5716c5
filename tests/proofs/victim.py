"""An ordinary tenant that works while others attack: enqueues, claims and acks on one connection, and times each call.

Run as `python -m tests.proofs.victim PORT TOKEN SECONDS`; prints a JSON list of milliseconds, and the statuses it got.
"""

from __future__ import annotations

import http.client
import json
import sys
import time


def main(port: int, token: str, seconds: float) -> None:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    took: list[float] = []
    statuses: dict[str, int] = {}

    def asked(path: str, body: object) -> tuple[int, bytes]:
        connection.request("POST", f"/v1/queues/work/{path}", json.dumps(body), headers)
        got = connection.getresponse()
        return got.status, got.read()

    def ask(path: str, body: object) -> dict[str, list[dict[str, str]]]:
        began = time.perf_counter()
        try:
            status, text = asked(path, body)
        except (ConnectionError, http.client.HTTPException):  # a kept connection that the server has closed
            connection.close()
            status, text = asked(path, body)
        took.append((time.perf_counter() - began) * 1000)
        statuses[str(status)] = statuses.get(str(status), 0) + 1
        found: dict[str, list[dict[str, str]]] = json.loads(text) if status == 200 else {}
        return found

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ask("jobs", {"text": "hello"})
        for job in ask("claims", {"limit": 1, "lease_ms": 30_000}).get("jobs", ()):
            ask("settle", {"items": [{"verb": "ack", "receipt": job["receipt"]}]})
        time.sleep(0.01)
    print(json.dumps({"took": took, "statuses": statuses}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
