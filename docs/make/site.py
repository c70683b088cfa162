"""What mkdocs is told beyond mkdocs.yml: pages that lie outside of docs/, and links to them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "start.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the repository's root and what they are called on the site."""

_LINK = re.compile(r"(\]\(|src=\")([^)\s\"#:]+)(?=[#)\"])")


def on_files(files: Files, config: Any) -> Files:
    """Take the outside pages in."""
    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, name, content=_relinked(text, source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the repository, turned to where pages are on the site."""
    if page.file.src_uri in OUTSIDE.values():
        return markdown
    return _relinked(markdown, f"docs/{page.file.src_uri}")


def _relinked(text: str, source: str) -> str:
    """``text`` of the repository's file ``source`` with its links as the site needs them."""
    here = posixpath.dirname(_on_site(source))

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        return match[1] + posixpath.relpath(_on_site(target), here or ".")

    return _LINK.sub(link, text)


def _on_site(path: str) -> str:
    """Where a file of the repository is on the site."""
    return OUTSIDE.get(path, path.removeprefix("docs/"))
