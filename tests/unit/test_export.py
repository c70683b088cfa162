"""Exported files, run by onnxruntime and torch.export, against the policy itself."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rookery.agent import Agent
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import ACTION_MASK, Array, Arrays
from rookery.envs.make import EnvConfig
from rookery.envs.spaces import action_leaf, carried_leaves, obs_plan
from rookery.exports import check, files
from rookery.exports.acting import ActingNetwork
from rookery.exports.files import Exported, export
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.policy import PolicyConfig
from rookery.roles.evaluator import EvalConfig
from rookery.runs.trained import Trained
from tests.toy_worlds import Assorted, Fenced, Mirror

ROOT = Path(__file__).resolve().parents[2]
Space = spaces.Space[Any]
Run = Callable[[Arrays], Arrays]

FOUR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
TWO = spaces.Discrete(2)
HALF_BOUND = spaces.Box(
    np.array([-np.inf, 0.0, -2.0], np.float32), np.array([1.0, np.inf, 3.0], np.float32)
)


@dataclass(frozen=True)
class Case:
    """A policy to export and what its file must be called."""

    obs: Space
    action: Space
    policy: PolicyConfig
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    masked: bool = False


def config(**settings: Any) -> PolicyConfig:
    return PolicyConfig(hidden=(16,), core_size=8, **settings)


CASES = {
    "plain": Case(
        FOUR, TWO, config(normalize_obs=True), ("obs",), ("action", "log_probs", "value")
    ),
    "gru": Case(
        FOUR,
        TWO,
        config(core="gru", normalize_obs=True),
        ("obs", "state.h", "reset"),
        ("action", "log_probs", "value", "new_state.h"),
    ),
    "lstm": Case(
        FOUR,
        TWO,
        config(core="lstm"),
        ("obs", "state.h", "state.c", "reset"),
        ("action", "log_probs", "value", "new_state.h", "new_state.c"),
    ),
    "box": Case(
        Mirror("box").observation_space,
        Mirror("box").action_space,
        config(),
        ("obs",),
        ("action", "mean", "log_std", "value"),
    ),
    "half_bound": Case(
        FOUR, HALF_BOUND, config(), ("obs",), ("action", "mean", "log_std", "value")
    ),
    "binary": Case(
        FOUR, spaces.MultiBinary((2, 2)), config(), ("obs",), ("action", "logits", "value")
    ),
    "dict": Case(
        Assorted.observation_space,
        Assorted.action_space,
        config(core="gru", normalize_obs=True),
        ("obs.pair.0", "obs.pair.1", "obs.place", "obs.speed", "state.h", "reset"),
        ("action", "log_probs", "value", "new_state.h"),
    ),
    "mask": Case(
        Fenced.observation_space,
        Fenced.action_space,
        config(),
        ("obs", "action_mask"),
        ("action", "log_probs", "value"),
        masked=True,
    ),
    "image": Case(
        spaces.Dict({"eye": spaces.Box(0, 255, (40, 44, 3), np.uint8), "reset": TWO}),
        spaces.Discrete(3),
        config(),
        ("obs.eye", "obs.reset"),
        ("action", "log_probs", "value"),
    ),
}


def trained(case: Case) -> Trained:
    """A policy that prefers something, has seen something and is loud enough to be compared."""
    leaves = carried_leaves(obs_plan(case.obs), case.action, case.masked)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        policy = ActorCritic(case.policy, Signature(obs=leaves, action=action_leaf(case.action)))
        nn.init.normal_(policy.action_head.linear.weight, std=3.0)
        policy.encoder.update_moments(
            {name: torch.randn(1, 50, *leaf.shape) * 2 + 1 for name, leaf in leaves.items()},
            torch.ones(1, 50, dtype=torch.bool),
        )
    policy.eval()
    return Trained(policy, EnvConfig(id="Any-v0"), EvalConfig(), 7, "any")


def by_onnxruntime(exported: Exported, case: Case) -> Run:
    session = onnxruntime.InferenceSession(exported.data)
    assert tuple(leaf.name for leaf in session.get_inputs()) == case.inputs
    assert tuple(leaf.name for leaf in session.get_outputs()) == case.outputs
    return lambda inputs: dict(zip(case.outputs, session.run(None, inputs), strict=True))


def by_torch(exported: Exported, case: Case) -> Run:
    module = torch.export.load(io.BytesIO(exported.data)).module()

    def run(inputs: Arrays) -> Arrays:
        found = module({name: torch.from_numpy(array) for name, array in inputs.items()})
        assert tuple(found) == case.outputs
        return {name: tensor.numpy() for name, tensor in found.items()}

    return run


def batch_of(space: Space, num: int) -> Any:
    """What a vector environment would return."""
    if isinstance(space, spaces.Dict):
        return {name: batch_of(inner, num) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of(inner, num) for inner in space.spaces)
    return np.stack([space.sample() for _ in range(num)])


def named(obs: Any, name: str = "obs") -> Arrays:
    """The inputs that the docs say, float64 as float32."""
    if isinstance(obs, np.ndarray):
        return {name: obs.astype(np.float32) if obs.dtype == np.float64 else obs}
    items = obs.items() if isinstance(obs, dict) else enumerate(obs)
    inputs: Arrays = {}
    for key, value in items:
        inputs |= named(value, f"{name}.{key}")
    return inputs


def close(got: Array, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 5])
@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, ".onnx") for name in CASES), ("box", ".pt2"), ("dict", ".pt2")]
)
def test_a_file_plays_as_the_policy_does(
    name: str, suffix: str, num: int, files_of: dict[str, tuple[Trained, Exported]]
) -> None:
    case = CASES[name]
    key = name + suffix
    if key not in files_of:
        policy = trained(case)
        files_of[key] = policy, export(policy, suffix)
    found, exported = files_of[key]
    run = (by_onnxruntime if suffix == ".onnx" else by_torch)(exported, case)
    agent, rng = Agent(found.policy), np.random.default_rng(2)
    case.obs.seed(3)
    spec = found.policy.state_spec
    state = {leaf: torch.zeros(num, *array.shape) for leaf, array in spec.items()}
    given = {
        f"state.{leaf}": np.full((num, *array.shape), 9.0, np.float32)
        for leaf, array in spec.items()
    }
    seen = set()
    for step in range(8):
        obs = batch_of(case.obs, num)
        inputs = named(obs)
        mask = None
        if case.masked:
            mask = np.zeros((num, 4), np.int8)
            mask[np.arange(num), rng.integers(0, 4, num)] = 1
            inputs["action_mask"] = mask
        reset = np.full(num, True) if step == 0 else rng.random(num) < 0.3
        if spec:
            inputs |= given | {"reset": reset}
        outputs = run(inputs)
        state = {leaf: values * torch.from_numpy(~reset)[:, None] for leaf, values in state.items()}
        action, after = agent.act(obs, state, deterministic=True, action_mask=mask)
        assert outputs["action"].dtype == action.dtype == case.action.dtype
        np.testing.assert_allclose(outputs["action"], action, rtol=1e-4, atol=1e-5)
        for chosen in outputs["action"]:
            assert case.action.contains(chosen)
            seen.add(chosen.tobytes())
        leaves, _ = agent._leaves(obs)
        if mask is not None:
            leaves[ACTION_MASK] = mask
        tensors = {leaf: torch.from_numpy(array) for leaf, array in leaves.items()}
        dist, value, _ = found.policy.distribution(tensors, state, torch.zeros(num, dtype=bool))
        close(outputs["value"], value)
        if "mean" in outputs:
            close(outputs["mean"], dist.mean)  # type: ignore[attr-defined]
            close(outputs["log_std"], dist.log_std.expand(num, -1))  # type: ignore[attr-defined]
        elif "logits" in outputs:
            close(outputs["logits"], dist.logits)  # type: ignore[attr-defined]
        else:
            parts = getattr(dist, "parts", [dist])
            close(outputs["log_probs"], torch.cat([part.log_probs for part in parts], -1))
        for leaf, values in after.items():
            close(outputs[f"new_state.{leaf}"], values)
            given[f"state.{leaf}"] = outputs[f"new_state.{leaf}"]
        state = after
    assert num == 1 or len(seen) > 1, "a policy that always does the same shows nothing"


@pytest.fixture(scope="module")
def files_of() -> dict[str, tuple[Trained, Exported]]:
    """Files that were exported already; batches of every size use the same one."""
    return {}


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of an error."""
        assert self.code == 2
        assert self.err.startswith("rookery: ")
        assert self.err.count("\n") == 1, self.err
        return self.err


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words: object) -> Result:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def memory_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with an LSTM; do not change it."""
    path = tmp_path_factory.mktemp("trained") / "run"
    words = ["--steps", "300", "--envs", "4", "--ppo.rollout_steps", "16", "--stop-at", "none"]
    words += ["--eval.episodes", "2", "--policy.core", "lstm", "--policy.core_size", "8"]
    assert main(["train", "cartpole", *words, "--quiet", "--run", str(path)]) == 0
    return path


@pytest.mark.slow
def test_the_command_tells_what_it_wrote(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", "zoo:cartpole", "--out", "policy.onnx")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("policy.onnx: cartpole after ")
    assert lines[1:3] == ["inputs:", "  obs              float32 [batch, 4]"]
    assert lines[3:6] == [
        "outputs:",
        "  action           int64 [batch]",
        "  log_probs        float32 [batch, 2]",
    ]
    assert re.fullmatch(
        r"checked: the file, run by onnxruntime \S+, gives what the policy gives, within \S+",
        lines[-1],
    )
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"], "no file beside it"
    model = onnx.load(tmp_path / "policy.onnx")
    (note,) = [json.loads(entry.value) for entry in model.metadata_props if entry.key == "rookery"]
    assert (note["name"], note["task"], note["deterministic"]) == ("cartpole", "CartPole-v1", True)
    assert str(ROOT).encode() not in (tmp_path / "policy.onnx").read_bytes()


@pytest.mark.slow
def test_a_run_becomes_a_pt2_file(cli: Cli, memory_run: Path, tmp_path: Path) -> None:
    done = cli("export", memory_run, "--out", "policy.pt2", "--checkpoint", "latest")
    assert (done.code, done.err) == (0, "")
    assert "checked: the file, loaded back by torch.export, gives what the policy" in done.out
    extra = {"rookery.json": ""}
    program = torch.export.load(tmp_path / "policy.pt2", extra_files=extra)
    assert json.loads(extra["rookery.json"])["task"] == "CartPole-v1"
    zeros = torch.zeros(3, 8)
    inputs = {"reset": torch.ones(3, dtype=torch.bool), "state.c": zeros, "state.h": zeros}
    outputs = program.module()(inputs | {"obs": torch.zeros(3, 4)})  # in any order
    assert outputs["new_state.c"].shape == (3, 8)


def test_an_existing_file_needs_force(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "policy.pt2").write_text("dear")
    words = ("export", "zoo:cartpole", "--out", "policy.pt2")
    assert "policy.pt2 already exists; --force replaces it" in cli(*words).line
    assert (tmp_path / "policy.pt2").read_text() == "dear"
    assert cli(*words, "--force").code == 0
    assert (tmp_path / "policy.pt2").read_bytes()[:2] == b"PK"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("zoo:cartpole --out p.xyz", "--out p.xyz: it has '.xyz'; name a file .onnx or .pt2"),
        ("zoo:cartpole --out p", "--out p: it has no ending; name a file .onnx or .pt2"),
        ("zoo:cartpole --out gone/p.onnx", "there is no directory gone; make it first"),
        ("zoo:cartpole", "the following arguments are required: --out"),
        ("zoo:cartpol --out p.onnx", "did you mean 'cartpole'?"),
        ("nothing --out p.pt2", "nothing does not exist"),
        ("zoo:cartpole --out p.pt2 --forse", "did you mean '--force'?"),
    ],
)
def test_what_cannot_be_done_is_one_line(cli: Cli, tmp_path: Path, words: str, told: str) -> None:
    assert told in cli("export", *words.split()).line
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_checkpoint_says_so(cli: Cli, memory_run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copy(memory_run / "config.yaml", tmp_path / "empty")
    told = "no checkpoint in empty/checkpoints yet; train first"
    assert told in cli("export", "empty", "--out", "p.onnx").line


def test_a_missing_package_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    line = cli("export", "zoo:cartpole", "--out", "p.onnx").line
    assert "needs the package onnxscript; `pip install 'rookery[export]'`" in line


@pytest.mark.slow
def test_without_onnxruntime_only_the_form_is_checked(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = cli("export", "zoo:cartpole", "--out", "p.onnx")
    assert done.code == 0
    assert "checked: onnx finds the file well formed" in done.out


def test_a_network_that_differs_is_not_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = ActingNetwork.forward

    def wrong(self: ActingNetwork, inputs: Any) -> Any:
        outputs = forward(self, inputs)
        return outputs | {"value": outputs["value"] + 0.01}

    monkeypatch.setattr(ActingNetwork, "forward", wrong)
    line = cli("export", "zoo:cartpole", "--out", "p.pt2").line
    assert "the exported network is not the policy: 'value' differs by" in line
    assert list(tmp_path.iterdir()) == []


def test_the_comparison_sees_other_choices() -> None:
    network = ActingNetwork(trained(CASES["plain"]).policy.requires_grad_(False))

    def wrong(inputs: Arrays) -> Arrays:
        outputs, _ = check._of_policy(network, inputs)
        return outputs | {"action": 1 - outputs["action"]}

    with pytest.raises(UserError, match="it chooses other actions"):
        check.compare(network, wrong)


class Branching(nn.Module):
    """A torso of one's own that cannot be exported."""

    def __init__(self, shapes: Any) -> None:
        super().__init__()
        self.out_features = 4

    def forward(self, obs: Any) -> Any:
        return obs["obs"] if obs["obs"].sum() > 0 else -obs["obs"]


