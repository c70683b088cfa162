"""The rate limiter: the ratio it keeps, and that one side can always go on."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.core.errors import UserError
from rookery.replay.rate_limiter import RateLimiter, RateLimiterConfig


def run(config: RateLimiterConfig, seed: int, rounds: int = 3000) -> RateLimiter:
    """Both sides ask in random order, with random sizes; at least one may always go on."""
    rng = np.random.default_rng(seed)
    limiter = RateLimiter(config)
    for _ in range(rounds):
        assert limiter.can_put(config.max_put) or limiter.can_sample(config.max_sample)
        if rng.random() < 0.5:
            num = int(rng.integers(0, config.max_put + 1))
            if limiter.can_put(num):
                limiter.record_put(num)
        else:
            num = int(rng.integers(1, config.max_sample + 1))
            if limiter.can_sample(num):
                limiter.record_sample(num)
    return limiter


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ratio", [0.1, 1.0, 8.0, 1 / 3])
@pytest.mark.parametrize(("max_put", "max_sample"), [(1, 1), (16, 1), (1, 64), (7, 5)])
def test_the_ratio_is_kept_and_nobody_waits_for_ever(
    ratio: float, max_put: int, max_sample: int, seed: int
) -> None:
    """MarltasCore: replay ratio uncontrolled."""
    config = RateLimiterConfig(
        samples_per_insert=ratio, min_size=20, max_put=max_put, max_sample=max_sample
    )
    limiter = run(config, seed)
    surplus = (limiter.num_put - config.min_size) * ratio - limiter.num_sampled
    assert limiter.num_sampled > 0
    assert abs(surplus) <= config.least_buffer + max_put * ratio  # a first put may overshoot


def test_nothing_is_sampled_before_there_is_enough() -> None:
    limiter = RateLimiter(RateLimiterConfig(min_size=10))
    limiter.record_put(9)
    assert not limiter.can_sample()
    limiter.record_put(1)
    assert limiter.can_sample()
    assert limiter.can_put()  # without a ratio nothing else is asked for


@pytest.mark.parametrize("extra", [0.0, 30.0])
def test_settings_that_deadlock_are_refused(extra: float) -> None:
    """One line tells the least buffer; with that, every surplus leaves one side free."""
    sizes = {"samples_per_insert": 4.0, "max_put": 16, "max_sample": 32, "min_size": 100}
    least = RateLimiterConfig(**sizes).least_buffer
    with pytest.raises(UserError, match=r"wait for each other for ever.*at least 48"):
        RateLimiterConfig(**sizes, error_buffer=least - 1.0)
    limiter = RateLimiter(RateLimiterConfig(**sizes, error_buffer=least + extra))
    for num_put in (100, 101, 150):
        limiter.num_put = num_put
        for limiter.num_sampled in range(num_put * 4 + 200):
            assert limiter.can_put(16) or limiter.can_sample(32)


def test_a_smaller_buffer_would_deadlock() -> None:
    """So the bound is not only enough but needed."""
    config = RateLimiterConfig(samples_per_insert=4.0, max_put=16, max_sample=32, min_size=100)
    limiter = RateLimiter(config)
    limiter._low, limiter._high = 400 - 40.0, 400 + 40.0
    limiter.num_put, stuck = 100, []
    for limiter.num_sampled in range(200):
        stuck.append(not limiter.can_put(16) and not limiter.can_sample(32))
    assert any(stuck)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"samples_per_insert": 0.0}, "samples_per_insert=0.0 must be a positive number"),
        ({"samples_per_insert": float("nan")}, "must be a positive number"),
        ({"min_size": 0}, "min_size=0 must be at least 1"),
        ({"max_sample": 0}, "max_sample=0 must be at least 1"),
        ({"error_buffer": 3.0}, "error_buffer does nothing without samples_per_insert"),
        ({"samples_per_insert": 1.0, "error_buffer": float("nan")}, "error_buffer=nan"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        RateLimiterConfig(**settings)  # type: ignore[arg-type]


def test_more_than_was_announced_is_refused() -> None:
    limiter = RateLimiter(RateLimiterConfig(max_put=4, max_sample=8))
    with pytest.raises(ValueError, match="a put of 5 is more than max_put=4"):
        limiter.can_put(5)
    with pytest.raises(ValueError, match="a sample of 9 is more than max_sample=8"):
        limiter.can_sample(9)


def test_counts_go_on_after_a_resume() -> None:
    config = RateLimiterConfig(samples_per_insert=2.0, min_size=5, max_sample=4)
    first, second = run(config, 0, 200), RateLimiter(config)
    second.load_state_dict(first.state_dict())
    assert second.replay_ratio == first.replay_ratio > 0
    assert [second.can_put(), second.can_sample(4)] == [first.can_put(), first.can_sample(4)]
