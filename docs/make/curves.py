"""Makes docs/pictures/cartpole-curve.png: trains three seeds of CartPole and draws them.

    python docs/make/curves.py

It uses the commands that the pages show: ``rookery train --seeds`` and ``rookery plot``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "pictures"


def rookery(*words: str) -> None:
    """One command, its words shown."""
    print("rookery", *words, flush=True)
    subprocess.run([sys.executable, "-m", "rookery", *words], check=True)


def main() -> None:
    """Train and draw."""
    PICTURES.mkdir(exist_ok=True)
    out = str(PICTURES / "cartpole-curve.png")
    with tempfile.TemporaryDirectory() as temp:
        runs = str(Path(temp) / "cartpole")
        rookery("train", "cartpole", "--seeds", "3", "--run", runs)
        rookery("plot", runs, "--out", out, "--force")


if __name__ == "__main__":
    main()