def test_a_torso_that_branches_is_told_in_one_line() -> None:
    case = Case(FOUR, TWO, PolicyConfig(torso="tests.unit.test_export:Branching"), (), ())
    with pytest.raises(UserError, match=r"cannot be exported \(.*must not branch") as error:
        export(trained(case), ".pt2")
    assert "\n" not in str(error.value)


# ---- the page ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_programs_of_the_page_run(
    cli: Cli, memory_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("export", "zoo:cartpole", "--out", "policy.onnx").code == 0
    assert cli("export", "zoo:cartpole", "--out", "policy.pt2").code == 0
    assert cli("export", memory_run, "--out", "memory.onnx").code == 0
    page = (ROOT / "docs" / "export.md").read_text("utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    printed = []
    for program in programs:
        capsys.readouterr()
        exec(compile(program, "docs/export.md", "exec"), {})
        printed.append(capsys.readouterr().out.strip())
    assert len(printed) == 4
    assert printed[0] == "500.0", "the agent of the zoo balances to the end"
    assert float(printed[1]) > 5
    assert re.fullmatch(r"\[[01]( [01]){7}\]", printed[2])
    assert "tensor(" in printed[3]


def test_every_kind_has_a_writer() -> None:
    from rookery.cli.export import SUFFIXES

    assert set(files._KINDS) == set(SUFFIXES)
