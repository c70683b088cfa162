"""Steps/s of Stable-Baselines3's PPO on BipedalWalker-v3: `bipedal_sb3.py dummy|subproc ENVS SECS`.

Runs in the peers' own virtual environment and prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    kind, num_envs, secs = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    # Alone, two threads; its environments' processes need the cores otherwise.
    torch.set_num_threads(2 if kind == "dummy" else 1)

    class Clock(BaseCallback):
        """Steps between the end of the first update and the last one within the time."""

        first: tuple[float, int] | None = None
        last: tuple[float, int] | None = None
        begun = time.perf_counter()

        def _on_rollout_start(self) -> None:
            if self.num_timesteps == 0:
                return
            self.last = (time.perf_counter(), self.num_timesteps)
            self.first = self.first or self.last

        def _on_step(self) -> bool:
            return time.perf_counter() - self.begun < secs

    cls = DummyVecEnv if kind == "dummy" else SubprocVecEnv
    envs = VecNormalize(
        make_vec_env("BipedalWalker-v3", n_envs=num_envs, vec_env_cls=cls), norm_reward=False
    )
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=8192 // num_envs,
        batch_size=1024,
        n_epochs=4,
        learning_rate=6e-4,
        policy_kwargs={"net_arch": [64, 64], "log_std_init": -0.5},
        device="cpu",
    )
    clock = Clock()
    model.learn(total_timesteps=10**9, callback=clock)
    envs.close()
    assert clock.first is not None
    assert clock.last is not None
    (begun, before), (ended, after) = clock.first, clock.last
    print(json.dumps({"steps_per_s": (after - before) / (ended - begun)}))


if __name__ == "__main__":
    main()
