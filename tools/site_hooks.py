"""mkdocs hooks for `make docs`: add the README, the changelog and the examples, and clean code blocks.

docs/*.md            unchanged, except links that leave docs/ and the tests' marks after a block's language
README.md, …         pages of their own
examples/NAME.py     examples/NAME.md: the program in a block
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Files outside docs/, and the pages that they become.
PAGES = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security-policy.md", "CHANGELOG.md": "changelog.md"}  # fmt: skip
_MARKS = re.compile(r"^(```\w+)[ \t][^\n`]*$", re.MULTILINE)
#: Files of the clone that are no pages: their names stay, without a link.
_SOURCE = re.compile(r"\[([^\]]+)\]\((?:\.\./)*(?:src|tests|spec|bench|deploy|tools)/[^)\s]*\)")
_LINK = re.compile(r"(\]\()((?:\.\./)*)([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for example in sorted((ROOT / "examples").rglob("*.py")):
        name = example.relative_to(ROOT / "examples")
        text = f"# {name}\n\n```python\n{example.read_text()}```\n"
        files.append(File.generated(config, f"examples/{name.with_suffix('.md')}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Remove the marks (`python run`), and adapt links to the pages' new places."""
    text = _SOURCE.sub(r"\1", _MARKS.sub(r"\1", markdown))
    return _LINK.sub(lambda found: _led(found, page.file.src_uri), text)


def _led(found: re.Match[str], page: str) -> str:
    """Return the link with its target adapted, if that is a page of the site."""
    begin, up, target, end = found.groups()
    if ":" in target:
        return found[0]
    depth = page.count("/")
    outside = page in PAGES.values()  # its links are relative to the clone's root
    if outside and target.startswith("docs/"):
        return f"{begin}{target.removeprefix('docs/')}{end}"
    if (outside and not up) or len(up) // 3 == depth + 1:
        if target in PAGES:
            return f"{begin}{'../' * depth}{PAGES[target]}{end}"
        if target.startswith("examples/") and target.endswith(".py"):
            return f"{begin}{'../' * depth}{target.removesuffix('.py')}.md{end}"
    return found[0]
