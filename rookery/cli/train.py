"""``rookery train RECIPE|ENV_ID|module:factory [--run DIR] [settings]``."""

from __future__ import annotations

from pathlib import Path

import yaml

from rookery.cli.arguments import seconds
from rookery.cli.main import INTERRUPTED
from rookery.cli.progress import Lines
from rookery.cli.settings import take_flags, train_settings
from rookery.runs.directory import RunDirectory
from rookery.runs.session import Callbacks

OWN_FLAGS = {
    "--run": "DIR: where the run is written (default: runs/<name>-<date>-<id>)",
    "--init-from": "RUN|FILE: start with the weights of another run",
    "--quiet": "print nothing but errors",
}


def main(argv: list[str]) -> int:
    """Train; 0 when finished or solved, 130 when interrupted."""
    what = argv[0] if argv and not argv[0].startswith("-") else None
    rest, own = take_flags(argv[1:] if what else argv, ("--run", "--init-from"))
    quiet = "--quiet" in rest
    rest = [_time(before, word) for before, word in _pairs(rest) if word != "--quiet"]
    if what is None and any(word in ("-h", "--help") for word in rest):
        print(_help())
        return 0
    config = train_settings(what, [word for word in rest if word != "--print_config"])
    if "--print_config" in rest:
        print(yaml.safe_dump(config.to_tree(), sort_keys=False), end="")
        return 0
    from rookery.training import start_run

    lines = Lines(quiet=quiet)
    run = start_run(
        config,
        path=Path(own["run"]) if "run" in own else None,
        init_from=Path(own["init-from"]) if "init-from" in own else None,
        callbacks=Callbacks(on_record=[lines.record]),
        announce=lambda directory: _announce(directory, lines),
    )
    lines.finish(run)
    return INTERRUPTED if run.finish.outcome.state == "interrupted" else 0


def _announce(directory: RunDirectory, lines: Lines) -> None:
    lines.say(f"run {directory.path}")


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(["", *words[:-1]], words, strict=True)) if words else []


def _time(before: str, word: str) -> str:
    """``--time-limit 15m`` in seconds."""
    if before == "--time-limit":
        return str(seconds(word))
    name, equals, value = word.partition("=")
    return f"{name}={seconds(value)}" if name == "--time-limit" and equals else word


def _help() -> str:
    lines = [
        "usage: rookery train RECIPE|ENV_ID|module:factory [flags]",
        "",
        "  rookery train cartpole                   a recipe (`rookery recipes` lists them)",
        "  rookery train Acrobot-v1 --algo a2c      any gymnasium environment",
        "  rookery train my_package.envs:make_env   a factory of your own",
        "  rookery train cartpole --help            every setting that applies to it",
        "",
        "flags beside the settings:",
        *(f"  {flag:<12} {about}" for flag, about in OWN_FLAGS.items()),
        "  --config     FILE: YAML laid over the recipe, such as a run's config.yaml",
        "  --algo, --formation, --engine, --actors, --envs, --device, --steps, --time-limit,",
        "  --seed, --gamma, --lr, --log-every, --save-every, --eval-every, --stop-at, --name,",
        "  --tags, --print_config",
    ]
    return "\n".join(lines)
