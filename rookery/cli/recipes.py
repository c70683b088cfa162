"""``rookery recipes``: what can be trained by name."""

from __future__ import annotations

import json

from rookery.cli.arguments import Arguments
from rookery.recipes.catalog import load_recipe, recipe_names


def main(argv: list[str]) -> int:
    """List the recipes."""
    parser = Arguments(prog="rookery recipes", description=__doc__)
    parser.add_argument("--json", action="store_true", help="pure JSON on standard output")
    args = parser.parse_args(argv)
    recipes = {name: load_recipe(name).get("about", "") for name in recipe_names()}
    if args.json:
        print(json.dumps(recipes))
    else:
        width = max(map(len, recipes))
        for name, about in recipes.items():
            print(f"{name:<{width}}  {about}")
    return 0
