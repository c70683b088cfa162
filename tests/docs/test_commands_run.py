"""Every command of the pages is run as it stands, only smaller: fewer steps, fewer episodes.

Processes cost most. `make test` starts them on the pages about them, for the first command of each
formation, and trains with the settings of all others in one thread; what an earlier page has had
word for word is not done again. `make test-long` does all of it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.cli.arguments import split_words
from rookery.cli.main import main
from rookery.recipes.catalog import load_config_file, load_recipe, recipe_names
from rookery.recipes.settings import settings_from_flags
from tests.docs.pages import A_RUN, FENCE, PAGES, ROOT, SHELL, write_files

TRAIN = {"steps": "600", "envs": "4", "log-every": "200", "save-every": "300"}
PPO = {"ppo.rollout_steps": "32", "ppo.num_minibatches": "2", "ppo.num_epochs": "1"}
SMALLER = {
    "train": TRAIN | {"eval.episodes": "2", "eval.max_steps": "50"} | PPO,
    "resume": {},
    "eval": {"episodes": "2", "max-steps": "50"},
    "watch": {"episodes": "1", "max-steps": "4"},
    "record": {"episodes": "1", "max-steps": "12"},
    "zoo add": {"episodes": "2"},
    "zoo score": {"episodes": "2"},
    "autotune": {"secs": "0.3", "formation": "sync", "engine": "inline", "envs": "4"}
    | {"ppo.rollout_steps": "8", "ppo.num_minibatches": "1", "sync.learner_threads": "1"},
}
"""Flags given to each command in place of its own."""
RUN = ("rookery", "python", "mpiexec")
ENDLESS = {"seeds": "2", "time-limit": "60", "workers": "2", "average-since": "0"}
"""What replaces these flags where they are given."""


def lines() -> Iterator[tuple[Path, list[str]]]:
    """Every command line of every page, in order, up to a pipe; variables in front dropped."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text("utf-8")):
            if language not in SHELL:
                continue
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words and "=" in words[0] and words[0].partition("=")[0].isupper():
                    words = words[1:]
                if words:
                    yield page, words[: words.index("|") if "|" in words else None]


def with_flag(words: list[str], flag: str, value: str) -> list[str]:
    """``words`` with ``--flag value``, in place of the flag's own value if it has one."""
    name = f"--{flag}"
    out = [word for word in words if not word.startswith(f"{name}=")]
    if name in out:
        at = out.index(name)
        return [*out[: at + 1], value, *out[at + 2 :]]
    return [*out, name, value]


def _is_ppo(words: list[str]) -> bool:
    """Whether a command trains by PPO, as far as its recipe or its file says."""
    if any("algo" in word for word in words):
        return False
    tree = load_recipe(words[1]) if words[1:2] and words[1] in recipe_names() else {}
    if "--config" in words:
        tree |= load_config_file(Path(words[words.index("--config") + 1]))
    return tree.get("algo", "ppo") == "ppo"


def smaller(words: list[str]) -> list[str]:
    """A command that does the same with less."""
    command = " ".join(words[:2]) if " ".join(words[:2]) in SMALLER else words[0]
    if {"--help", "-h", "--help-all", "--print_config"} & set(words):
        return words
    for flag, value in SMALLER.get(command, {}).items():
        if flag.startswith("ppo.") and not _is_ppo(words):
            continue
        words = with_flag(words, flag, value)
    for flag, value in ENDLESS.items():
        if f"--{flag}" in words:
            words = with_flag(words, flag, value)
    if command == "resume" and "--steps" in words:
        words = with_flag(words, "steps", "900")
    if "--at" in words:
        times = words[words.index("--at") + 1].split(",")
        words = with_flag(words, "at", ",".join("0" for _ in times))
    return words


SHOWN_ON = {"local": "docs/formations/"}
"""The pages whose subject it is to train in several processes. Ranks and seeds are started by tests
of their own (tests/engines/test_mpi.py, test_seeds.py)."""


