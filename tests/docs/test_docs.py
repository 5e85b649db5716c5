"""The documents, held against the code."""

from __future__ import annotations

import ast
import json
import operator
import os
import re
import struct
import tomllib
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest

from tenure import Backoff, errors
from tenure.cli.command import EXIT_CODES
from tenure.model.lifecycle import TRANSITIONS, Change, State
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Counter, Due
from tests.docs.blocks import DOCS, DOCUMENTS, README, Block, anchors, blocks, links, name_of, prose, table, tables
from tests.docs.transitions import moved

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
RUNNABLE = [(document, block) for document in DOCUMENTS for block in blocks(document) if "run" in block.marks]
DECISIONS = sorted((DOCS / "adr").glob("*.md"))

#: Of the machine a document was written on, or of where its packages came from.
MACHINE = re.compile(
    r"/(?:work|home|root|Users|mnt|tmp|private)/"
    r"|\b(?:pypi|pythonhosted|conda|npmjs|artifactory|nexus|devpi|docker|ghcr)\.(?:org|io|com|net)\b"
    r"|--(?:extra-)?index-url|\b(?:\d{1,3}\.){3}\d{1,3}\b"
)


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


@each_document
def test_links_lead_somewhere(document: Path):
    for link in links(document):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{link} is not there"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@each_document
def test_no_machine_is_named(document: Path):
    assert MACHINE.findall(document.read_text()) == []


@each_document
def test_tables_are_whole(document: Path):
    for rows in tables(document.read_text()):
        assert {len(row) for row in rows} == {len(rows[0])}, rows[0]


@pytest.mark.parametrize(("document", "block"), RUNNABLE, ids=[f"{name_of(d)}:{b.line}" for d, b in RUNNABLE])
def test_examples_run(document: Path, block: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile("\n" * (block.line - 1) + block.body, str(document), "exec"), names)
    for name in ("store", "app"):
        if name in names:
            names[name].close()


#: What tests do with the blocks of each language; those of Python and of a shell are run, or say why not.
LANGUAGES = {
    "python": "run here, README's by test_readme.py",
    "console": "run by test_shell.py, README's by test_readme.py",
    "sql": "says which test runs it",
    "toml": "read as settings, below",
    "json": "parsed, below",
    "yaml": "compared with the metrics' names by test_monitoring.py",
    "ini": "a unit, below",
    "text": "a drawing, a table or output: no code, below",
}
#: Marks by which README's blocks are found by the tests that run them.
README_MARKS = {"tasks": "test_readme.py", "install": "test_readme.py", "spark": "tests/spark"}
MARKS = {"run", "systemd"}
_CODE = re.compile(r"^(\$ |import \w|from [\w.]+ import |def \w+\(|class \w+[(:]|@\w+|SELECT )", re.MULTILINE)


def refusal(document: Path, block: Block) -> str | None:
    """Why a block is not allowed in a document, or None."""
    if block.language not in LANGUAGES:
        return f"its language is {block.language or 'missing'}: one of {', '.join(LANGUAGES)} is tested"
    if block.language == "text" and _CODE.search(block.body):
        return "text that looks like code: give it its language"
    marks = {mark for mark in block.marks if not mark.startswith("not-run=")}
    if unknown := marks - MARKS - (README_MARKS.keys() if document == README else set()):
        return f"no test knows the mark {', '.join(sorted(unknown))}"
    if block.language in ("python", "sql") and document != README and not block.reason and "run" not in marks:
        return "neither run nor does it say why not"
    return None


@each_document
def test_every_block_is_tested_or_says_why_not(document: Path):
    for block in blocks(document):
        assert (why := refusal(document, block)) is None, f"{name_of(document)}:{block.line}: {why}"


