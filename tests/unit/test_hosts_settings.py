"""Who may join which run, and what is refused before it begins."""

from __future__ import annotations

import pytest

from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.programs.plan import Plan
from rookery.recipes.settings import config_from_tree, settings_from_flags
from rookery.runs.config import RunConfig

HERE = "127.0.0.1:5500"


def settings(what: str = "dqn-cartpole", **flags: str) -> RunConfig:
    return settings_from_flags(what, {"listen": HERE} | flags)


def test_a_run_that_listens_has_room_for_more() -> None:
    config = settings(actors="2", places="3")
    assert (config.engine, config.num_acting_here, config.num_acting) == ("local", 2, 5)
    plan = Plan.of(config)
    assert plan.envs_each == 4, "as without hosts"
    program = plan.program()
    assert program.acting.replicas == 5
    assert [node.name for node in program.nodes if node.stands_for_hosts] == ["gateway"]
    assert settings().num_places == 32
    again = config_from_tree(config.to_tree())
    assert again == config, "a resumed head listens where it did"


def test_a_fixed_number_is_divided() -> None:
    config = settings("cartpole", actors="4", places="3")
    assert (config.num_acting_here, config.num_acting) == (1, 4)
    assert Plan.of(config).envs_each == 8


def test_all_may_act_elsewhere() -> None:
    config = settings(actors="0")
    assert config.num_acting_here == 0
    assert Plan.of(config).envs_each == config.env.num_envs


@pytest.mark.parametrize(
    ("what", "flags", "said"),
    [
        ("dqn-cartpole", {"listen": "here"}, "--listen here: not of the form HOST:PORT"),
        ("dqn-cartpole", {"engine": "inline"}, "hosts join engine local, not inline"),
        ("dqn-cartpole", {"places": "0"}, "--places: must be between 1 and"),
        ("bipedal", {"formation": "hogwild", "algo": "ppo"}, "shares memory and stays on one"),
        ("cartpole", {"actors": "2"}, "say with --places how many of the 2 --actors"),
        ("cartpole", {"actors": "2", "places": "3"}, "3 are more than there are actors in all, 2"),
        (
            "cartpole",
            {"formation": "allreduce", "actors": "2", "places": "2"},
            "one of the 2 workers must be here",
        ),
        ("dqn-cartpole", {"hosts.key": "key.pem"}, "give both, or neither"),
        ("dqn-cartpole", {"hosts.lease_secs": "0.5"}, "hosts.lease_secs: must be at least 1"),
    ],
)
def test_what_cannot_be_is_one_line(what: str, flags: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as error:
        settings(what, **flags)
    assert said in str(error.value)


def test_places_without_hosts_are_refused() -> None:
    with pytest.raises(UserError, match="add --listen HOST:PORT"):
        settings_from_flags("dqn-cartpole", {"places": "3"})
    with pytest.raises(UserError, match=r"num_actors: must be at least 1, got 0; --listen"):
        settings_from_flags("dqn-cartpole", {"actors": "0"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "join what? give the HOST:PORT"),
        (["here:1"], "give the --token"),
        (["here", "--token", "x" * 20], "not of the form HOST:PORT"),
        (
            ["10.0.0.1:1", "--token", "x" * 20],
            "10.0.0.1:1 is another machine: give the fingerprint",
        ),
        (["here:1", "--actors", "none"], "--actors: must be at least 1"),
        (["here:1", "--tokn", "x"], "unknown flag --tokn; did you mean 'token'?"),
        (["here:1", "--token-file", "nowhere"], "cannot read the token in nowhere"),
        (["--run", "nowhere"], "--run nowhere: this machine sees no such directory"),
        (["here:1", "--run", "nowhere"], "--run nowhere: this machine sees no such directory"),
        (["--run", ".", "--token", "x" * 20], "--run . says that already; leave --token out"),
    ],
)
def test_what_cannot_join_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROOKERY_TOKEN", raising=False)
    monkeypatch.setattr("sys.argv", ["rookery"])
    assert main(["join", *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert len(errors.splitlines()) == 1


def test_joining_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", "--help"]) == 0
    assert "--fingerprint" in capsys.readouterr().out
