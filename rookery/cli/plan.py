"""``rookery plan RECIPE [settings]``: the program as it would run, checked, without starting it."""

from __future__ import annotations

from rookery.cli.settings import train_settings
from rookery.core.errors import UserError


def main(argv: list[str]) -> int:
    """Print the program."""
    if not argv or argv[0].startswith("-"):
        if argv and argv[0] in ("-h", "--help"):
            print("usage: rookery plan RECIPE|ENV_ID [--mermaid] [settings as for train]")
            return 0
        raise UserError("plan what? give a recipe or an environment, as for `rookery train`")
    rest = [word for word in argv[1:] if word != "--mermaid"]
    config = train_settings(argv[0], rest, prog="rookery plan")
    from rookery.engines.carries import carries
    from rookery.programs.formations import build_program
    from rookery.programs.render import to_mermaid, to_text
    from rookery.programs.validate import validate

    program = build_program(config)
    validate(program, config.engine, carries(config.engine))
    program = program.with_links(carries(config.engine))
    print(to_mermaid(program) if "--mermaid" in argv else to_text(program, config.engine), end="")
    return 0
