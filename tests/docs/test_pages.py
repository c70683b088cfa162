"""The pages hold what they say: links, commands, programs and pictures."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from rookery.cli.arguments import HELP, split_words
from rookery.cli.main import COMMANDS
from rookery.cli.main import main as rookery
from rookery.core.errors import UserError
from rookery.recipes.settings import settings_from_flags
from tests.docs.pages import A_RUN, FENCE, PAGES, ROOT, SHELL, Block, blocks, write_files

SWITCHES = {
    "train": {"quiet", "plain", "print_config", "help_all"},
    "plan": {"mermaid"},
    "autotune": {"json", "force"},
}
"""Commands that take settings, and their flags without a value."""
NOT_SETTINGS = {
    "train": ("run", "init_from", "seeds", "jobs"),
    "plan": (),
    "autotune": ("secs", "out"),
}

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"<!-- (rookery [^\n]*) -->\n```mermaid\n(.*?)```", re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """Words of every ``rookery`` command of a shell block, up to a pipe, without its variables."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and words[0] == "rookery":
            yield words[1 : words.index("|") if "|" in words else None]


COMMAND_LINES = [
    pytest.param(words, id=f"{block.page.stem}: {shlex.join(words)}")
    for block in blocks(*SHELL)
    for words in commands(block.text)
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the pages name, and a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    write_files(tmp_path)
    (tmp_path / A_RUN).mkdir(parents=True)
    (tmp_path / A_RUN / "config.yaml").write_text(config_of_a_run(), "utf-8")
    return tmp_path


@cache
def config_of_a_run() -> str:
    return yaml.safe_dump(settings_from_flags("cartpole", {}).to_tree())


def check_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Raise or fail if ``rookery`` would not understand ``words``; nothing is trained."""
    command, rest = words[0], words[1:]
    assert command in COMMANDS
    if command in SWITCHES:
        parts = split_words(rest, SWITCHES[command])
        for flag in NOT_SETTINGS[command]:
            parts.take(flag)
        name = parts.one_name(command)
        if name is not None or HELP not in parts.switches:
            settings_from_flags(name, parts.flags)
        return
    assert rookery([command, "--help"]) == 0
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert given <= known


# ---- links -------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    text = FENCE.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in _LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_leads_to_every_page() -> None:
    """Or to a list of them: the decisions have one of their own."""
    lists = [ROOT / "docs" / "index.md", ROOT / "docs" / "decisions" / "index.md"]
    linked = {
        (page.parent / link).resolve()
        for page in lists
        for link in _LINK.findall(page.read_text("utf-8"))
    } | {lists[0]}
    missing = [str(page.relative_to(ROOT)) for page in PAGES if page not in linked]
    assert missing == [], "add them to docs/index.md"


def test_the_gate_sees_broken_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A head\n[a](page.md#a-head) [b](gone.md) [c](#gone) [d](https://x.org/y)\n")
    assert broken_links(page) == ["gone.md", "#gone"]


# ---- commands ----------------------------------------------------------------------------------


def test_there_are_commands_to_look_at() -> None:
    assert {words.values[0][0] for words in COMMAND_LINES} == set(COMMANDS)
    assert len(COMMAND_LINES) > 30


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("words", COMMAND_LINES)
def test_every_command_is_understood(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check_command(words, capsys)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    "line",
    [
        "rookery trian cartpole",
        "rookery train cartpol",
        "rookery train cartpole --stepz 3",
        "rookery train cartpole --ppo.clop 0.1",
        "rookery train --config gone.yaml",
        "rookery plan cartpole --mermaidd x",
        "rookery eval runs/first --episode 3",
    ],
)
def test_the_gate_sees_wrong_commands(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = commands(f"A=1 {line} | head  # why")
    with pytest.raises((UserError, AssertionError)):
        check_command(words, capsys)


# ---- programs ----------------------------------------------------------------------------------


def test_there_are_programs_to_look_at() -> None:
    assert len(blocks("python")) > 8


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_every_program_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_every_settings_file_is_understood(block: Block, desk: Path) -> None:
    path = desk / "settings.yaml"
    path.write_text(block.text, "utf-8")
    whole = "id:" in block.text  # else it is laid over a recipe
    settings_from_flags(None if whole else "cartpole", {"config": str(path)})


# ---- pictures ----------------------------------------------------------------------------------

PICTURES = [
    pytest.param(page, command, picture, id=f"{page.stem}: {command}")
    for page in PAGES
    for command, picture in _PICTURE.findall(page.read_text("utf-8"))
]


def test_every_picture_says_how_it_was_made() -> None:
    assert len(PICTURES) == len(blocks("mermaid")) > 0


@pytest.mark.parametrize(("page", "command", "picture"), PICTURES)
def test_every_picture_is_what_the_command_prints(
    page: Path, command: str, picture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rookery(shlex.split(command)[1:]) == 0
    assert picture == capsys.readouterr().out, (
        f"the picture in {page.relative_to(ROOT)} is out of date; "
        f"replace it by the output of `{command}`"
    )