@each_document
def test_no_block_is_written_in_a_way_that_the_tests_do_not_see(document: Path):
    """Fences are three backticks at the beginning of a line; code that is indented instead would be seen by nobody."""
    assert re.findall(r"^.*(?:`{3}|~{3}).*$", prose(document), re.MULTILINE) == []
    indented = re.findall(r"(?:^|\n\n)((?: {4}|\t)[^\s].*)", prose(document))
    assert [line for line in indented if _CODE.match(line.strip())] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\nx = 1\n```\n", "neither run"),
        ("```py run\nx = 1\n```\n", "its language is py"),
        ("```\nx = 1\n```\n", "its language is missing"),
        ("```sh\nls\n```\n", "its language is sh"),
        ("```python tasks\nx = 1\n```\n", "no test knows the mark tasks"),
        ("```python rnu\nx = 1\n```\n", "no test knows the mark rnu"),
        ('```python not-run=""\nx = 1\n```\n', "neither run"),
        ("```text\nimport tenure\n```\n", "looks like code"),
        ("```text\n$ tenure queues\n```\n", "looks like code"),
        ("```python run\nx = 1\n```\n", None),
        ('```python not-run="it needs a moon"\nx = 1\n```\n', None),
    ],
)
def test_a_block_that_no_test_runs_is_refused(text: str, found: str | None, tmp_path: Path):
    document = tmp_path / "page.md"
    document.write_text(text)
    (block,) = blocks(document)
    why = refusal(document, block)
    assert why is None if found is None else why is not None and found in why


@pytest.mark.parametrize(
    "text",
    ["  ```python\n  x = 1\n  ```\n", "~~~python\nx = 1\n~~~\n", "````python\nx = 1\n````\n", "a\n\n    import x\n"],
)
def test_a_block_in_another_notation_is_refused(text: str, tmp_path: Path):
    document = tmp_path / "page.md"
    document.write_text(text)
    with pytest.raises(AssertionError):
        test_no_block_is_written_in_a_way_that_the_tests_do_not_see(document)


def test_json_and_toml_are_what_they_say():
    from tenure.settings import SETTINGS

    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language == "json":
                json.loads(block.body)
            elif block.language == "toml":
                assert flat(tomllib.loads(block.body)).keys() <= SETTINGS.keys(), name_of(document)


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A TOML document by dotted names."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def test_the_index_knows_every_document():
    known = {(DOCS / link.partition("#")[0]).resolve() for link in links(DOCS / "index.md")}
    assert {*DOCS.glob("*.md")} - {DOCS / "index.md"} <= known


def test_every_example_is_on_the_page_of_programs():
    examples = DOCS.parent / "examples"
    there = {*examples.glob("*.py"), *examples.glob("*/manage.py")}
    assert {(DOCS / link).resolve() for link in links(DOCS / "programs.md")} == there


def test_the_index_says_each_thing_once():
    pages = [rows[1:] for rows in tables((DOCS / "index.md").read_text()) if rows[0] == ["you want to", "read"]]
    wanted = [row[0] for rows in pages for row in rows]
    assert len(wanted) > 30
    assert len(wanted) == len(set(wanted))


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("document", DECISIONS, ids=name_of)
def test_a_decision_has_status_and_date_and_is_listed(document: Path):
    number = document.name[:4]
    head, _, text = document.read_text().partition("## Context")
    assert head.startswith(f"# {number}. ")
    (status,) = re.findall(r"^(?:- )?Status: (.+)$", head, re.MULTILINE)
    assert re.match(r"(accepted|superseded by \[?0\d{3}|proposed|rejected)\b", status), status
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", head), "no date"
    listed = {row[0]: row[1] for row in table(DOCS / "index.md", "record")}
    (row,) = [row for row in listed if row == f"[{number}](adr/{document.name})"]
    assert listed[row].partition(" (superseded")[0] == head.splitlines()[0].removeprefix(f"# {number}. ")
    if status.startswith("superseded"):
        assert "superseded by" in listed[row]
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [name for name in headings if name in ("Decision", "Consequences")] == ["Decision", "Consequences"]
    assert len(text.splitlines()) <= 60, "one page"


# ── architecture ─────────────────────────────────────────────────────────────────────────────────────────────────────

ARCHITECTURE = DOCS / "architecture.md"
PACKAGE = DOCS.parent / "src" / "tenure"
#: Files of changes that are under way beside this page; take a name out once it is there.
ARRIVING: set[str] = set()


def test_the_architecture_names_files_that_exist():
    named = {name for name in re.findall(r"`([\w/.]+(?:\.py|/))`", ARCHITECTURE.read_text()) if "NAME" not in name}
    assert len(named) > 60
    missing = [
        name
        for name in sorted(named - ARRIVING)
        if not (PACKAGE / name).exists()
        and not (DOCS.parent / name).exists()
        and not (PACKAGE / "spark" / name).exists()
    ]
    assert missing == []


def test_the_architecture_has_the_layers_of_the_import_contract():
    contracts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    drawn = next(block.body for block in blocks(ARCHITECTURE) if block.body.startswith("cli |"))
    aside = {"__main__ | testing", "aio", "settings", "server_settings | extras"}  # single modules around the packages
    assert [part.replace(", ", " | ") for part in drawn.strip().split(" → ")] == [
        each for each in layers if each not in aside
    ]
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    text = ARCHITECTURE.read_text()
    assert [name for name in sorted(packages) if f"`{name}/`" not in text] == []


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

ERRORS = DOCS / "errors.md"
CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.TenureError)]


def test_every_error_is_there_with_its_code_and_exit_code():
    found = {row[0].strip("`"): (row[1].strip("`"), int(row[4])) for row in table(ERRORS, "class", "code")}
    assert found == {c.__name__: (c.code, next(e for kind, e in EXIT_CODES if issubclass(c, kind))) for c in CLASSES}


def test_the_tree_is_the_tree():
    tree = next(block.body for block in blocks(ERRORS) if "TenureError" in block.body)
    parents: dict[int, str] = {}
    for line in tree.splitlines():
        at, name = re.search(r"\w", line).start(), re.search(r"\w+", line)[0]  # type: ignore[union-attr,index]
        parents[at] = name
        if at:
            assert getattr(errors, name).__bases__[0].__name__ == parents[at - 4]
    assert set(re.findall(r"^[│├└─ ]*(\w+)", tree, re.MULTILINE)) == {c.__name__ for c in CLASSES}


def test_the_facts_an_error_carries_are_named():
    text = ERRORS.read_text()
    for kind in CLASSES:
        for fact in kind.__init__.__code__.co_varnames[1:] if "__init__" in vars(kind) else ():
            if f"self.{fact}" in Path(errors.__file__).read_text() and fact != "key":
                assert f"`{fact}`" in text, f"{kind.__name__}.{fact}"


# ── lifecycle ────────────────────────────────────────────────────────────────────────────────────────────────────────

LIFECYCLE = DOCS / "lifecycle.md"


def test_every_change_and_state_is_named():
    text = LIFECYCLE.read_text()
    for change in Change:
        assert f"`{change.name.lower()}`" in text
    for state in State:
        assert f"`{state.name.lower()}`" in text


def test_the_transitions_are_those_of_the_table():
    found: dict[Change, tuple[AbstractSet[State], AbstractSet[State]]] = {}
    for row in table(LIFECYCLE, "event", "by"):
        change = Change[row[0].strip("`").upper()]
        known = found.get(change, (frozenset(), frozenset()))
        before, after = (set(State) if side == "any" else {State[side.upper()]} for side in row[2].split(" → "))
        found[change] = (known[0] | before, known[1] | after)
    assert found == TRANSITIONS


