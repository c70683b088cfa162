"""Frames are kept once, and come back as they were: real Atari, and what looks like none."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import ale_py
import numpy as np
import pytest

from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import Array, ArraySpec
from rookery.replay.frames import FrameColumn
from rookery.replay.memory import estimate_bytes
from rookery.replay.sequences import SequenceConfig
from rookery.replay.settings import TableConfig
from rookery.replay.table import Table

ATARI = ArraySpec((4, 84, 84), np.dtype(np.uint8))
SPEC = StepSpec(obs={"obs": ATARI}, action=ArraySpec((), np.dtype(np.int64)))
NUM_ENVS = 2


@cache
def atari_steps(game: str, num_steps: int = 330) -> list[Steps]:
    """Random play; every 150 steps an episode is cut, so that stacks begin anew."""
    envs = ale_py.AtariVectorEnv(game, num_envs=NUM_ENVS, max_num_frames_per_episode=600)
    obs, _ = envs.reset(seed=1)
    obs, rng, steps = obs.copy(), np.random.default_rng(0), []
    over = np.zeros(NUM_ENVS, np.bool_)
    for _ in range(num_steps):
        action = rng.integers(0, envs.single_action_space.n, NUM_ENVS)
        after, reward, terminated, truncated, _ = envs.step(action)
        steps.append(
            Steps(
                stream=np.arange(NUM_ENVS),
                obs={"obs": obs},
                action=action,
                reward=reward.astype(np.float64),
                terminated=terminated.copy(),
                truncated=truncated.copy(),
                final_obs={"obs": after.copy()},
                valid=~over,
            )
        )
        obs, over = after.copy(), terminated | truncated
    envs.close()
    return steps


def atari_table(sequence: SequenceConfig, capacity_steps: int = 2000) -> Table:
    settings = TableConfig(
        capacity_steps=capacity_steps, num_streams=NUM_ENVS, sequence=sequence, batch_size=4
    )
    return Table(settings, SPEC)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["pong", "ms_pacman"])
@pytest.mark.parametrize(
    "sequence",
    [SequenceConfig(n_step=3), SequenceConfig(length=20, overlap=10, burn_in=10, n_step=5)],
    ids=["flat", "r2d2"],
)
def test_observations_come_back_as_they_were_acted_on(game: str, sequence: SequenceConfig) -> None:
    """At the beginnings and ends of episodes too, and after the ring went round."""
    table, steps = atari_table(sequence, capacity_steps=192), atari_steps(game)
    seen: list[list[Array]] = [[] for _ in range(NUM_ENVS)]  # one array a row, as put
    for step in steps:
        table.put(step)
        for env in np.flatnonzero(step.valid):
            seen[env].append(step.obs["obs"][env])
            if step.terminated[env] or step.truncated[env]:
                seen[env].append(step.final_obs["obs"][env])  # type: ignore[index]
    assert sum(bool(step.truncated.any()) for step in steps) >= 2
    known = [{row.tobytes() for row in rows} for rows in seen]
    follows = [{(one.tobytes(), two.tobytes()) for one, two in pairwise(rows)} for rows in seen]
    rng = np.random.default_rng(0)
    for _ in range(4):
        found = table.sample(4, rng).sequences
        for column in range(4):
            real = found.mask[:, column]
            rows = [*found.obs["obs"][:-1, column][real]]
            rows.append(found.obs["obs"][np.flatnonzero(real)[-1] + 1, column])
            data = [row.tobytes() for row in rows]
            assert any(set(data) <= env for env in known)
            assert any(set(pairwise(data)) <= env for env in follows)


@pytest.mark.parametrize("game", ["pong", "ms_pacman"])
def test_a_million_steps_fit_in_two_gigabytes(game: str) -> None:
    """RPC RL: replay 11 GB for 50,000 steps. From what these steps take, all in."""
    table = atari_table(SequenceConfig(n_step=3))
    for step in atari_steps(game):
        table.put(step)
    column = table._store.columns["obs/obs"]
    assert isinstance(column, FrameColumn)
    each, rows = column.frame_bytes, table.num_steps
    assert 0 < each < 84 * 84 / 10
    assert int(column._num_frames.sum()) / rows < 1.4  # once, not four times
    million = TableConfig(
        capacity_steps=1_000_000, num_streams=256, sequence=SequenceConfig(n_step=3)
    )
    total = estimate_bytes(million, SPEC, frame_bytes=each)
    print(f"{game}: {each:.0f} bytes a frame, {total / 1e9:.2f} GB a million steps")
    assert total < 2e9
    raw = 1_000_000 * ATARI.num_bytes
    assert total < raw / 14


def test_the_estimate_is_what_a_table_then_holds() -> None:
    table = atari_table(SequenceConfig(n_step=3), capacity_steps=320)
    for step in atari_steps("pong"):
        table.put(step)
    column = table._store.columns["obs/obs"]
    assert isinstance(column, FrameColumn)
    told = estimate_bytes(table.config, SPEC, frame_bytes=column.frame_bytes)
    assert told == pytest.approx(table.memory_bytes(), rel=0.15)


def test_the_estimate_of_images_whose_channels_are_last() -> None:
    """They are no stack of their rows of pixels: each is new as a whole."""
    image = ArraySpec((24, 20, 3), np.dtype(np.uint8))
    spec = StepSpec(obs={"obs": image}, action=ArraySpec((), np.dtype(np.int64)))
    config = TableConfig(capacity_steps=640, num_streams=NUM_ENVS, batch_size=4)
    table, rng = Table(config, spec), np.random.default_rng(0)
    for _ in range(400):
        noise = rng.integers(0, 255, (NUM_ENVS, *image.shape), np.uint8)
        table.put(
            Steps(
                stream=np.arange(NUM_ENVS),
                obs={"obs": noise},
                action=np.zeros(NUM_ENVS, np.int64),
                reward=np.zeros(NUM_ENVS),
                terminated=np.zeros(NUM_ENVS, np.bool_),
                truncated=np.zeros(NUM_ENVS, np.bool_),
                final_obs=None,
            )
        )
    column = table._store.columns["obs/obs"]
    assert isinstance(column, FrameColumn)
    assert column.frame_bytes == pytest.approx(image.num_bytes, rel=0.05), "noise stays as it is"
    held = table.memory_bytes()
    assert estimate_bytes(config, spec, packed=1.0) == pytest.approx(held, rel=0.1)
    assert estimate_bytes(config, spec) < held


@pytest.mark.parametrize("shape", [(3, 6, 6), (6, 5, 3), (1, 6), (5,), (7, 2)])
@pytest.mark.parametrize("kind", ["stack", "zeros first", "noise", "constant"])
def test_any_leaf_comes_back_exactly(shape: tuple[int, ...], kind: str) -> None:
    """Overlap is looked up, not assumed: what is no stack is stored whole."""
    rng = np.random.default_rng(0)
    column = FrameColumn(ArraySpec(shape, np.dtype(np.uint8)), 6, 5)
    rows = np.zeros((30, *shape), np.uint8)
    for t in range(30):
        begins = t % 11 == 0
        if kind == "noise":
            rows[t] = rng.integers(0, 255, shape)
        elif kind != "constant":
            frame = rng.integers(0, 255, shape[1:])
            rows[t] = 0 if kind == "zeros first" else frame
            if not begins:
                rows[t, :-1] = rows[t - 1, 1:]
            rows[t, -1] = frame
    for lap in range(2):  # chunks are used again
        for t in range(30):
            column.write(np.array([t]), rows[t : t + 1] ^ lap)
            if t % 5 == 4 and t < 28:
                column.close(t // 5)
        wanted = np.array([[0, 29, 30], [7, 8, 3], [9, 30, 0]])
        out = np.full((3, 3, *shape), 7, np.uint8)
        column.read(wanted, out)
        padded = np.concatenate([rows ^ lap, np.zeros_like(rows[:1])])
        np.testing.assert_array_equal(out, padded[wanted])
        column.close(5)


def test_frames_of_an_open_chunk_survive_a_snapshot() -> None:
    steps = atari_steps("pong")
    first, second = (atari_table(SequenceConfig(n_step=3)) for _ in range(2))
    for step in steps[:100]:
        first.put(step)
    second.load_state_dict(*first.state_dict())
    for table in (first, second):
        for step in steps[100:]:
            table.put(step)
    mine, theirs = (table.sample(16, np.random.default_rng(2)) for table in (first, second))
    np.testing.assert_array_equal(mine.keys, theirs.keys)
    np.testing.assert_array_equal(mine.sequences.obs["obs"], theirs.sequences.obs["obs"])