class Thrift:
    """Which processes of a page's commands show something new."""

    def __init__(self, page: Path) -> None:
        self.page = str(page.relative_to(ROOT))
        self._seen: set[tuple[str, ...]] = set()

    def is_new(self, how: str, *kind: str) -> bool:
        """Whether this page is the place for it, and no command before has had it."""
        known = (how, *kind) in self._seen
        self._seen.add((how, *kind))
        return self.page.startswith(SHOWN_ON.get(how, "no page")) and not known

    def fewer(self, given: list[str], launcher: str = "") -> tuple[list[str], bool]:
        """The command with as few processes as show what is new; whether ``launcher`` is needed."""
        if given[0] != "train":
            return given, not launcher or self.is_new(launcher, given[0])
        if {"--help", "--help-all", "--print_config"} & set(given):
            return given, True
        parts = split_words(given[1:], {"quiet", "plain"})
        for flag in ("run", "init_from", "jobs"):
            parts.take(flag)
        if parts.take("seeds"):
            return given if self.is_new("seeds") else with_flag(given, "seeds", "1"), True
        if launcher and self.is_new(launcher, "train"):
            return given, True
        config = settings_from_flags(parts.one_name("train"), parts.flags)
        learners = getattr(config.formation_config, "num_learners", 1)
        if not launcher and (config.engine == "inline" or self.is_new("local", config.formation)):
            return given, True
        if learners > 1:
            given = with_flag(given, "learners", "1")
        if config.formation in ("allreduce", "hogwild", "paramserver"):
            given = with_flag(given, "workers", "1")
        return with_flag(given, "engine", "inline"), False


def stood_before(page: Path, words: list[str]) -> bool:
    """Whether an earlier page has the same command, which leaves nothing for this page's others."""
    if words[1:2] not in (["train"], ["doctor"]) or "--run" in words:
        return False
    return next(of for of, known in lines() if known == words) != page


PAGES_WITH_COMMANDS = sorted({page for page, words in lines() if words[0] in RUN})


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the pages speak of, trained a little."""
    run = tmp_path_factory.mktemp("first") / "first"
    assert main(["train", *smaller(["train", "cartpole"])[1:], "--quiet", "--run", str(run)]) == 0
    return run


@pytest.fixture
def desk(tmp_path: Path, first_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the pages name, and the run they speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    write_files(tmp_path)
    shutil.copytree(first_run, tmp_path / A_RUN, symlinks=True)
    return tmp_path


def on_four_ranks(given: list[str]) -> None:
    """An MPI job of a page, made smaller, on this host: as many as every formation needs."""
    given = [*given, *(["--envs", "12"] if given[0] == "train" else [])]
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    done = subprocess.run(
        [mpiexec, "-n", "4", sys.executable, "-m", "rookery", *given],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(given)}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("thrifty", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_runs(
    page: Path, thrifty: bool, desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    thrift = Thrift(page)
    for of, words in lines():
        if of != page or (thrifty and stood_before(page, words)):
            continue
        if words[0] == "python" and words[1].endswith(".py") and (desk / words[1]).is_file():
            subprocess.run([sys.executable, *words[1:]], check=True, timeout=120)
        if words[0] not in ("rookery", "mpiexec") or len(words) == 1:
            continue
        launched = words[0] == "mpiexec"
        given = smaller(words[words.index("rookery") + 1 :])
        if thrifty:
            given, as_it_stands = thrift.fewer(given, "mpi" if launched else "")
            launched = launched and as_it_stands
        where = given[given.index("--run") + 1] if "--run" in given else ""
        if given[0] == "train" and where:
            shutil.rmtree(desk / where, ignore_errors=True)  # pages begin the same run again
        if launched:
            on_four_ranks(given)
            continue
        code = main(given)
        assert code == 0, f"{shlex.join(words)}\nas {shlex.join(given)}\n{capfd.readouterr().err}"
