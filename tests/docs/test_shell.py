"""The shell lines of the documents: run by the command line in this process, on a store that has a job of each kind.

A block of `console` is run line by line, unless it says why not (`not-run="reason"`). A command that never ends by itself, or
needs a machine that is not here, is in `PARSED`, with the reason: its line is parsed by the command, not run. A line without
`tenure` needs the block's reason. So a new block is run, or fails here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import tenure
from tenure.cli.main import cli
from tenure.protocol.operations import OPERATIONS
from tests.cli.test_help import FAMILIES, commands_in, found, runs_here
from tests.docs.blocks import DOCUMENTS, README, Block, blocks, name_of

#: Commands of which a line is parsed only, and where they are run instead.
PARSED = {
    "serve": "runs until it is stopped: tests/server",
    "worker": "runs until it is stopped: tests/worker/test_commands.py",
    "dashboard": "runs until it is stopped, and opens a browser: tests/dashboard",
    "top": "draws until it is stopped: tests/cli/test_inspect.py",
    "run": "needs the reader's tasks.py: tests/worker/test_commands.py",
    "outbox create": "needs the reader's PostgreSQL: tests/outbox",
    "outbox run": "needs the reader's PostgreSQL: tests/outbox",
    "outbox status": "needs the reader's PostgreSQL: tests/outbox",
    "spark load": "needs Java: tests/spark",
    "audit": "needs DuckDB: tests/analysis",
    "report": "needs DuckDB: tests/analysis",
    "export": "needs DuckDB: tests/analysis",
}

#: Blocks whose lines other tests run: README's by test_readme.py.
CONSOLE = [
    (document, block)
    for document in DOCUMENTS
    for block in blocks(document)
    if block.language == "console" and document != README
]
RUN = [(document, block) for document, block in CONSOLE if not block.reason]


def lines(block: Block) -> Iterator[str]:
    """The commands of a block, without comments and a trailing `&`. Other lines are what a command printed."""
    for line in block.body.splitlines():
        if line.startswith("$ "):
            yield re.sub(r"\s{2,}#.*$", "", line.removeprefix("$ ")).rstrip(" &")


def named(words: list[str]) -> tuple[str, list[str]]:
    """A command's whole name, and its arguments."""
    return (" ".join(words[:2]), words[2:]) if words[0] in FAMILIES else (words[0], words[1:])


def parse(line: str) -> None:
    """Have each command of the line parse its own arguments. Raises click.UsageError."""
    for words in commands_in(line):
        if words and not words[0].startswith("-") and runs_here(words):
            name, rest = named(words)
            with found(name).make_context(name, [word for word in rest if word not in (">", "<")]):
                pass


class Template:
    """A folder with `data`, a store, and the files that examples name; and what stands for JOB_ID and RECEIPT."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with tenure.open(f"rocksdb:{folder / 'data'}") as store:
            emails = store.queue("emails")
            emails.configure(tenure.Policy(max_attempts=5, retention=3600))
            for number in range(4):
                emails.enqueue(b"late %d" % number, delay=3600)
            self.dead = emails.enqueue(b"wrong address").id
            with emails.claim() as claim:
                emails.fail(claim[0], error="Timeout: no answer")
            self.done = emails.enqueue(b"right address").id
            with emails.claim() as claim:
                emails.ack(claim[0], result=b"sent")
            self.waiting = emails.enqueue(b"soon", delay=60).id
            emails.enqueue(b"now", priority=9)
            self.leased = emails.claim(lease=3600)[0]
            emails.enqueue(b"hello")
            store.queue("reports").enqueue(b"x", group="ada")
        every = ["schedule", "add", "kept", "--queue", "polls", "--payload", "now", "--every", "604800"]
        CliRunner().invoke(cli, [*every, "--store", f"rocksdb:{folder / 'data'}"], catch_exceptions=False)
        (folder / "urls.txt").write_text("https://example.org\n")
        (folder / "secret").write_text("0" * 64)
        (folder / "backups").mkdir()

    def fill_in(self, name: str, words: list[str]) -> list[str]:
        """The words with ids of this store in the place of those that a document shows."""
        job = {"get": self.done, "cancel": self.waiting, "flow cancel": self.waiting}.get(name, self.dead)
        receipt = self.leased.receipt
        shown = {"JOB_ID": job, "RECEIPT": receipt} | ({} if name == "schedule add" else {"weekly": "kept"})
        return [shown.get(word, re.sub(r"^[0-9a-f]{32}\.[0-9a-f]{32}\.[0-9a-f]+$", receipt, word)) for word in words]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("shell"))


@pytest.mark.parametrize(("document", "block"), RUN, ids=[f"{name_of(d)}:{b.line}" for d, b in RUN])
def test_a_block_runs(
    document: Path, block: Block, template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for variable in [variable for variable in os.environ if variable.startswith("TENURE_")]:
        monkeypatch.delenv(variable)
    here = tmp_path / "here"
    shutil.copytree(template.folder, here)
    monkeypatch.chdir(here)
    for line in lines(block):
        if assigned := re.fullmatch(r"export (\w+)=(\S+)", line):
            monkeypatch.setenv(assigned[1], assigned[2])
        else:
            run(line, template)


def check_route(line: str) -> None:
    """A `curl` line names an operation of the server, by its method and path."""
    (path,) = re.findall(r"localhost:8400(/[^\s?]+)", line)
    method = "POST" if " -d " in line else "GET"
    shapes = [re.sub(r"\{\w+\}", r"[^/]+", op.path) for op in OPERATIONS.values() if op.method == method]
    assert any(re.fullmatch(shape, path) for shape in shapes), f"$ {line}\nno operation {method} {path}"


def run(line: str, template: Template) -> None:
    """Run one line; or parse it, if it pipes through other programs or PARSED has its command."""
    if line.startswith("curl "):
        check_route(line)  # tests/docs/test_readme.py runs one, against a server
        return
    assert "tenure " in line, f"$ {line}\nis no command of Tenure: its block has to say why it is not run"
    parse(line)
    before, _, command = line.rpartition("tenure ")
    command, _, target = command.partition(" > ")
    if "$(" in line or "|" in command or before not in ("", "date | "):
        return  # several programs
    name, rest = named(shlex.split(command))
    if name in PARSED or "--follow" in rest:  # until it is stopped: tests/cli/test_process.py
        return
    ran = CliRunner().invoke(cli, [*name.split(), *template.fill_in(name, rest)], input="today\n" if before else None)
    assert ran.exit_code == 0, f"$ {line}\n{ran.stdout}{ran.stderr}"
    if target:
        Path(target).write_bytes(ran.stdout_bytes)


@pytest.mark.parametrize(("document", "block"), CONSOLE, ids=[f"{name_of(d)}:{b.line}" for d, b in CONSOLE])
def test_lines_of_every_block_are_what_the_command_line_takes(document: Path, block: Block):
    """In blocks that are not run, too."""
    for line in lines(block):
        if line.startswith("tenure "):
            parse(line)


def test_commands_that_are_not_run_exist():
    """And so do the tests that run them."""
    for name, reason in PARSED.items():
        assert isinstance(found(name), click.Command)
        assert (README.parent / reason.rpartition(": ")[2]).exists(), reason
