"""One seed of our CartPole recipe, timed: prints one JSON line."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    seed = int(sys.argv[1])
    began = time.perf_counter()
    import rookery
    import rookery.training

    imported = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        run = rookery.train("cartpole", seed=seed, run=Path(root) / "run")
        ended = time.perf_counter()
        reached = run.finish.extra["reached_at"]
        score = run.evaluate(episodes=100, seed=12345)["return_mean"]
    print(
        json.dumps(
            {
                "import_secs": imported - began,
                "train_secs": reached["wall_secs"] if reached else None,
                "steps": reached["steps"] if reached else None,
                "all_secs": ended - imported,
                "eval_mean": score,
            }
        )
    )


if __name__ == "__main__":
    main()
