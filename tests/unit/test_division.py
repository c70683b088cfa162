"""Environments of the whole run, divided among those who act; and the flags that say how many."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from rookery.cli.resume import FLAGS
from rookery.cli.resume import main as resume_main
from rookery.core.errors import UserError
from rookery.formations.settings import FormationConfig, formation_names
from rookery.recipes.schema import Schema
from rookery.recipes.settings import (
    config_from_tree,
    revised_by_flags,
    settings_from_flags,
    settings_from_python,
    tree_of_flags,
)
from rookery.runs.config import VERSION, RunConfig, divided

ALGOS = {"async": "impala", "replay": "dqn"}
"""Where it is not ppo."""


def config_of(formation: str = "sync", **flags: str) -> RunConfig:
    algo = ALGOS.get(formation, "ppo")
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    return settings_from_flags("CartPole-v1", {"formation": formation, "algo": algo} | dotted)


# --- divided ---------------------------------------------------------------------------------

DIVIDED = [
    (32, 10, 1, 30),
    (32, 1, 1, 32),
    (35, 10, 1, 40),
    (34, 10, 1, 30),
    (10, 10, 1, 10),
    (14, 10, 1, 10),
    (32, 10, 2, 40),
    (28, 10, 2, 20),
    (2, 1, 2, 2),
]


@pytest.mark.parametrize(("envs", "actors", "halves", "expected"), DIVIDED)
def test_environments_become_the_nearest_multiple(
    envs: int, actors: int, halves: int, expected: int
) -> None:
    config = config_of(envs=str(envs), actors=str(actors), env__halves=str(halves))
    whole, note = divided(config)
    assert whole.env.num_envs == expected
    assert whole.formation_config == config.formation_config
    assert (note is None) == (envs == expected)
    if note is not None:
        assert note.startswith(f"env.num_envs: {expected}, not {envs}: a multiple of {actors} acto")
        assert "\n" not in note
    assert divided(whole) == (whole, None), "once is enough"


@pytest.mark.parametrize("formation", formation_names())
def test_one_thread_carries_one_worker_with_all_environments(formation: str) -> None:
    config = config_of(formation, envs="32", actors="4", engine="inline")
    whole, note = divided(config)
    assert whole.env.num_envs == 32
    if formation in ("allreduce", "hogwild", "paramserver"):
        assert whole.formation_config.num_actors == 1
        assert note == f"{formation}.num_actors: 1, not 4: engine inline is one thread"
        elsewhere = replace(config, engine="local")
        assert divided(elsewhere) == (elsewhere, None)
        threads = replace(config, threads=True)
        assert divided(threads) == (threads, None)
    else:
        assert (whole, note) == (config, None)
    assert divided(whole) == (whole, None)


def test_a_batch_has_as_many_steps_whoever_acts() -> None:
    for actors in (1, 2, 4, 8):
        config, _ = divided(config_of(envs="32", actors=str(actors), engine="local"))
        assert config.formation_config.batch_columns(config.env.num_envs) == 32


def test_minibatches_are_those_of_what_one_learns_from() -> None:
    flags = {"engine": "local", "envs": "8", "actors": "4", "policy__core": "gru"}
    assert config_of("sync", **flags, ppo__num_minibatches="8").env.num_envs == 8
    with pytest.raises(UserError, match="8 is more than the 2 environments"):
        config_of("allreduce", **flags, ppo__num_minibatches="8")
    alone = config_of("allreduce", **(flags | {"engine": "inline"}), ppo__num_minibatches="8")
    assert divided(alone)[0].formation_config.num_actors == 1


def test_batches_of_async_are_whole_rollouts_of_the_environments_there_will_be() -> None:
    flags = {"envs": "38", "actors": "10", "engine": "local"}
    config = config_of("async", **flags, **{"async__batch_envs": "8"})
    assert divided(config)[0].env.num_envs == 40
    with pytest.raises(UserError, match=r"async\.batch_envs: 9 cannot be made of .* a multiple of"):
        config_of("async", **flags, **{"async__batch_envs": "9"})


# --- what is refused -------------------------------------------------------------------------

BAD = {
    "sync --actors 9 --envs 8": "--actors: 9 actors cannot share 8 environments (--envs); have "
    "--envs 9 or more, or fewer --actors",
    "hogwild --engine local --workers 9 --envs 8": "--actors: 9 workers cannot share 8",
    "sync --actors 3 --envs 4 --env.halves 2": "env.halves: 2 halves for each of 3 actors cannot "
    "be made of 4 environments (--envs); have --envs 6 or more",
    "sync --threads true --engine local": "--threads: engine local has a process for each actor; "
    "use --engine inline",
    "sync --threads maybe": "--threads: must be true or false, got 'maybe'",
    "sync --workers 2": "unknown flag --workers: formation sync has actors; use --actors",
    "async --workers 2": "unknown flag --workers: formation async has actors; use --actors",
    "replay --workers 2": "unknown flag --workers: formation replay has actors; use --actors",
    "sync --learners 2": "unknown flag --learners: formation sync has one learner",
    "async --learners 2": "unknown flag --learners: formation async has one learner",
    "allreduce --learners 2": "--learners: in formation allreduce the workers learn; use --actors",
    "hogwild --learners 2": "--learners: in formation hogwild the workers learn; use --actors",
    "sync --servers 2": "--servers: formation sync has no parameter servers; leave it out",
    "async --async.rollouts_per_batch 2": "async.rollouts_per_batch: it is async.batch_envs now",
    "async --async.threads true": "async.threads: it is threads now, without async: --threads true",
    "hogwild --optimizer.average_updates 3": "formation hogwild does not average weights; set it",
    "replay --optimizer.average_updates 3": "formation replay does not average weights; set it",
    "replay --env.halves 2": "env.halves: actors of formation replay step all their environments",
    "sync --version 2": "unknown flag --version",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_flags(line: str) -> None:
    formation, *words = line.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    flags = {flag[2:].replace(".", "__"): value for flag, value in pairs}
    with pytest.raises(UserError) as caught:
        config_of(formation, **flags)
    assert BAD[line] in str(caught.value)
    assert "\n" not in str(caught.value)


# --- how many act ----------------------------------------------------------------------------


@pytest.mark.parametrize("formation", formation_names())
def test_actors_is_a_flag_of_every_formation(formation: str) -> None:
    config = config_of(formation, actors="3", envs="6")
    assert config.formation_config.num_actors == 3
    assert revised_by_flags(config, {"actors": "2"}).formation_config.num_actors == 2
    same = settings_from_python(
        "CartPole-v1",
        {"formation": formation, "algo": ALGOS.get(formation, "ppo"), "actors": 3, "envs": 6},
    )
    assert same == replace(config, recipe=same.recipe)


@pytest.mark.parametrize("formation", ["allreduce", "hogwild"])
def test_workers_are_those_who_act(formation: str, tmp_path: Path) -> None:
    expected = config_of(formation, actors="3")
    assert config_of(formation, workers="3") == expected
    assert config_of(formation, **{f"{formation}__num_workers": "3"}) == expected
    given: dict[str, Any] = {"formation": formation, formation: {"num_workers": 3}}
    assert settings_from_python("CartPole-v1", given) == expected
    given = {"formation": formation, f"{formation}.num_workers": 3}
    assert settings_from_python("CartPole-v1", given) == expected
    file = tmp_path / "mine.yaml"
    for tree in (
        {"formation": formation, formation: {"num_workers": 3}},
        {"formation": formation, "formations": {formation: {formation: {"num_workers": 3}}}},
    ):
        file.write_text(yaml.safe_dump(tree))
        assert settings_from_flags("CartPole-v1", {"config": str(file)}) == expected
    assert revised_by_flags(expected, {"workers": "2"}).formation_config.num_actors == 2


def test_a_number_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("formation: hogwild\nhogwild: {num_workers: 2, num_actors: 3}\n")
    with pytest.raises(UserError, match=r"hogwild\.num_workers: is num_actors now, which is there"):
        settings_from_flags("CartPole-v1", {"config": str(file)})


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"rollouts_per_batch": 2}, "async.rollouts_per_batch: is async.batch_envs now"),
        ({"threads": True}, "async.threads: is threads now, without async"),
    ],
)
def test_old_settings_of_async_say_what_to_write(
    block: dict[str, Any], says: str, tmp_path: Path
) -> None:
    file, tree = tmp_path / "mine.yaml", {"formation": "async", "algo": "impala", "async": block}
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        settings_from_flags("CartPole-v1", {"config": str(file)})
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=re.escape(says)):
        settings_from_python("CartPole-v1", tree)


def test_resume_names_no_flag_that_has_nothing_to_do_with_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'workers'"):
        resume_main([str(tmp_path), "--worker", "2"])
    config = config_of("sync")
    with pytest.raises(UserError, match="--workers: formation sync has actors; use --actors"):
        revised_by_flags(config, {"workers": "2"})


def test_a_run_of_threads_may_go_on_in_processes() -> None:
    config = config_of("async", threads="true")
    with pytest.raises(UserError, match="--threads: engine local has a process for each actor"):
        revised_by_flags(config, {"engine": "local"})
    assert not revised_by_flags(config, {"engine": "local", "threads": "false"}).threads
    assert "threads" in FLAGS


def test_python_says_it_in_its_own_words() -> None:
    with pytest.raises(UserError, match="'workers': formation sync has actors; use actors"):
        settings_from_python("CartPole-v1", {"workers": 2})


# --- files -----------------------------------------------------------------------------------


def test_what_is_written_down_says_its_version() -> None:
    config = config_of("hogwild", actors="2")
    tree = config.to_tree()
    assert next(iter(tree.items())) == ("version", VERSION)
    assert config_from_tree(tree) == config
    assert tree_of_flags(config, {"actors": "2"}) == {
        "version": VERSION,
        "hogwild": {"num_actors": 2},
    }


# --- a formation of one's own ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GossipConfig(FormationConfig):
    """Settings of a formation of one's own."""

    acting_role: ClassVar[str] = "worker"
    averages: ClassVar[bool] = False

    num_peers: int = 2
    """Whom each tells its weights."""


class Gossip:
    """A formation of one's own."""

    Config = GossipConfig


class Env(Gossip):
    """One whose name is taken."""


MINE = f"{__name__}:Gossip"


def test_a_formation_of_ones_own_has_a_block_named_after_it() -> None:
    flags = {"formation": MINE, "workers": "2", "gossip.num_peers": "3"}
    config = settings_from_flags("cartpole", flags)
    assert config.formation_config == GossipConfig(num_actors=2, num_peers=3)
    tree = config.to_tree()
    assert tree["gossip"] == {"num_actors": 2, "num_peers": 3}
    assert tree["formation"] == MINE
    assert config_from_tree(tree) == config
    with pytest.raises(UserError, match=r"gossip\.num_actors: must be at least 1, got 0"):
        settings_from_flags("cartpole", flags | {"workers": "0"})
    with pytest.raises(UserError, match="Gossip does not average weights"):
        settings_from_flags("cartpole", flags | {"optimizer.average_updates": "3"})


def test_its_name_must_be_free() -> None:
    with pytest.raises(UserError, match="would name its settings 'env', which is taken"):
        Schema("ppo", f"{__name__}:Env")
