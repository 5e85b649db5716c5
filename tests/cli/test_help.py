"""Every command explains itself, and the document knows every command."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tenure.cli.command import EXIT_CODE_HELP, Command, Family
from tenure.cli.main import cli

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"
FAMILIES = {name: command for name, command in cli.commands.items() if isinstance(command, Family)}
COMMANDS = sorted(
    [name for name in cli.commands if name not in FAMILIES]
    + [f"{name} {member}" for name, family in FAMILIES.items() for member in family.commands]
)


def found(name: str) -> click.Command:
    family, _, member = name.partition(" ")
    return FAMILIES[family].commands[member] if member else cli.commands[family]


ASKED_FOR = {
    "enqueue", "claim", "ack", "nack", "fail", "release", "extend", "get", "list", "counts", "dead", "replay", "purge",
    "cancel", "pause", "resume", "configure", "timeline", "events", "check", "cleanup", "snapshot", "upgrade", "queues",
    "upcoming",
}  # fmt: skip


def test_all_commands_are_there_and_under_a_theme():
    assert set(COMMANDS) >= ASKED_FOR
    assert sorted(name for names in cli.themes.values() for name in names) == sorted(cli.commands)


@pytest.mark.parametrize("name", ["", *FAMILIES])
def test_a_group_without_a_command_shows_its_help(name: str):
    shown = CliRunner().invoke(cli, name.split())
    asked = CliRunner().invoke(cli, [*name.split(), "--help"])
    assert (shown.exit_code, shown.stdout, shown.stderr) == (2, "", asked.stdout)
    as_json = CliRunner().invoke(cli, ["--json", *name.split()])
    assert (as_json.exit_code, json.loads(as_json.stderr)["error"]) == (2, "usage")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(name: str):
    command = found(name)
    assert isinstance(command, Command)
    shown = CliRunner().invoke(cli, [*name.split(), "--help"])
    assert shown.exit_code == 0
    assert "Examples:" in shown.stdout
    assert f"tenure {name}" in shown.stdout
    assert "--json" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 110
    options = shown.stdout.partition("\nOptions:\n")[2].partition("\n\n")[0].splitlines()
    assert all(line.startswith(("  -", "    ")) for line in options), "an argument without a description"
    for purpose, line in command.examples:
        assert purpose
        for words in commands_in(line):
            family = words[0] in FAMILIES
            named, rest = (" ".join(words[:2]), words[2:]) if family else (words[0], words[1:])
            with found(named).make_context(named, rest) if runs_here(words) else click.Context(cli):
                pass


def commands_in(line: str) -> list[list[str]]:
    """The tenure commands of a line of shell."""
    found = []
    for part in re.split(r"\|\s|&&|\$\(|\)\s", line):
        words = shlex.split(part.split(" > ")[0].strip().rstrip(")"))
        if words and words[0] == "tenure":
            found.append(words[1:])
    return found


def runs_here(words: list[str]) -> bool:
    return not {"cat.png", "urls.txt"} & set(words)  # click opens the files that options name


def test_the_main_help_names_exit_codes():
    shown = CliRunner().invoke(cli, ["--help"])
    assert shown.exit_code == 0
    for code, _ in EXIT_CODE_HELP:
        assert re.search(rf"^  {code} ", shown.stdout, re.MULTILINE)
    assert CliRunner().invoke(cli, ["--version"]).stdout.startswith("tenure")
    assert CliRunner().invoke(cli, []).exit_code == 2


def test_unknown_commands_and_options_end_with_2():
    for args in (["enqeue"], ["enqueue", "--wat"], ["get"]):
        ran = CliRunner().invoke(cli, args)
        assert ran.exit_code == 2
        assert ran.stderr.count("\n") == 1
        assert "--help" in ran.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_document_knows_the_command_and_its_options(name: str):
    text = DOCUMENT.read_text()
    assert re.search(rf"^### `{name}[ `]", text, re.MULTILINE), f"no section on {name}"
    section = re.split(rf"^### `{name}[ `]", text, flags=re.MULTILINE)[1].split("\n### ")[0]
    for param in found(name).params:
        if isinstance(param, click.Option) and param.expose_value:
            assert param.opts[0] in section, f"{name} {param.opts[0]}"


def test_the_document_knows_the_exit_codes():
    text = DOCUMENT.read_text()
    for code, _ in EXIT_CODE_HELP:
        assert re.search(rf"^\| {code} \|", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("describe", "No such command 'describe'. See"),
        ("enqeue", "Did you mean 'enqueue'?"),
        ("queue", "Did you mean 'queues'?"),
    ],
)
def test_only_a_word_that_is_nearly_the_same_is_suggested(typed: str, said: str):
    ran = CliRunner().invoke(cli, [typed])
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert "replay" not in ran.stderr


def test_the_store_may_be_any_url():
    from tenure.settings import URL_FORMS

    row = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `--store"))
    shown = " ".join(CliRunner().invoke(cli, ["queues", "--help"]).stdout.split())
    for form in URL_FORMS.values():
        assert f"`{form}`" in row
        assert form in shown
