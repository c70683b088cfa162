"""``rookery autotune RECIPE [--secs S] [--out FILE] [settings]``: the fastest settings here."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rookery.cli.arguments import HELP, split_words
from rookery.cli.outfile import check_out
from rookery.core.errors import UserError
from rookery.doctor.machine import usable_cores
from rookery.recipes.catalog import seconds
from rookery.recipes.settings import settings_from_flags, tree_of_flags
from rookery.runs.atomic import write_atomic, writing

if TYPE_CHECKING:
    from rookery.runs.config import RunConfig
    from rookery.tune.rates import Rates
    from rookery.tune.search import Choice, Flags

PROG = "rookery autotune"
USAGE = """\
usage: rookery autotune RECIPE|ENV_ID|module:factory [--secs S] [--out FILE] [--force]
                        [--json] [settings]

Measures environment, acting and learning alone, then trains for a few seconds with each of several
formations, numbers of actors and environments, threads and minibatches. Prints what it found and
writes the best to FILE, for `rookery train RECIPE --config FILE`.

  --secs S     seconds of each trial (10)
  --out FILE   where the settings go (autotune-RECIPE.yaml)
  --force      replace FILE
  --json       pure JSON on standard output
Settings are those of `rookery train`; what you give stays as you gave it."""
DEFAULT_SECS = "10"
"""Of each trial; the parts alone get a tenth."""


def main(argv: list[str]) -> int:
    """Search, print and save."""
    words = split_words(argv, {"json", "force"})
    if HELP in words.switches:
        print(USAGE)
        return 0
    what = words.one_name(PROG)
    secs = seconds(words.take("secs") or DEFAULT_SECS)
    if secs <= 0:
        raise UserError(f"--secs: must be positive, got {secs:g}")
    out = Path(words.take("out") or f"autotune-{_plain(what or 'settings')}.yaml")
    check_out(out, [".yaml"], force="force" in words.switches)

    return _tune(what, words.flags, secs, out, as_json="json" in words.switches)


def _tune(what: str | None, given: Flags, secs: float, out: Path, *, as_json: bool) -> int:
    from rookery.tune.search import search
    from rookery.tune.trial import run_trial

    def settings(flags: Flags) -> RunConfig:
        return settings_from_flags(what, flags | given)

    rates = _rates(settings({}), secs / 10)
    cores = usable_cores()[0]
    tried: list[Choice] = []

    def tell(choice: Choice) -> None:
        tried.append(choice)
        _say(f"{choice.trial.steps_per_s:>9,.0f} steps/s  {choice.name}  {choice.trial.remark}")

    best = search(settings, lambda config: run_trial(config, secs), cores, tell, _fixed(given))
    if not best.trial.steps_per_s:
        raise UserError(f"no trial made steps: {best.trial.remark}; try a longer --secs")
    config = settings(best.flags)
    if best.flags:
        rates = _rates(config, secs / 10)  # other settings, another most
    _say(
        f"best: {best.name}, {best.trial.steps_per_s:,.0f} steps/s, {_ceiling(rates, cores, best)}"
    )
    with writing(out, "--out"):
        write_atomic(out, _file(tree_of_flags(config, best.flags | given), best).encode())
    _say(" ".join(["rookery train", *([what] if what else []), f"--config {out}"]))
    if as_json:
        print(json.dumps(_json(rates, tried, best, out)))
    return 0


def _fixed(given: Flags) -> set[str]:
    """Flags that the user chose, by their short names too: --env.num_envs is --envs."""
    fixed = {*given, *(flag.partition(".num_")[2] for flag in given if ".num_" in flag)}
    return fixed | {"actors"} if "workers" in fixed else fixed


def _rates(config: RunConfig, secs: float) -> Rates:
    """What each part can do alone, told."""
    from rookery.programs.plan import probe
    from rookery.training import with_precision
    from rookery.tune.rates import measure

    with contextlib.redirect_stdout(sys.stderr):  # environments may print
        signature = probe(config.env, config.seed)
        rates = measure(with_precision(config, signature), signature, secs)
    _say(
        f"on one core: environment {rates.env:,.0f} steps/s, acting {rates.acting:,.0f}, "
        f"learning {rates.learning:,.0f}, all in turn {rates.one_core:,.0f}"
    )
    return rates


def _ceiling(rates: Rates, cores: int, best: Choice) -> str:
    share = best.trial.steps_per_s / (cores * rates.one_core)
    return f"{share:.0%} of what {cores} cores could do at most".replace("%", " %")


def _file(tree: dict[str, Any], best: Choice) -> str:
    head = f"# {best.trial.steps_per_s:,.0f} steps/s, found by `rookery autotune`.\n"
    return head + (yaml.safe_dump(tree, sort_keys=False) if tree else "{}\n")


def _json(rates: Rates, tried: list[Choice], best: Choice, out: Path) -> dict[str, Any]:
    def row(choice: Choice) -> dict[str, Any]:
        return {"flags": choice.flags, **asdict(choice.trial)}

    return {
        "rates": asdict(rates),
        "trials": [row(choice) for choice in tried],
        "best": row(best),
        "file": str(out),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _plain(name: str) -> str:
    """A name for a file: letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()
