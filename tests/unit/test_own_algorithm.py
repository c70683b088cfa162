"""Algorithms of the user's own, named ``module:Class``."""

from __future__ import annotations

from pathlib import Path

import pytest

import rookery
from rookery.cli.main import main
from rookery.recipes.settings import settings_from_flags

pytestmark = pytest.mark.slow

MINE = """
from dataclasses import dataclass
from rookery.algos.a2c import A2C, A2CConfig

@dataclass(frozen=True, kw_only=True)
class HalvedConfig(A2CConfig):
    share: float = 0.5
    '''What is left of the loss.'''

class Halved(A2C):
    Config = HalvedConfig

    def loss(self, policy, batch, steps):
        loss, metrics = super().loss(policy, batch, steps)
        return self.config.share * loss, metrics | {"share": loss.detach() * 0 + self.config.share}

class Env(Halved):
    pass

class Bare:
    pass
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_algos.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("engine", ["inline", "local"])
def test_trains_resumes_and_plays(engine: str) -> None:
    run = rookery.train(
        "CartPole-v1",
        algo="mine_algos:Halved",
        halved={"share": 0.25},
        engine=engine,
        envs=4,
        steps=400,
        log_every=100,
        eval={"episodes": 2},
    )
    assert "halved:\n" in (run.path / "config.yaml").read_text()
    assert '"train/share": 0.25' in (run.path / "metrics.jsonl").read_text()
    again = rookery.resume(run.path, steps=800)
    assert again.finish.steps >= 800
    assert run.evaluate(episodes=2)["episodes"] == 2


@pytest.mark.usefixtures("mine")
def test_its_settings_are_flags() -> None:
    config = settings_from_flags(
        "cartpole", {"algo": "mine_algos:Halved", "halved.share": "0.125", "gamma": "0.9"}
    )
    assert config.algo_config.share == 0.125  # type: ignore[attr-defined]
    assert config.algo_config.gamma == 0.9


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ("mine_algos:Halve", "did you mean 'Halved'"),
        ("mine_algoz:Halved", "no module named 'mine_algoz'"),
        ("mine_algos:Bare", "needs a class attribute Config"),
        ("mine_algos:Env", "would name its settings 'env', which is taken"),
        ("pqo", "did you mean 'ppo'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    algo: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "cartpole", "--algo", algo]) != 0
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
