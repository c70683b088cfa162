"""What the pages hold, read once for all tests of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

SHELL = ("bash", "sh")
A_RUN = Path("runs/first")
"""The run that the pages speak of."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w/]+\.(?:py|yaml))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, language, text)
        for page in PAGES
        for language, text in FENCE.findall(page.read_text("utf-8"))
        if language in languages
    ]


def write_files(directory: Path) -> None:
    """Write every file that a page names in the first line of a block; yml: of another program."""
    for block in blocks("python", "yaml", "yml"):
        if name := FILE_NAME.match(block.text):
            (directory / name[1]).write_text(block.text, "utf-8")
