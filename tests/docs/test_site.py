"""The documentation as a site: it builds without a warning and every link in it leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """The links, pictures and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [link for name in ("href", "src") if (link := values.get(name))]
        self.anchors |= {anchor for name in ("id", "name") if (anchor := values.get(name))}


def broken(site: Path) -> list[str]:
    """Links of a site that lead to no file, or to no place in it."""
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    missing = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlparse(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            found = target.is_file() and (
                not parts.fragment or target not in pages or parts.fragment in pages[target].anchors
            )
            if not found:
                missing.append(f"{path.relative_to(site)}: {link}")
    return missing


@pytest.mark.slow
def test_the_site_builds_and_its_links_hold(tmp_path: Path) -> None:
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert build.returncode == 0, build.stderr
    assert "WARNING" not in build.stderr
    for page in ("index.html", "start/index.html", "tutorials/algorithm/index.html"):
        assert (tmp_path / page).is_file()
    assert broken(tmp_path) == []


def test_the_gate_sees_broken_links(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="#top"></a><a href="#gone"></a><a href="gone/"></a>'
        '<img src="gone.png"><a href="https://example.org/x"></a>'
    )
    assert broken(tmp_path) == [
        "index.html: #gone",
        "index.html: gone/",
        "index.html: gone.png",
    ]
