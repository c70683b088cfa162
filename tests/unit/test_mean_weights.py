"""The mean of weights along a training, and that it is what is saved and played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rookery
from rookery.core.errors import UserError
from rookery.params.flat import FlatParams
from rookery.params.mean_weights import MeanWeights
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_python
from rookery.runs.find import load_checkpoint


def test_it_is_the_mean_at_first_and_fades_later() -> None:
    data = torch.zeros(2)
    mean = MeanWeights(data, num_updates=4)
    for value in (1.0, 2.0, 6.0):
        data.fill_(value)
        mean.add()
    np.testing.assert_allclose(mean.mean, [3.0, 3.0])
    data.fill_(7.0)
    mean.add()  # the fourth: still all alike
    np.testing.assert_allclose(mean.mean, [4.0, 4.0])
    data.fill_(8.0)
    mean.add()
    np.testing.assert_allclose(mean.mean, [5.0, 5.0])  # 3/4 of 4 and 1/4 of 8


def test_a_vector_by_the_names_of_parameters() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Conv2d(2, 4, 3))
    before = {name: leaf.detach().clone() for name, leaf in module.named_parameters()}
    flat = FlatParams(module)
    for name, view in flat.views(flat.data.clone().mul_(2)).items():
        np.testing.assert_array_equal(view, 2 * before[name])


SMALL: dict[str, Any] = {
    "ppo": {"rollout_steps": 16, "num_minibatches": 2, "num_epochs": 1},
    "policy": {"hidden": [8], "normalize_obs": True},
    "envs": 2,
    "steps": 320,
    "eval": {"episodes": 0},
    "stop_at": None,
}


@pytest.mark.slow
def test_the_mean_is_saved_and_played_and_learning_goes_on_without_it(tmp_path: Path) -> None:
    plain = rookery.train("CartPole-v1", run=tmp_path / "plain", **SMALL)
    averaged = rookery.train(
        "CartPole-v1", run=tmp_path / "averaged", optimizer={"average_updates": 1000}, **SMALL
    )
    weights = [load_checkpoint(run.path).parts["weights"].arrays for run in (plain, averaged)]
    learned = load_checkpoint(averaged.path).parts["learner"].arrays["learned_weights"]
    names = [name for name, _ in rookery.load(plain.path).policy.named_parameters()]
    as_learned = np.concatenate([np.asarray(weights[0][name]).ravel() for name in names])
    np.testing.assert_array_equal(learned, as_learned)
    assert all(not np.array_equal(weights[0][name], weights[1][name]) for name in names)
    for name in weights[0].keys() - set(names):  # statistics are no weights
        np.testing.assert_array_equal(weights[0][name], weights[1][name])
    played = rookery.load(averaged.path).policy.state_dict()
    for name in names:
        np.testing.assert_array_equal(played[name], weights[1][name])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"algo": "dqn"}, "formation replay does not average weights; set it to 0, or choose"),
        ({"algo": "ppo", "formation": "hogwild", "engine": "local"}, "formation hogwild does not"),
    ],
)
def test_where_it_is_not_done_it_is_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Plan.of(settings_from_python("CartPole-v1", {"optimizer.average_updates": 5, **flags}))


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(UserError, match="must not be negative"):
        settings_from_python("CartPole-v1", {"optimizer.average_updates": -1})
