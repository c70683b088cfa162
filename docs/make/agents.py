"""Makes the pictures of agents at work: docs/pictures/snake.gif, snake-window.png, growth.png.

    python docs/make/agents.py

It uses the commands that the pages show: ``rookery train`` and ``rookery record``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from rookery.runs.metrics import read_metrics

PICTURES = Path(__file__).resolve().parents[1] / "pictures"


def rookery(*words: str) -> None:
    """One command, its words shown."""
    print("rookery", *words, flush=True)
    subprocess.run([sys.executable, "-m", "rookery", *words], check=True)


def frame(film: Path, number: int, out: Path) -> None:
    """One frame of a GIF as a PNG."""
    with Image.open(film) as image:
        image.seek(min(number, image.n_frames - 1))
        image.convert("RGB").save(out, optimize=True)


def main() -> None:
    """Play Snake of the zoo; train LunarLander and show it as it was along its training."""
    PICTURES.mkdir(exist_ok=True)
    snake = PICTURES / "snake.gif"
    with tempfile.TemporaryDirectory() as temp:
        film = Path(temp) / "snake.gif"
        rookery(
            *("record", "zoo:snake", "--out", str(film)),
            *("--max-steps", "160", "--fps", "20"),
        )
        film.replace(snake)
        run, film = Path(temp) / "lunarlander", Path(temp) / "growth.gif"
        rookery("train", "lunarlander", "--run", str(run), "--quiet")
        whole = read_metrics(run / "metrics.jsonl")[-1]["wall_secs"]
        times = f"0,{whole / 4:.0f}s,{whole:.0f}s"
        rookery("record", str(run), "--out", str(film), "--at", times)
        frame(film, 220, PICTURES / "growth.png")
    frame(snake, 140, PICTURES / "snake-window.png")


if __name__ == "__main__":
    main()
