"""Makes the gallery of Atari games: docs/gallery.md and its pictures.

    python docs/make/gallery.py [GAME ...] [--minutes 30]

Each game is trained for half an hour on this machine by ``rookery train GAME`` and shown at its
beginning, middle and end by ``rookery record``, side by side. Scores are the means of whole games:
those played in training around that time, and 20 of evaluation after the end, without and with
sticky actions. What was found is kept beside the pictures, so games may be made on different days.
Runs stay in ``runs/gallery``; one that is there and done is not trained again, one that was stopped
goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rookery.runs.metrics import read_metrics

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "pictures" / "gallery"
FOUND = PICTURES / "found.json"
RUNS = DOCS.parent / "runs" / "gallery"
GAMES = {
    "breakout": "Breakout",
    "boxing": "Boxing",
    "seaquest": "Seaquest",
    "space-invaders": "SpaceInvaders",
    "stargunner": "StarGunner",
    "assault": "Assault",
}
STEPS_SHOWN, EPISODES = 240, 20

HEAD = """# Gallery

Atari games after 0, {middle:g} and {whole:g} minutes of training on two cores, as they are, one
run each. `python docs/make/gallery.py` trains them and makes this page. Scores are means of whole
games, raw: those that ended in training around that time, and {episodes} played after it, without
sticky actions as in training, and with them (`ALE/*-v5`).

| game | 0 min | {middle:g} min | {whole:g} min | after it | `ALE/*-v5` | steps |
|---|---|---|---|---|---|---|
"""


def rookery(*words: str) -> str:
    """One command, its words shown; what it writes on standard output."""
    print("rookery", *words, flush=True)
    command = [sys.executable, "-m", "rookery", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def trained(game: str, minutes: float) -> Path:
    """The run of ``game``, trained for so long."""
    run = RUNS / game
    limit = f"{60 * minutes:g}"
    if not (run / "metrics.jsonl").exists():
        rookery(
            *("train", game, "--run", str(run), "--plain", "--stop-at", "none"),
            *("--time-limit", limit, "--eval.every_steps", "none", "--eval.episodes", "0"),
            *("--checkpoint.history", "64"),
        )
    elif read_metrics(run / "metrics.jsonl")[-1]["wall_secs"] < 60 * minutes:
        rookery("resume", str(run), "--plain", "--time-limit", limit)
    return run


def score_at(records: list[dict[str, Any]], secs: float) -> float | None:
    """Mean return of the games that ended in training around ``secs``."""
    games = [record for record in records if record.get("rollout/return_mean") is not None]
    if not games:
        return None
    nearest = min(games, key=lambda record: abs(record["wall_secs"] - secs))
    return float(nearest["rollout/return_mean"])


def score_after(run: Path, *flags: str) -> float:
    """Mean return of whole games that the trained agent plays."""
    words = ("eval", str(run), "--checkpoint", "latest", "--episodes", str(EPISODES), "--json")
    return float(json.loads(rookery(*words, *flags))["return_mean"])


def make(game: str, minutes: float) -> dict[str, Any]:
    """Train and film ``game``; what was found."""
    run = trained(game, minutes)
    film = PICTURES / f"{game}.gif"
    rookery(
        *("record", str(run), "--out", str(film), "--force", "--seed", "1"),
        *("--at", f"0,{minutes / 2:g}m,{minutes:g}m", "--max-steps", str(STEPS_SHOWN)),
    )
    film.with_suffix(".json").unlink()
    rookery("plot", str(run), "--x", "wall", "--out", str(PICTURES / f"{game}.png"), "--force")
    records = read_metrics(run / "metrics.jsonl")
    return {
        "minutes": minutes,
        "training": [score_at(records, share * 60 * minutes) for share in (0.0, 0.5, 1.0)],
        "after": score_after(run),
        "sticky": score_after(run, "--env.id", f"ALE/{GAMES[game]}-v5"),
        "steps": records[-1]["steps"],
    }


def page(found: dict[str, dict[str, Any]]) -> str:
    """Of all games that were made."""
    whole = max(game["minutes"] for game in found.values())
    text = HEAD.format(middle=whole / 2, whole=whole, episodes=EPISODES)
    made = [game for game in GAMES if game in found]
    for game in made:
        facts = found[game]
        scores = [*facts["training"], facts["after"], facts["sticky"]]
        cells = ["no game over yet" if score is None else f"{score:,.1f}" for score in scores]
        text += f"| {game} | {' | '.join(cells)} | {facts['steps']:,} |\n"
    for game in made:
        text += f"\n## {game}\n\n![{game}, three times](pictures/gallery/{game}.gif)\n"
        if remark := found[game].get("remark"):
            text += f"\n{remark}\n"
        text += f"\n![{game}'s curve](pictures/gallery/{game}.png)\n"
    return text


def main() -> None:
    """Train, film, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("games", nargs="*", default=list(GAMES), metavar="GAME")
    parser.add_argument("--minutes", type=float, default=30.0)
    args = parser.parse_args()
    if unknown := sorted(set(args.games) - set(GAMES)):
        parser.error(f"no such game: {', '.join(unknown)}; there are {', '.join(GAMES)}")
    PICTURES.mkdir(parents=True, exist_ok=True)
    found = json.loads(FOUND.read_text("utf-8")) if FOUND.exists() else {}
    for game in args.games:
        found[game] = make(game, args.minutes)
        FOUND.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        (DOCS / "gallery.md").write_text(page(found), "utf-8")


if __name__ == "__main__":
    main()
