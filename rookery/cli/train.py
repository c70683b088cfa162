"""``rookery train RECIPE|ENV_ID|module:factory [--run DIR] [settings]``."""

from __future__ import annotations

from pathlib import Path

import yaml

from rookery.cli.arguments import HELP, split_words
from rookery.cli.explain import all_settings_help, general_help, settings_help
from rookery.cli.progress import exit_code, open_display
from rookery.cli.ranks import run_here_or_on_ranks
from rookery.cli.seeds import Seeds, train_seeds
from rookery.recipes.settings import settings_from_flags
from rookery.runs.config import RunConfig
from rookery.runs.session import Callbacks

PROG = "rookery train"


def main(argv: list[str]) -> int:
    """Train; 0 when finished or solved, 130 when interrupted."""
    words = split_words(argv, {"quiet", "plain", "print_config", "help_all"})
    what = words.one_name(PROG)
    helps = {HELP: settings_help, "help_all": all_settings_help}
    wanted = next((explain for name, explain in helps.items() if name in words.switches), None)
    if wanted is not None and what is None and "config" not in words.flags:
        print(general_help())
        return 0
    run, init_from = words.take("run"), words.take("init_from")
    seeds = Seeds.take(words)
    if wanted is not None:
        config = settings_from_flags(what, words.flags)
        print(wanted(config, what or "--config FILE", prog=PROG))
        return 0
    if "print_config" in words.switches:
        config = settings_from_flags(what, words.flags)
        print(yaml.safe_dump(config.to_tree(), sort_keys=False), end="")
        return 0
    path = Path(run) if run else None
    start = Path(init_from) if init_from else None
    if seeds is not None:
        config = settings_from_flags(what, words.flags)
        return train_seeds(seeds, config, words, path=path, init_from=start)

    def train(config: RunConfig) -> int:
        from rookery.training import start_run

        with open_display(config, words.switches) as display:
            done = start_run(
                config,
                path=path,
                init_from=start,
                callbacks=Callbacks(
                    on_record=[display.record],
                    on_stage=display.stage,
                    on_steps=display.steps,
                    on_notice=display.say,
                ),
                announce=display.begin,
                say=display.say,
            )
            display.finish(done)
        return exit_code(done)

    return run_here_or_on_ranks(
        lambda: settings_from_flags(what, words.flags), train, engine=words.flags.get("engine")
    )
