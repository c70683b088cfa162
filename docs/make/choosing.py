"""The tables of docs/choosing.md: what runs on what, asked of those who refuse it.

::

    python docs/make/choosing.py --write

Without ``--write`` they are printed. A test compares the page with them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rookery.algos.algorithm import algorithm_names
from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.engines.carries import carries
from rookery.formations.settings import formation_names
from rookery.programs.plan import Plan, probe
from rookery.programs.validate import validate
from rookery.recipes.on_nodes import OnNodes, at_head_of, over_hosts, settings_on_nodes
from rookery.recipes.settings import settings_from_flags
from rookery.runs.config import RunConfig, divided

PAGE = Path(__file__).resolve().parents[1] / "choosing.md"
BEGIN, END = "<!-- python docs/make/choosing.py --write -->\n", "<!-- end -->\n"
WORLD, ENVS = "CartPole-v1", "8"
BROUGHT = {"more": "more actors", "some": "a fixed number"}
ON_RAY = {"more": "`MIN:MAX`", "some": "a fixed number", "none": "one node"}


def tables() -> str:
    """Both tables."""
    return f"{algorithms()}\n{places()}"


def algorithms() -> str:
    """Which algorithm learns in which formation."""
    names = algorithm_names()
    rows = [[f"`{f}`", *("yes" if learns(f, a) else "" for a in names)] for f in formation_names()]
    return table(["formation", *(f"`{name}`" for name in names)], rows)


def places() -> str:
    """Which formation runs where."""
    rows = [[f"`{formation}`", *where(formation)] for formation in formation_names()]
    ways = ["hosts that join", "`rookery slurm`", "with `--mpi`"]
    return table(["formation", "`inline`", "`local`", "`mpi`", "`ray`", *ways], rows)


def learns(formation: str, algo: str) -> bool:
    """Whether the settings of such a run are accepted."""
    try:
        settings(formation, algo, engine="local")
    except UserError:
        return False
    return True


def where(formation: str) -> Iterator[str]:
    """A cell for each engine and each way beyond one machine."""
    known = [name for name in algorithm_names() if learns(formation, name)]
    algo = next(name for name in known if carried(formation, name, "local"))
    for engine in ("inline", "local", "mpi"):
        yield carried(formation, algo, engine)
    yield on_ray(formation, known)
    yield brought(formation, known)
    flags = {"formation": formation, "algo": algo, "envs": ENVS}
    try:
        validated(settings_on_nodes(WORLD, flags, OnNodes(num_hosts=2, cpus=1))[0])
        yield "a host a node"
    except UserError:
        yield "one node"
    yield "ranks" if carried(formation, algo, "mpi") else ""


def on_ray(formation: str, algos: list[str]) -> str:
    """Who comes and goes with a Ray cluster, for one algorithm and another."""
    runs = [settings(formation, algo, engine="ray", actors="4") for algo in algos]
    config = next(config for config in runs if carried(formation, config.algo, "ray"))
    validated(over_hosts(config, at_head_of(config)))
    return " or ".join(dict.fromkeys(ON_RAY[config.joined] for config in runs))


def brought(formation: str, algos: list[str]) -> str:
    """Whom hosts that join bring, for one algorithm and another."""
    found = dict.fromkeys(settings(formation, algo, engine="local").joined for algo in algos)
    return " or ".join(BROUGHT[joined] for joined in found if joined in BROUGHT)


def carried(formation: str, algo: str, engine: str) -> str:
    """Whether ``engine`` carries two that act; under one thread there may be room for one."""
    try:
        config, _ = divided(settings(formation, algo, engine=engine, actors="2"))
        validated(config)
    except UserError:
        return ""
    return "yes" if config.formation_config.num_actors == 2 else "one worker"


def settings(formation: str, algo: str, **flags: str) -> RunConfig:
    """Of a small run."""
    given = {"formation": formation, "algo": algo, "envs": ENVS}
    return settings_from_flags(WORLD, given | flags)


def validated(config: RunConfig) -> None:
    """Raise unless the validator accepts the program."""
    plan = Plan.of(config, signature())
    links = carries(config.engine)
    validate(plan.program(), config.engine, links, concurrent=plan.concurrent)


@cache
def signature() -> Signature:
    """Of the world, looked at once."""
    config = settings("sync", "ppo")
    return probe(config.env, config.seed)


def table(head: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(line)} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines
    )


def on_page(text: str) -> str:
    """What the page has between its marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Print the tables, or put them into the page."""
    if "--write" not in sys.argv:
        print(tables(), end="")
        return
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{tables()}{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
