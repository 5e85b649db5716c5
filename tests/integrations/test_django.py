"""The backend for `django.tasks`, tested by Django's own runner in an environment of its own: Django 6 needs Python 3.12.

`make test` makes that environment, `.venv-django`, where it finds such a Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Server

ROOT = Path(__file__).parents[2]
CANDIDATES = (str(ROOT / ".venv-django" / "bin" / "python"), sys.executable)


@pytest.fixture(scope="module")
def python() -> str:
    for candidate in CANDIDATES:
        if Path(candidate).exists():
            asked = "import django, sys; sys.exit(django.VERSION < (6,))"
            if subprocess.run([candidate, "-c", asked], capture_output=True, check=False).returncode == 0:
                return candidate
    pytest.skip("no Django 6 here: it needs Python 3.12, of which `make test` makes .venv-django")


@pytest.fixture(params=["embedded", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield f"rocksdb:{tmp_path / 'data'}"
        return
    bind = Bind("127.0.0.1", 0)
    with (
        tenure.open("memory:") as store,
        listening(bind) as sock,
        Service(store, bind, Server()).running(sock),
    ):
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.timeout(600)
def test_the_backend(python: str, url: str, tmp_path: Path):
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")} | {
        "DJANGO_SETTINGS_MODULE": "tests.integrations.django.settings",
        "DJANGO_STORE": url,
        "DJANGO_DATABASE": str(tmp_path / "app.db"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [python, "-m", "django", "test", "tests.integrations.django.backend_tests", "--noinput"]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    (ran,) = re.findall(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert int(ran) > 20


def test_the_shop(python: str, tmp_path: Path):
    """examples/django_shop, as a person runs it."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "DJANGO_"))}
    command = [python, "-W", "error", str(ROOT / "examples" / "django_shop" / "manage.py")]
    done = subprocess.run(
        command, cwd=tmp_path, env=surroundings | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "order 18: sold out",
        "jobs made of rows: 1",
        "SUCCESSFUL - order 17 confirmed to ada@example.org",
    ]
    assert list(tmp_path.iterdir()) == []
