"""One seed of Stable-Baselines3's PPO on CartPole-v1 with its zoo's settings: one JSON line.

Runs in the peers' own virtual environment.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    seed = int(sys.argv[1])
    began = time.perf_counter()
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    imported = time.perf_counter()
    torch.set_num_threads(1)

    class Solved(BaseCallback):
        """Stops when the mean return of the last 100 episodes reaches 475."""

        reached: tuple[float, int] | None = None

        def _on_step(self) -> bool:
            episodes = self.model.ep_info_buffer
            if episodes is None or len(episodes) < 100:
                return True
            if sum(episode["r"] for episode in episodes) / len(episodes) < 475:
                return True
            self.reached = (time.perf_counter(), self.num_timesteps)
            return False

    def falling(start: float) -> Any:
        return lambda left: start * left

    envs = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    began_training = time.perf_counter()
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=falling(0.001),
        clip_range=falling(0.2),
        seed=seed,
        device="cpu",
    )
    solved = Solved()
    model.learn(total_timesteps=100_000, callback=solved)
    ended = time.perf_counter()
    score, _ = evaluate_policy(model, make_vec_env("CartPole-v1", 8, seed=12345), 100)
    print(
        json.dumps(
            {
                "import_secs": imported - began,
                "train_secs": solved.reached[0] - began_training if solved.reached else None,
                "steps": solved.reached[1] if solved.reached else None,
                "all_secs": ended - imported,
                "eval_mean": float(score),
            }
        )
    )


if __name__ == "__main__":
    main()
