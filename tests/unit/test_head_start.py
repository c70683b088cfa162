"""Which commands will want processes, guessed before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.cli import head_start
from rookery.cli.main import main
from rookery.engines import fork_server

WANTED = {
    "train snake": True,
    "train cartpole": False,
    "train CartPole-v1": False,
    "train CartPole-v1 --engine local": True,
    "train cartpole --engine=local": True,
    "train pong --formation async": True,
    "train snake --engine inline": False,
    "train snake --help": False,
    "train snake --print-config": False,
    "train snake --seeds 3": False,
    "train no-such-recipe": False,
    "train snake --engine": False,
    "train --config FILE": True,
    "train --config FILE --engine inline": False,
    "train --config no-such-file": False,
    "resume RUN": True,
    "resume RUN --engine inline": False,
    "resume no-such-run": False,
    "eval RUN": False,
    "plan snake": False,
}


class Counted:
    """Stands in for a fork server."""

    opened = 0
    closed = 0

    def __init__(self) -> None:
        Counted.opened += 1

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        Counted.closed += 1


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    monkeypatch.setattr(fork_server, "ForkServer", Counted)
    monkeypatch.setattr(Counted, "opened", 0)
    monkeypatch.setattr(Counted, "closed", 0)
    return Counted


@pytest.mark.parametrize("line", WANTED)
def test_the_words_tell(line: str, tmp_path: Path, counted: type[Counted]) -> None:
    (tmp_path / "config.yaml").write_text("engine: local\nenv: {id: CartPole-v1}\n")
    names = {"FILE": str(tmp_path / "config.yaml"), "RUN": str(tmp_path)}
    command, *rest = (names.get(word, word) for word in line.split())
    with head_start.head_start_of(command, rest):
        assert counted.opened == WANTED[line]
    assert counted.closed == counted.opened, "nobody took it up"


def test_the_first_who_wants_it_takes_it(counted: type[Counted]) -> None:
    with fork_server.head_start():
        with fork_server.fork_server_for("inline") as nothing:
            assert nothing is None
        with fork_server.fork_server_for("local"):
            assert counted.opened == 1
        assert counted.closed == 1
        with fork_server.fork_server_for("local"):
            assert counted.opened == 2
    assert counted.closed == 2


def test_ranks_of_a_job_guess_nothing(
    counted: type[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    with head_start.head_start_of("train", ["snake"]):
        assert counted.opened == 0


def test_a_refused_command_leaves_none(
    counted: type[Counted], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "snake", "--envs", "none"]) == 2
    assert capsys.readouterr().err.startswith("rookery: ")
    assert counted.closed == counted.opened == 1
