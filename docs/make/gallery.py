"""Makes the gallery of Atari games: docs/pictures/gallery/GAME.gif and docs/gallery.md.

    python docs/make/gallery.py [GAME ...] [--minutes 30]

Each game is trained for half an hour on this machine by ``rookery train GAME`` and shown at its
beginning, middle and end by ``rookery record``, side by side. Scores are the means of whole games:
those played in training around that time, and the evaluation that ends the run. Runs stay in
``runs/gallery``; one that is there and done is not trained again, one that was stopped goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from rookery.runs.metrics import read_metrics

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "pictures" / "gallery"
RUNS = DOCS.parent / "runs" / "gallery"
GAMES = ("breakout", "boxing", "seaquest", "space-invaders", "stargunner", "assault")
STEPS_SHOWN = 240

HEAD = """# Gallery

Six Atari games after 0, {middle:g} and {whole:g} minutes of training on two cores, as they are.
`python docs/make/gallery.py` trains them and makes this page.

| game | 0 min | {middle:g} min | {whole:g} min | evaluation at the end | steps |
|---|---|---|---|---|---|
"""


def rookery(*words: str) -> None:
    """One command, its words shown."""
    print("rookery", *words, flush=True)
    subprocess.run([sys.executable, "-m", "rookery", *words], check=True)


def trained(game: str, minutes: float) -> Path:
    """The run of ``game``, trained for so long."""
    run = RUNS / game
    limit = f"{60 * minutes:g}"
    if not (run / "metrics.jsonl").exists():
        rookery(
            *("train", game, "--run", str(run), "--plain", "--stop-at", "none"),
            *("--time-limit", limit, "--checkpoint.history", "64"),
        )
    elif read_metrics(run / "metrics.jsonl")[-1]["wall_secs"] < 60 * minutes:
        rookery("resume", str(run), "--plain", "--time-limit", limit)
    return run


def score_at(records: list[dict[str, Any]], secs: float) -> str:
    """Mean return of the games that ended in training around ``secs``."""
    games = [record for record in records if record.get("rollout/return_mean") is not None]
    if not games:
        return "no game over yet"
    nearest = min(games, key=lambda record: abs(record["wall_secs"] - secs))
    return f"{nearest['rollout/return_mean']:,.1f}"


def line(game: str, run: Path, minutes: float) -> str:
    """Of the table."""
    records = read_metrics(run / "metrics.jsonl")
    scores = [score_at(records, share * 60 * minutes) for share in (0.0, 0.5, 1.0)]
    evaluations = [r["eval/return_mean"] for r in records if r.get("eval/return_mean") is not None]
    last = f"{evaluations[-1]:,.1f}" if evaluations else ""
    return f"| {game} | {' | '.join(scores)} | {last} | {records[-1]['steps']:,} |\n"


def main() -> None:
    """Train, film, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("games", nargs="*", default=GAMES, metavar="GAME")
    parser.add_argument("--minutes", type=float, default=30.0)
    args = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    table, films = "", ""
    for game in args.games:
        run = trained(game, args.minutes)
        film = PICTURES / f"{game}.gif"
        times = f"0,{args.minutes / 2:g}m,{args.minutes:g}m"
        rookery(
            *("record", str(run), "--out", str(film), "--at", times, "--force"),
            *("--max-steps", str(STEPS_SHOWN), "--seed", "1"),
        )
        film.with_suffix(".json").unlink()
        table += line(game, run, args.minutes)
        films += f"\n## {game}\n\n![{game}, three times](pictures/gallery/{game}.gif)\n"
    head = HEAD.format(middle=args.minutes / 2, whole=args.minutes)
    (DOCS / "gallery.md").write_text(head + table + films, "utf-8")


if __name__ == "__main__":
    main()
