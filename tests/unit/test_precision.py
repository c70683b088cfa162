"""Which precision a run computes in, and what becomes of bf16 where a processor has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.core.errors import UserError
from rookery.doctor import precision
from rookery.doctor.precision import computable, faster_precision
from rookery.doctor.probe import try_out
from rookery.nets.policy import PolicyConfig
from rookery.runs.trained import find_trained

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print('{\"fp32\": 2.0}'); print('{\"bf16\": 1.0}')", "bf16"),
        ("print('{\"fp32\": 1.0}'); print('{\"bf16\": 0.95}')", "fp32"),
        ("print('{\"fp32\": 1.0}', flush=True); import os; os.kill(os.getpid(), 4)", "fp32"),
        ("raise SystemExit(1)", "fp32"),
    ],
    ids=["faster", "hardly faster", "illegal instruction", "fails"],
)
def test_bf16_is_chosen_only_where_it_works_and_is_clearly_faster(code: str, found: str) -> None:
    assert faster_precision(code) == found


NO_BF16 = "print('{\"fp32\": 1.0}', flush=True); import os; os.kill(os.getpid(), 4)"


def test_what_this_processor_does_not_have_is_computed_in_fp32(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = PolicyConfig(precision="bf16")
    assert computable(config, "pong", "print('{\"bf16\": 1.0}')") == config
    assert not caplog.messages
    assert computable(config, "pong", NO_BF16).precision == "fp32"
    assert "pong computed in bf16, which this machine cannot (illegal instruction)" in caplog.text
    assert computable(PolicyConfig(precision="fp32"), "pong", "not even tried").precision == "fp32"


def test_a_run_of_a_machine_with_bf16_is_played_and_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run says bf16; here, that ends the process that tries."""
    settings: dict[str, Any] = {"env": {"num_envs": 2}, "eval": {"episodes": 0}}
    run = rookery.train(
        "cartpole", steps=256, run=tmp_path / "run", ppo={"rollout_steps": 32}, **settings
    )
    file = run.path / "config.yaml"
    file.write_text(file.read_text().replace("precision: fp32", "precision: bf16"))
    assert "bf16" in file.read_text()
    monkeypatch.setattr(precision, "try_out", lambda code, secs: try_out(NO_BF16))
    assert find_trained(run.path).policy.config.precision == "fp32"
    rookery.resume(run.path, steps=512)
    assert caplog.text.count("computed in bf16, which this machine cannot") == 2
    assert "fp32" in file.read_text()
    with pytest.raises(UserError, match="cannot compute in bf16"):
        rookery.train(
            "cartpole", steps=256, run=tmp_path / "new", policy={"precision": "bf16"}, **settings
        )
    assert not (tmp_path / "new").exists()


def test_the_real_probe_of_precision_gives_an_answer() -> None:
    assert faster_precision() in ("fp32", "bf16")