@pytest.mark.parametrize(
    "row", [r for r in table(LIFECYCLE, "event", "by") if r[3] != "as needed"], ids=lambda row: f"{row[0]} {row[2]}"
)
def test_a_transition_moves_what_the_table_says(row: list[str]):
    before, after = row[2].split(" → ")
    event, counters, index = moved(row[0].strip("`"), before, after)
    assert event == row[0].strip("`")
    assert (counters, index) == (changes(row[3]), changes(row[4]))


def changes(text: str) -> dict[str, int]:
    return (
        {} if text == "–" else {(pair := part.split())[0]: int(pair[1].replace("−", "-")) for part in text.split(", ")}
    )


def test_backoff_by_numbers():
    (head, *rows) = next(t for t in tables(LIFECYCLE.read_text()) if t[0][0] == "backoff")
    attempts = [int(cell.removeprefix("n=")) for cell in head[1:]]
    assert len(rows) == 5
    for row in rows:
        backoff: Backoff = eval(re.search(r"`(.+?)`", row[0])[1], {"Backoff": Backoff})  # type: ignore[index]
        # All but nothing of the jitter: the longest wait.
        waits = [round(backoff.delay_ms(attempt, 1 - 1e-12) / 1000) for attempt in attempts]
        assert waits == [int(cell) for cell in row[1:]], row[0]


