"""What the view says about a run: facts by what they are about, each with its importance."""

from __future__ import annotations

from dataclasses import dataclass

from rookery.cli.live.cells import Glyphs, Line, bar, number, number_beside, rounded
from rookery.cli.live.story import Score, Story

_LOSSES = {
    "train/lr": "lr",
    "train/loss": "loss",
    "train/policy_loss": "policy loss",
    "train/value_loss": "value loss",
    "train/entropy": "entropy",
    "train/approx_kl": "KL",
    "train/clip_fraction": "clipped",
    "train/explained_variance": "explained",
    "train/value_mean": "value",
    "train/epsilon": "epsilon",
    "train/grad_norm": "gradient",
}
"""Numbers of the last update, the most telling first."""


UNKNOWN: Line = [("-", "label")]
_GAUGE = 7
_INFO_RANK = 10
"""Below all other facts."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled value; facts of higher rank go first when there is too little room."""

    label: str
    value: Line
    rank: int


Section = tuple[str, list[Fact]]


def sections_of(story: Story, glyphs: Glyphs) -> list[Section]:
    """All facts, by what they are about."""
    found = (
        ("training", _training(story)),
        ("evaluation", _evaluation(story, glyphs)),
        ("roles", _roles(story, glyphs)),
        ("info", _info(story)),
    )
    return [(title, facts) for title, facts in found if facts]


def losses_of(story: Story) -> list[Line]:
    """Numbers of the last update, the most telling first."""
    values = ((label, story.value(key)) for key, label in _LOSSES.items())
    return [[(f"{name} ", "label"), (number(x), "")] for name, x in values if x is not None]


def _training(story: Story) -> list[Fact]:
    return [
        Fact("return", _value(story.value("rollout/return_mean")), 0),
        Fact("length", _value(story.value("rollout/length_mean")), 6),
        Fact("episodes", _count(story.value("rollout/episodes")), 9),
        Fact("steps/s", _count(story.value("time/env_steps_per_s")), 1),
        Fact("mean steps/s", _count(story.mean_rate), 8),
    ]


def _evaluation(story: Story, glyphs: Glyphs) -> list[Fact]:
    films = [Fact("films", [(str(story.films), "value")], 8)] if story.films else []
    if not (story.config.eval.episodes or story.scores):
        return films
    last = story.scores[-1] if story.scores else None
    facts = [Fact("last", _score(last, glyphs), 2), Fact("best", _score(story.best, glyphs), 4)]
    if story.config.stop_at is not None:
        facts.append(Fact("goal", [(f"{story.config.stop_at:,g}", "goal")], 7))
    return facts + films


def _score(score: Score | None, glyphs: Glyphs) -> Line:
    if score is None:
        return UNKNOWN
    half = ""
    if score.half is not None:
        half = f" {glyphs.interval} {number_beside(score.half, score.mean)}"
    return [(number(score.mean), "mark"), (half, ""), (f" at {rounded(score.steps)}", "label")]


def _roles(story: Story, glyphs: Glyphs) -> list[Fact]:
    facts = [Fact(f"{role} waits", _gauge(x, glyphs), 5) for role, x in story.waiting.items()]
    lag = story.value("train/lag_mean")
    if lag is not None:
        facts.append(Fact("policy lag", [(number(lag), "value")], 5))
    answered, batch = story.value("inference/latency_ms_p50"), story.value("inference/batch_envs")
    if answered is not None and batch is not None:
        most = story.value("inference/latency_ms_p99") or answered
        taken = f" ms, 99 % in {number(most)} ms"
        facts.append(Fact("answered in", [(number(answered), "value"), (taken, "label")], 5))
        facts.append(Fact("batch", [(number(batch), "value"), (" environments", "label")], 6))
    hosts, joined = story.value("fleet/hosts"), story.value("fleet/joined_actors")
    if hosts is not None:
        who: Line = [(f"{hosts:.0f}", "value"), (f" with {joined or 0:.0f} actors", "label")]
        facts.append(Fact("hosts joined", who, 3))
    if story.restarts:
        facts.append(Fact("restarts", [(str(story.restarts), "alarm")], 3))
    elif "fleet/restarts" in story.last:
        facts.append(Fact("restarts", [("0", "value")], 9))
    return facts


def _info(story: Story) -> list[Fact]:
    """What training episodes told at their ends, in means; the first asked for stays longest."""
    means = (
        (key, story.value(f"rollout/info_{key}_mean")) for key in story.config.metrics.info_keys
    )
    told = [(key.replace("_", " "), mean) for key, mean in means if mean is not None]
    return [Fact(key, _value(mean), _INFO_RANK + place) for place, (key, mean) in enumerate(told)]


def _gauge(share: float, glyphs: Glyphs) -> Line:
    return [*bar(share, _GAUGE, glyphs, "wait"), (f" {share:4.0%}", "value")]


def without_bar(value: Line) -> Line:
    """A gauge as its number alone."""
    return [(value[-1][0].strip(), value[-1][1])] if value[0][1] == "wait" else value


def _value(value: float | None) -> Line:
    return UNKNOWN if value is None else [(number(value), "value")]


def _count(value: float | None) -> Line:
    return UNKNOWN if value is None else [(f"{value:,.0f}", "value")]
