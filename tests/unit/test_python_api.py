"""``rookery.train``, ``evaluate``, ``load`` and ``resume`` as a program uses them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rookery
from rookery.core.signature import Signature
from rookery.envs.spaces import action_leaf, obs_leaves
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.policy import PolicyConfig
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.directory import RunDirectory
from rookery.runs.lines import NotebookLine
from rookery.runs.metrics import read_metrics
from rookery.runs.stage import Stage
from rookery.runs.trained import load_config
from rookery.training import Run, evaluate_run
from tests.toy_worlds import Assorted, Fenced, Mirror, Recall

REPOSITORY = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "steps": 300,
    "envs": 4,
    "ppo": {"rollout_steps": 16},
    "policy": {"hidden": [16]},
    "eval": {"episodes": 2, "max_steps": 30},
    "stop_at": None,
}


def tiny(path: Path, what: Any = "cartpole", **changes: Any) -> Run:
    """Train a little; sections in ``changes`` are merged."""
    given = dict(TINY)
    for name, value in changes.items():
        given[name] = given.get(name, {}) | value if isinstance(value, dict) else value
    return rookery.train(what, run=path / "run", **given)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny(tmp_path_factory.mktemp("cartpole"), seed=1)


# --- training --------------------------------------------------------------------------------


def test_train_evaluate_and_load(cartpole: Run) -> None:
    assert cartpole.path.is_dir()
    assert not cartpole.solved
    assert cartpole.finish.steps >= 300
    summary = cartpole.evaluate(episodes=3)
    assert len(summary["returns"]) == summary["episodes"] == 3
    policy = rookery.load(cartpole.path)
    action, state = policy.act(np.zeros(4, np.float32))
    assert action in (0, 1)
    assert state == {}


def test_the_end_is_evaluated_also_where_a_checkpoint_was_due(tmp_path: Path) -> None:
    run = tiny(tmp_path, save_every=1)
    last = read_metrics(run.path / "metrics.jsonl")[-1]
    assert last["eval/steps"] == run.finish.steps
    assert CheckpointStore(run.path / "checkpoints").best_score() is not None


def test_completion_offers_what_is_imported_late() -> None:
    program = "import rookery, sys; print(dir(rookery)); assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    for name in ("train", "resume", "load", "Agent", "Run", "UserError"):
        assert f"'{name}'" in done.stdout


def test_a_part_of_a_batch_begins_an_episode(tmp_path: Path) -> None:
    agent = rookery.load(tiny(tmp_path, Recall, policy={"core": "gru"}).path)
    obs = np.stack([agent_obs(agent, 1.0), agent_obs(agent, 0.5)])
    _, state = agent.act(obs)
    _, both = agent.act(obs, state, deterministic=True)
    _, fresh = agent.act(obs, deterministic=True)
    _, mixed = agent.act(obs, state, deterministic=True, reset=[True, False])
    for name in mixed:
        assert torch.equal(mixed[name][0], fresh[name][0])
        assert torch.equal(mixed[name][1], both[name][1])
    arrays = {name: leaf.numpy() for name, leaf in state.items()}
    _, again = agent.act(obs, arrays, deterministic=True)
    assert all(torch.equal(again[name], both[name]) for name in both)
    with pytest.raises(rookery.UserError, match=r"reset has shape \[3\]; give one truth for each"):
        agent.act(obs, state, reset=[True, False, True])


def agent_obs(agent: rookery.Agent, value: float) -> np.ndarray[Any, Any]:
    return np.full(agent.signature.obs["obs"].shape, value, np.float32)


def test_one_word_for_how_a_run_ended(tmp_path: Path) -> None:
    def enough(record: dict[str, Any]) -> None:
        raise rookery.StopRun("enough")

    run = rookery.train("cartpole", run=tmp_path / "run", on_update=enough, **TINY)
    status = RunDirectory.open(run.path).read_status()
    assert status is not None
    assert (status.state, status.reason) == ("stopped", "enough")
    assert run.finish.outcome.state == "stopped"


def test_only_weights_are_taken_for_weights(cartpole: Run, tmp_path: Path) -> None:
    latest = cartpole.path / "checkpoints" / "latest"
    tiny(tmp_path / "right", init_from=latest / "weights.safetensors")
    with pytest.raises(rookery.UserError, match="it holds no weights; give the checkpoint, "):
        tiny(tmp_path / "wrong", init_from=latest / "optimizer.safetensors")


def test_a_run_has_its_agent_metrics_and_curve(cartpole: Run, tmp_path: Path) -> None:
    assert cartpole.agent.act(np.zeros(4, np.float32))[0] in (0, 1)
    table = cartpole.metrics()
    assert table["steps"].max() == cartpole.finish.steps
    assert "train/grad_norm" in table.columns
    picture = cartpole.plot(out=tmp_path / "curve.png")
    assert picture._repr_png_() == (tmp_path / "curve.png").read_bytes()
    assert picture._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(rookery.UserError, match="--y: unknown 'no/such'"):
        cartpole.plot("no/such")


def test_without_pandas_metrics_are_records(cartpole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [record["steps"] for record in cartpole.metrics()][-1] == cartpole.finish.steps


def test_a_notebook_has_one_line_that_changes(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"steps": 10, "wall_secs": 1.0, "time/env_steps_per_s": 10.0}
    for quiet in (True, False):
        lines = NotebookLine(quiet=quiet)
        lines.record(record)
        lines.stage(Stage("final evaluation", 1, 2, "episodes"))
        lines.stage(None)
        lines.record(record | {"steps": 20})
        said = capsys.readouterr().err
        assert said.count("\r") == (0 if quiet else 3)
        assert "\n" not in said


def test_a_plain_callable_is_an_environment(tmp_path: Path) -> None:
    def make_world() -> gym.Env[Any, Any]:
        return Recall()

    run = tiny(tmp_path, make_world)
    assert run.evaluate(episodes=2)["length_mean"] == 4.0
    with pytest.raises(rookery.UserError, match="engine local starts other processes"):
        tiny(tmp_path / "local", make_world, engine="local")
    assert not (tmp_path / "local").exists()


def test_an_environment_that_was_made_is_made_again(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1", max_episode_steps=17, render_mode="rgb_array")
    run = tiny(tmp_path, env)
    assert run.evaluate(episodes=2)["length_mean"] <= 17
    config = load_config(RunDirectory.open(run.path))
    assert (config.env.id, config.env.max_episode_steps) == ("CartPole-v1", 17)
    assert config.env.kwargs == {}
    env.reset()  # it is still the user's


def test_a_wrapped_environment_is_made_again_with_its_wrappers(tmp_path: Path) -> None:
    wrapped = gym.wrappers.RescaleObservation(gym.make("Pendulum-v1"), -1.0, 1.0)
    assert tiny(tmp_path, wrapped, steps=100).finish.steps >= 100
    with pytest.raises(rookery.UserError, match="engine local starts other processes"):
        tiny(tmp_path / "local", wrapped, engine="local")


def test_a_class_is_an_environment(tmp_path: Path) -> None:
    assert tiny(tmp_path, Recall).evaluate(episodes=2)["length_mean"] == 4.0


def test_an_environment_that_cannot_be_made_again_is_refused(tmp_path: Path) -> None:
    class Plain(gym.Wrapper[Any, Any, Any, Any]):
        pass

    for what, why in (
        (Recall(), r"Recall was not made by gymnasium.make.*rookery.train\(Recall\)"),
        (Plain(gym.make("CartPole-v1")), "wrapper Plain of CartPoleEnv does not say how"),
        (gym.make_vec("CartPole-v1", num_envs=2), "vector of environments; give one of them"),
    ):
        with pytest.raises(rookery.UserError, match=why):
            rookery.train(what, run=tmp_path / "run")


def test_a_factory_by_name_with_arguments(tmp_path: Path) -> None:
    env = {"kwargs": {"kind": "multi_discrete", "start": 2}}
    run = tiny(tmp_path, "tests.toy_worlds:Mirror", env=env)
    assert run.evaluate(episodes=1)["length_mean"] == 8.0


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(rookery.UserError, match="unknown setting 'stpes'; did you mean 'steps'"):
        rookery.train("cartpole", run=tmp_path / "r", stpes=3)
    with pytest.raises(rookery.UserError, match="did you mean 'cartpole'"):
        rookery.train("cartpol")
    with pytest.raises(rookery.UserError, match="unknown setting 'stpes'"):
        rookery.resume(tiny(tmp_path).path, stpes=3)


@pytest.mark.slow
def test_two_seeds_two_runs_one_seed_one_run(cartpole: Run, tmp_path: Path) -> None:
    file = Path("checkpoints", "latest", "weights.safetensors")
    first = (cartpole.path / file).read_bytes()
    assert (tiny(tmp_path / "same", seed=1).path / file).read_bytes() == first
    assert (tiny(tmp_path / "other", seed=2).path / file).read_bytes() != first


@pytest.mark.slow
def test_an_unguarded_script_works(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import gymnasium as gym, rookery\n"
        "settings = dict(envs=2, ppo={'rollout_steps': 8}, eval={'episodes': 1, 'max_steps': 5})\n"
        "run = rookery.train('cartpole', run='r', steps=100, quiet=True, **settings)\n"
        "print(run.evaluate(episodes=2, max_steps=5)['episodes'])\n"
        "run = rookery.train(lambda: gym.make('CartPole-v1'), run='q', steps=100, **settings)\n"
        "print(run.path)\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "q"]
    said = done.stderr.splitlines()
    assert said[1] == "run q", "the first was quiet"
    assert said[-2].startswith("finished: 100 steps reached")
    assert said[-1] == "rookery eval q"


# --- callbacks -------------------------------------------------------------------------------


def test_callbacks_are_told(tmp_path: Path) -> None:
    updates: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    run = rookery.train(
        "cartpole",
        run=tmp_path / "run",
        on_update=updates.append,
        on_episode=episodes.append,
        on_evaluation=evaluations.append,
        **TINY,
    )
    assert [record["updates"] for record in updates] == [*range(1, run.finish.updates + 1)]
    assert all("train/policy_loss" in record for record in updates)
    assert all(record["length"] == record["return"] > 0 for record in episodes)
    last = read_metrics(run.path / "metrics.jsonl")
    counted = [record["rollout/episodes"] for record in last if "rollout/episodes" in record]
    assert len(episodes) >= max(counted, default=0)
    (evaluation,) = evaluations
    assert evaluation["steps"] == run.finish.steps
    assert len(evaluation["returns"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("which", ["on_update", "on_episode", "on_evaluation"])
def test_every_callback_can_stop_a_run(which: str, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        raise rookery.StopRun("enough")

    told: dict[str, Any] = {which: stop}
    run = tiny(tmp_path, steps=100_000, eval_every=200, **told)
    assert (run.finish.outcome.state, run.finish.outcome.reason) == ("stopped", "enough")
    assert run.finish.steps < 2000
    store = CheckpointStore(run.path / "checkpoints")
    assert store.load("latest").steps == run.finish.steps
    assert rookery.resume(run.path, steps=run.finish.steps + 50).finish.outcome.state == "finished"


def test_an_error_in_a_callback_is_the_users_own(tmp_path: Path) -> None:
    def fail(record: dict[str, Any]) -> None:
        raise ZeroDivisionError("mine")

    told: dict[str, Any] = {"on_update": fail}
    with pytest.raises(ZeroDivisionError, match="mine"):
        tiny(tmp_path, **told)


# --- resuming --------------------------------------------------------------------------------


@pytest.mark.slow
def test_resume_has_callbacks_and_settings(tmp_path: Path) -> None:
    run = tiny(tmp_path)
    seen: list[int] = []
    further = rookery.resume(
        run.path, steps=600, on_update=lambda record: seen.append(record["steps"])
    )
    assert further.finish.steps == seen[-1] >= 600
    assert min(seen) > run.finish.steps
    idle = rookery.resume(run.path)
    assert "nothing to do" in idle.finish.outcome.reason
    assert idle.finish.steps == further.finish.steps


@pytest.mark.slow
def test_resume_refuses_another_network(tmp_path: Path) -> None:
    run = tiny(tmp_path)
    with pytest.raises(rookery.UserError, match="another network"):
        rookery.resume(run.path, steps=900, policy={"hidden": [8]})


@pytest.mark.slow
def test_a_solved_run_needs_a_new_goal(tmp_path: Path) -> None:
    goal: dict[str, Any] = {"stop_at": 1.0, "metrics": {"window": 2}, "steps": 50_000}
    run = tiny(tmp_path, **goal)
    assert run.solved
    again = rookery.resume(run.path)
    assert again.solved
    assert again.finish.steps == run.finish.steps
    further = rookery.resume(run.path, stop_at=None, steps=run.finish.steps + 50)
    assert further.finish.steps > run.finish.steps


# --- evaluating ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "deterministic"),
    [
        *(("none", True), ("gru", False)),
        pytest.param("none", False, marks=pytest.mark.long),
        pytest.param("gru", True, marks=pytest.mark.long),
    ],
)
def test_scores_do_not_depend_on_the_number_of_environments(
    deterministic: bool, core: str, tmp_path: Path
) -> None:
    """One seed an episode, whoever plays beside it and how long."""
    run = tiny(tmp_path, policy={"hidden": [16], "core": core, "core_size": 8})
    scores = [
        evaluate_run(run.path, 40, seed=3, deterministic=deterministic, max_steps=120, num_envs=n)
        for n in (1, 7, 32)
    ]
    assert scores[0] == scores[1] == scores[2]
    assert len(set(scores[0]["lengths"])) > 2
    fewer = evaluate_run(run.path, 9, seed=3, deterministic=deterministic, max_steps=120)
    assert fewer["returns"] == scores[0]["returns"][:9], "more episodes do not change the first"
    other = evaluate_run(run.path, 40, seed=4, deterministic=deterministic, max_steps=120)
    assert other["returns"] != scores[0]["returns"]


def test_evaluation_matches_a_plain_loop(cartpole: Run) -> None:
    """The same seeds, played by hand through the loaded agent."""
    from rookery.core.seeding import seed_of

    summary = cartpole.evaluate(episodes=4, seed=9, deterministic=True, max_steps=500)
    agent = rookery.load(cartpole.path)
    env = gym.make("CartPole-v1")
    for index, expected in enumerate(summary["returns"]):
        obs, _ = env.reset(seed=seed_of(9, "evaluation", index))
        total, over = 0.0, False
        while not over:
            action, _ = agent.act(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        assert total == expected


def test_evaluation_leaves_the_threads_alone(cartpole: Run) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        cartpole.evaluate(episodes=1, max_steps=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# --- acting ----------------------------------------------------------------------------------


def agent_of(env: gym.Env[Any, Any], **policy: Any) -> rookery.Agent:
    """An untrained agent for ``env``."""
    leaves = obs_leaves(env.observation_space)
    signature = Signature(leaves, action_leaf(env.action_space))
    signature = Signature.from_json(signature.to_json())  # as a checkpoint has it
    return rookery.Agent(ActorCritic(PolicyConfig(hidden=(8,), **policy), signature))


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=5),
        gym.spaces.Discrete(2),
        gym.spaces.MultiDiscrete([2, 3], start=[4, -7]),
        gym.spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        gym.spaces.MultiBinary((2, 2)),
        gym.spaces.Box(-2.0, 0.1, (2, 3), np.float64),
        gym.spaces.Box(-2.0, 0.1, (2,), np.float32),
        gym.spaces.Box(-np.inf, np.inf, (1,), np.float32),
        gym.spaces.Box(0.0, np.inf, (2,), np.float64),
    ],
    ids=str,
)
def test_actions_are_what_the_environment_takes(space: Any) -> None:
    env = Recall()
    env.action_space = space
    agent = agent_of(env, log_std_init=2.0)
    taken = set()
    for _ in range(50):
        action, _ = agent.act(np.zeros(2, np.float32))
        assert space.contains(action), action
        taken.add(str(action))
    assert len(taken) > 1, "they are sampled"
    actions, _ = agent.act(np.zeros((50, 2), np.float32))
    assert len(actions) == 50
    assert all(space.contains(action) for action in actions)
    likely = [str(agent.act(np.zeros(2), deterministic=True)[0]) for _ in range(3)]
    assert len(set(likely)) == 1


def test_observations_of_every_kind_one_or_many() -> None:
    env = Assorted()
    agent = agent_of(env)
    obs, _ = env.reset(seed=1)
    for _ in range(5):
        action, _ = agent.act(obs)
        obs, *_ = env.step(action)
    single = [env.observation_space.sample() for _ in range(6)]
    batched: Any = {
        "place": np.array([one["place"] for one in single]),
        "pair": tuple(np.stack([one["pair"][i] for one in single]) for i in range(2)),
        "speed": np.stack([one["speed"] for one in single]),
    }
    one_by_one = [agent.act(one, deterministic=True)[0] for one in single]
    together, _ = agent.act(batched, deterministic=True)
    np.testing.assert_array_equal(together, np.stack(one_by_one))


def test_plain_numbers_lists_and_tuples_are_observations() -> None:
    place = Recall()
    place.observation_space = gym.spaces.Discrete(4, start=2)
    agent = agent_of(place)
    assert agent.act(5)[0] in (0, 1)
    assert agent.act(np.array([2, 3, 5]))[0].shape == (3,)
    plain = agent_of(Recall())
    results = [
        plain.act(obs, deterministic=True)[0] for obs in ([0.5, 1], (0.5, 1), {"obs": [0.5, 1]})
    ]
    assert len(set(results)) == 1


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_the_state_carries_the_past(core: str) -> None:
    agent = agent_of(Mirror("box"), core=core, core_size=8)
    rng = np.random.default_rng(0)
    past, now = rng.normal(size=(2, 5, 2)).astype(np.float32)
    first, state = agent.act(past, deterministic=True)
    second, after = agent.act(now, state, deterministic=True)
    fresh, _ = agent.act(now, deterministic=True)
    assert not np.array_equal(second, fresh), "the same sight after another past"
    assert sorted(after) == (["h"] if core == "gru" else ["c", "h"])
    assert {leaf.shape for leaf in after.values()} == {(5, 8)}
    one_first, one_state = agent.act(past[2], deterministic=True)
    one_second, _ = agent.act(now[2], one_state, deterministic=True)
    np.testing.assert_allclose(one_first, first[2], rtol=1e-5)
    np.testing.assert_allclose(one_second, second[2], rtol=1e-5)
    with pytest.raises(rookery.UserError, match="state is of 5 observations, but 1 were given"):
        agent.act(now[0], state)


def test_masks_are_kept_when_given(tmp_path: Path) -> None:
    env = {"action_mask_key": "open"}
    run = tiny(tmp_path, "tests.toy_worlds:Fenced", env=env)
    agent, world = rookery.load(run.path), Fenced()
    obs, info = world.reset(seed=0)
    for _ in range(30):
        action, _ = agent.act(obs, action_mask=info["open"])
        obs, _, over, _, info = world.step(action)  # raises at a closed door
        if over:
            obs, info = world.reset()
    many, _ = agent.act(np.ones((20, 4)), action_mask=np.array([0, 0, 1, 0]))
    assert set(many.tolist()) == {3}
    assert agent.act(np.ones(4))[0] in (1, 2, 3, 4)
    with pytest.raises(rookery.UserError, match=re.escape("action_mask has shape [3]")):
        agent.act(np.ones(4), action_mask=[1, 1, 1])


@pytest.mark.parametrize(
    ("obs", "says"),
    [
        (np.zeros(3), "observation 'obs' has shape [3]; the agent takes [2]"),
        (np.zeros((2, 2, 2)), "or a batch of these"),
        (np.zeros((0, 2)), "or a batch of these"),
        ({"eyes": np.zeros(2)}, "the agent observes ['obs'], but was given ['eyes']"),
    ],
)
def test_observations_of_another_world(obs: Any, says: str) -> None:
    with pytest.raises(rookery.UserError, match=re.escape(says)):
        agent_of(Recall()).act(obs)


def test_parts_of_different_batches() -> None:
    env = Recall()
    box = gym.spaces.Box(-1, 1, (2,))
    env.observation_space = gym.spaces.Dict({"a": box, "b": box})  # type: ignore[assignment]
    agent = agent_of(env)
    for sizes in ((2, 3), (None, 3)):
        parts = [np.zeros(2) if n is None else np.zeros((n, 2)) for n in sizes]
        with pytest.raises(rookery.UserError, match="not of one batch"):
            agent.act({"a": parts[0], "b": parts[1]})


def test_one_seed_one_stream_of_actions(cartpole: Run) -> None:
    obs = np.zeros((64, 4), np.float32)
    first, same, other = (rookery.load(cartpole.path, seed=seed).act(obs)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_load_says_what_is_missing(tmp_path: Path, cartpole: Run) -> None:
    with pytest.raises(rookery.UserError, match="does not exist"):
        rookery.load(tmp_path / "nothing")
    with pytest.raises(rookery.UserError, match="no checkpoint of 5 steps"):
        rookery.load(cartpole.path, "5")
    rookery.load(cartpole.path, "latest")
    rookery.load(cartpole.path / "checkpoints" / "latest")


def test_a_run_keeps_its_algorithm_and_ranks_are_the_commands(cartpole: Run) -> None:
    with pytest.raises(rookery.UserError, match="algo: a run keeps its own, ppo; train with a2c"):
        rookery.resume(cartpole.path, algo="a2c")
    with pytest.raises(rookery.UserError, match="use `mpiexec -n 4 rookery train"):
        rookery.train("cartpole", engine="mpi")
