"""What recipes of formation ``replay`` take in memory, told before they are run.

::

    python benchmarks/recipe_memory.py ngu-montezuma agent57-montezuma
"""

from __future__ import annotations

import sys

from rookery.algos.ngu import NGUConfig
from rookery.formations.replay import settings_of, step_spec
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_flags
from rookery.replay.memory import estimate_bytes
from rookery.roles.replay import table_config

COPIES = 6
"""Of the weights: online, target, gradient, two moments of Adam, and an actor's."""


def main(names: list[str]) -> None:
    """Print a line for each recipe."""
    print("| recipe | parameters | replay, at most | weights | memories of episodes |")
    print("|---|---|---|---|---|")
    for name in names:
        plan = Plan.of(settings_from_flags(name, {}))
        _, algo = settings_of(plan.config)
        num, streams = plan.num_params, plan.config.env.num_envs
        table = estimate_bytes(table_config(algo, streams), step_spec(plan))
        episodes = 0
        if isinstance(algo, NGUConfig) and algo.novelty.episodic:
            episodes = streams * algo.novelty.capacity * algo.novelty.embedding_features * 4
        sizes = (table, COPIES * 4 * num, episodes)
        row = " | ".join(f"{size / 1e9:.2f} GB" for size in sizes)
        print(f"| `{name}` | {num / 1e6:.1f} million | {row} |")


if __name__ == "__main__":
    main(sys.argv[1:])