# ── keyspace ─────────────────────────────────────────────────────────────────────────────────────────────────────────

KEYSPACE = DOCS / "keyspace.md"
LAYOUTS = re.findall(r"<!-- layout: (\S+)(?: (\S+))? -->\n((?:\|.*\|\n)+)", KEYSPACE.read_text())
TYPES = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "s": "bytes"}
MODULES = {"keyspace": keyspace, "records": records}


def thing(name: str) -> Any:
    module, _, attribute = name.partition(".")
    return operator.attrgetter(attribute)(MODULES[module])


def layout(packed: struct.Struct) -> list[tuple[int, int, str]]:
    """(offset, bytes, type) of each field."""
    rows, offset = [], 0
    for count, code in re.findall(r"(\d*)([A-Za-z])", packed.format.removeprefix(">")):
        size = int(count) if code == "s" else struct.calcsize(">" + code)
        rows.append((offset, size, TYPES[code]))
        offset += size
    assert offset == packed.size
    return rows


@pytest.mark.parametrize(("packed", "record", "text"), LAYOUTS, ids=[packed for packed, _, _ in LAYOUTS])
def test_a_layout_is_the_structs(packed: str, record: str, text: str):
    (_, *rows) = next(tables(text))
    assert [(int(row[0]), int(row[1]), row[2]) for row in rows] == layout(thing(packed))
    if record:
        assert [row[3] for row in rows] == list(thing(record)._fields)


_STORED = (
    "states._STATE", "leases._LEASE", "leases._CLAIM", "jobs._JOB", "bookkeeping._DEDUP", "bookkeeping._REQUEST", "bookkeeping._BUCKET",
    "journal._JOURNAL", "journal._EVENT", "segments._SEGMENT", "segments._GROUP_SEGMENT_STATE", "turns._TURN", "groups._GROUP", "groups._PLACE", "flows._BLOCKED",
    "flows._BLOCK",
)  # fmt: skip
_KEYS = (
    "_QUEUE_ID",
    "_QUEUE_ID_PART",
    "_READY",
    "_DUE",
    "_ENDED",
    "_COUNTER",
    "_REQUEST",
    "_LIMIT",
    "_TURN",
    "_GROUP_SCOPE",
    "_GROUP_READY",
    "_CHILD",
    "_CHILD_BLOCK",
    "_PARENTS",
    "_PARENT",
    "_STEP",
)


def test_every_struct_has_its_layout():
    shown = {packed for packed, _, _ in LAYOUTS}
    stored = {f"records.{name}" for name in _STORED}
    keys = {f"keyspace.{name}" for name in _KEYS}
    assert shown == stored | keys


