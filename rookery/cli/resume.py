"""``rookery resume RUN [--steps N] [flags]``: go on with a run."""

from __future__ import annotations

from pathlib import Path

from rookery.cli.arguments import HELP, split_words
from rookery.cli.progress import exit_code, open_display
from rookery.cli.ranks import run_here_or_on_ranks
from rookery.core.errors import UserError, near_names
from rookery.runs.config import RunConfig
from rookery.runs.session import Callbacks

PROG = "rookery resume"
FLAGS = {
    "steps": "N: new total of environment steps",
    "time_limit": "TIME: new total of training time, such as 90s, 15m or 2h",
    "stop_at": "SCORE|none: new score to stop at; needed to go on with a solved run",
    "engine": "inline, local, mpi or ray",
    "address": "HOST:PORT|auto: of a Ray cluster (engine ray)",
    "threads": "true|false: under engine inline, each actor in a thread of its own",
    "actors": "N: how many act, and share the environments of the run; MIN:MAX under engine ray",
    "workers": "N: the same, in formations allreduce, hogwild and paramserver",
    "learners": "N: number of learners (formations replay and central)",
    "servers": "N: number of parameter servers (formation paramserver)",
    "listen": "HOST:PORT: let hosts join there (a run that had one keeps it)",
    "places": "N: room for so many of their actors",
    "token_file": "FILE: with the token that they must have",
    "device": "cpu, cuda, cuda:1 ...",
    "lr": "learning rate",
    "stretch_schedules": "let schedules, such as that of the learning rate, end with the new total",
    "log_every": "N: a record each this many steps",
    "log_episodes": "N: a record, and a line of means, each this many training episodes",
    "save_every": "N: a checkpoint each this many steps",
    "eval_every": "N|none: an evaluation each this many steps",
    "eval_after_limit": "evaluate also when the time limit has ended it",
}


def main(argv: list[str]) -> int:
    """Resume; 0 when finished, solved or nothing to do, 130 when interrupted."""
    words = split_words(argv, {"quiet", "plain"})
    if HELP in words.switches:
        print(_help())
        return 0
    path = words.one_name(PROG)
    if path is None:
        raise UserError("resume what? give a run directory (`rookery runs` lists them)")
    for flag in words.flags:
        if flag not in FLAGS:
            hint = near_names(flag, FLAGS) or f" (see `{PROG} --help`)"
            raise UserError(f"unknown flag --{flag}{hint}")
    from rookery.recipes.settings import revised_by_flags
    from rookery.training import SavedRun, continue_run

    saved = SavedRun.find(Path(path))

    def go_on(config: RunConfig) -> int:
        with open_display(config, words.switches) as display:
            run = continue_run(
                saved,
                config,
                Callbacks(
                    on_record=[display.record],
                    on_stage=display.stage,
                    on_steps=display.steps,
                    on_notice=display.say,
                ),
                new_goal="stop_at" in words.flags,
                announce=display.go_on,
                say=display.say,
            )
            display.finish(run)
        return exit_code(run)

    return run_here_or_on_ranks(
        lambda: revised_by_flags(saved.config, words.flags),
        go_on,
        engine=words.flags.get("engine"),
    )


def _help() -> str:
    lines = [
        f"usage: {PROG} RUN [flags]",
        "",
        "RUN is a run directory, or a checkpoint inside one.",
    ]
    lines += [f"  --{name.replace('_', '-'):<17} {about}" for name, about in FLAGS.items()]
    lines += ["  --plain             print lines, also on a terminal"]
    return "\n".join([*lines, "  --quiet             print nothing but errors"])
