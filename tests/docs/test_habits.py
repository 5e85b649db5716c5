"""What contributors are told to do can be done: targets, hooks, templates, and what a release is made of."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, links
from tools import release_check

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", ".pre-commit-config.yaml", ".ci/run"])
def test_every_make_target_that_is_named_exists(name: str):
    text = (ROOT / name).read_text()
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`|entry: .*|^make .*", text, re.DOTALL | re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", code))
    assert named
    assert named <= TARGETS


def test_the_hooks_are_the_parts_of_make_check():
    (parts,) = re.findall(r"^check: (.+?) ##", MAKEFILE, re.MULTILINE)
    assert re.findall(r"entry: make ([a-z-]+)", HOOKS) == parts.split()
    assert re.findall(r"repo: (\S+)", HOOKS) == ["local"], "nothing is fetched"


def test_there_are_templates_and_a_security_policy():
    for name in ("ISSUE_TEMPLATE/bug.md", "ISSUE_TEMPLATE/feature.md", "pull_request_template.md"):
        assert (ROOT / ".github" / name).read_text().strip()
    headings = re.findall(r"^## (.+)$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert [heading.split(",")[0] for heading in headings] == [
        "Reporting a vulnerability", "Supported versions", "What is in scope", "The threat model",
    ]  # fmt: skip
    assert "docs/security.md" in links(ROOT / "SECURITY.md")


def test_the_wheel_has_what_a_user_needs(tmp_path: Path):
    """The cheap part of `make release-check`, which also tries the wheel in a new environment."""
    release_check.check_changelog()
    (tmp_path / "tools").mkdir()
    for name in ("src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tools/api_viewer.py"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"],
        cwd=tmp_path, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (wheel,) = (tmp_path / "out").glob("*.whl")
    release_check.check_contents(wheel)
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert modules <= set(release_check.contents(wheel))