def test_sizes_that_are_named():
    text = KEYSPACE.read_text()
    packed = {
        "state": records.states._STATE,
        "leases": records.leases._LEASE,
        "claims": records.leases._CLAIM,
        "dedup": records.bookkeeping._DEDUP,
    }
    for heading, shape in packed.items():
        assert f"### `{heading}`: {shape.size + 4} bytes with its CRC" in text
    assert f"### `jobs`: {records.jobs._JOB.size} bytes" in text
    assert f"An event has {records.EVENT_BYTES} bytes" in text
    assert f"This is format **{keyspace.FORMAT}**" in text
    assert records.PART_BYTES == 65_536
    assert records.EVENTS_A_ROW == 1000
    assert records.REF_BITS == 10
    assert records.COUNT_BYTES == 12
    assert records.leases._LEASE_JOB.size == 24
    assert keyspace.RESULT_PARTS == 0x8000


def test_every_space_is_there_under_its_number():
    found = {int(row[0]): row[1].strip("`") for row in table(KEYSPACE, "no.", "space")}
    assert found == dict(enumerate(keyspace.NAMES))


def test_numbers_that_are_stored():
    numbered = {head: {row[0]: row[1].strip("`") for row in table(KEYSPACE, head)} for head in ("kind", "counter")}
    assert numbered["kind"] == {str(int(kind)): kind.name.lower() for kind in Due}
    assert numbered["counter"] == {str(int(name)): name.name.lower() for name in Counter}
    pairs = [pair for row in table(KEYSPACE, "change") for pair in ((row[0], row[1]), (row[2], row[3]))]
    assert {number: name.strip("`") for number, name in pairs if number} == {
        str(int(c)): c.name.lower() for c in Change
    }


def test_the_formats_of_the_examples_are_the_stored_ones():
    """The numpy example is not run, since numpy is not needed here: its columns are compared with the struct's."""
    plain = [block.body for block in blocks(KEYSPACE) if block.language == "python" and block.reason]
    columns = ast.literal_eval(plain[0].removeprefix("EVENT = "))
    assert [name for name, _ in columns] == list(records.EventRecord._fields)
    sizes = [(int(kind.lstrip(">uV")), "bytes" if "V" in kind else "u") for _, kind in columns]
    assert sizes == [(size, kind if kind == "bytes" else "u") for _, size, kind in layout(records.journal._EVENT)]
    for block in blocks(KEYSPACE):
        for name, form in re.findall(r'^(\w+) = Struct\("(.+?)"\)$', block.body, re.MULTILINE):
            assert form == {"HEADER": records.journal._JOURNAL, "EVENT": records.journal._EVENT}[name].format


def test_the_protocol_names_every_operation_and_every_code():
    from tenure.protocol.operations import OPERATIONS
    from tenure.protocol.problems import FAULTS

    text = (DOCS / "protocol.md").read_text()
    rows = {
        (row[1], row[2]): row[3] for row in re.finditer(r"^\| `(\w+) (/v1\S*)` \|.*\| (.+) \|$", text, re.MULTILINE)
    }
    assert {(op.method, op.path): op.summary for op in OPERATIONS.values()} == rows
    missing = [code for code, fault in FAULTS.items() if f"| {fault.status} | `{code}` |" not in text]
    assert not missing


# ── the server under systemd ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_unit_starts_a_command_that_exists_with_settings_that_exist():
    import shlex

    from tenure.cli.main import cli
    from tenure.settings import SETTINGS, variable

    unit = next(block.body for block in blocks(DOCS / "server.md") if "systemd" in block.marks)
    options = [line.partition("=")[::2] for line in unit.splitlines() if "=" in line]
    program, command, *arguments = shlex.split(dict(options)["ExecStart"])
    assert program.endswith("/tenure")
    with cli.commands[command].make_context(command, arguments):
        pass
    known = {variable(name) for name in SETTINGS}
    given = {value.partition("=")[0] for name, value in options if name == "Environment"}
    named = set(re.findall(r"TENURE_\w+", (DOCS / "server.md").read_text()))
    assert given | named <= known
    assert int(dict(options)["LimitNOFILE"]) > 10_000
    assert {"NoNewPrivileges", "ProtectSystem", "SystemCallFilter", "UMask", "StateDirectoryMode"} <= dict(
        options
    ).keys()
