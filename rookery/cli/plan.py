"""``rookery plan RECIPE [settings]``: the program as it would run, checked, without starting it."""

from __future__ import annotations

import sys

from rookery.cli.arguments import HELP, split_words
from rookery.core.errors import UserError
from rookery.recipes.settings import settings_from_flags
from rookery.runs.config import divided

PROG = "rookery plan"
USAGE = """\
usage: rookery plan RECIPE|ENV_ID|module:factory [--mermaid] [settings as for `rookery train`]

  --mermaid   a Mermaid flow chart instead of plain text"""


def main(argv: list[str]) -> int:
    """Print the program."""
    words = split_words(argv, {"mermaid"})
    if HELP in words.switches:
        print(USAGE)
        return 0
    what = words.one_name(PROG)
    if what is None and "config" not in words.flags:
        raise UserError("plan what? give a recipe, an environment or --config FILE, as for train")
    config, note = divided(settings_from_flags(what, words.flags))
    if note is not None:
        print(note, file=sys.stderr)
    from rookery.doctor.run_memory import memory_note
    from rookery.engines.carries import carries
    from rookery.programs.memory import estimate
    from rookery.programs.plan import Plan, probe
    from rookery.programs.render import to_mermaid, to_text
    from rookery.programs.validate import validate
    from rookery.training import started, with_precision

    signature = probe(config.env, config.seed)
    plan = started(Plan.of(with_precision(config, signature), signature))
    links = carries(config.engine)
    program = plan.program()
    validate(program, config.engine, links, concurrent=plan.concurrent)
    mermaid = "mermaid" in words.switches
    print((to_mermaid if mermaid else to_text)(program, plan, links), end="")
    if not mermaid:
        print(f"\n{memory_note(estimate(plan))}")
    return 0
