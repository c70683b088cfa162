"""The doctor's thread budget: what fits the cores, and the flag that makes the rest fit."""

from __future__ import annotations

import pytest

from rookery.doctor import threads
from tests.unit.test_doctor import ANY, one, wanting

pytestmark = pytest.mark.slow


def test_the_budget_of_a_recipe() -> None:
    flags = ("engine", "local", "actors", "3")
    fits = one(threads.budget(wanting(*flags), 8, {}), "threads")
    assert (fits.level, fits.text) == ("ok", "actor x3 1, learner 1, evaluator 1: 5 for 8 cores")
    turns = one(threads.budget(wanting(*flags), 4, {}), "threads")
    assert turns.level == "note"
    crowded = one(threads.budget(wanting(*flags), 2, {}), "threads")
    assert (crowded.level, crowded.remedy) == ("warning", "--actors 2")
    learner = ("engine", "local", "sync.learner_threads", "6")
    assert one(threads.budget(wanting(*learner), 4, {}), "threads").remedy == (
        "--sync.learner_threads 4"
    )
    alone = one(threads.budget(wanting(), 2, {}), "threads")
    assert (alone.level, alone.text) == ("ok", "one process takes turns, with 1 for 2 cores")
    assert one(threads.budget(ANY, 2, {}), "threads").level == "ok"


@pytest.mark.parametrize(
    ("flags", "level", "said", "remedy"),
    [
        ("formation allreduce engine local workers 8", "warning", "worker alone", "--workers 2"),
        (
            "formation hogwild engine local workers 2 hogwild.worker_threads 4",
            "warning",
            "worker alone has too many",
            "--hogwild.worker_threads 1",
        ),
        (
            "formation allreduce allreduce.worker_threads 16",
            "warning",
            "one process takes turns, with 16",
            "--allreduce.worker_threads 2",
        ),
        (
            "algo impala formation async threads true actors 8",
            "warning",
            "actor alone has too many",
            "--actors 2",
        ),
        (
            "algo impala formation async engine local actors 2",
            "note",
            "4 for 2 cores; they share the cores",
            "",
        ),
        (
            "formation allreduce engine local workers 2",
            "note",
            "3 for 2 cores; not all work all the time",
            "",
        ),
        (
            "env.id ALE/Pong-v5 env.atari.num_threads 4",
            "warning",
            "with 4 for 2 cores",
            "--env.atari.num_threads 2",
        ),
    ],
)
def test_the_remedy_is_of_the_role_that_has_too_many(
    flags: str, level: str, said: str, remedy: str
) -> None:
    found = one(threads.budget(wanting(*flags.split()), 2, {}), "threads")
    assert (found.level, found.remedy) == (level, remedy)
    assert said in found.text


def test_a_setting_of_openmp_is_told() -> None:
    assert "is not set" in one(threads.budget(ANY, 2, {}), "OpenMP").text
    many = one(threads.budget(ANY, 2, {"OMP_NUM_THREADS": "64"}), "OpenMP")
    assert many.level == "note"
