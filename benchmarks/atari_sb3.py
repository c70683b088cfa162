"""Steps/s of Stable-Baselines3 on Pong: `atari_sb3.py ppo|a2c dummy|subproc --threads 2`.

Its own Atari wrappers, network and settings of its zoo. Its `num_timesteps` counts what the
wrapped environments were asked for, so a step is four frames. Runs in the virtual environment
.venv-peers and prints one JSON line.
"""

from __future__ import annotations

import argparse

from step_clock import StepClock

NUM_ENVS = {"ppo": 8, "a2c": 16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=NUM_ENVS)
    parser.add_argument("kind", choices=("dummy", "subproc"))
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--envs", type=int)
    args = parser.parse_args()
    import torch
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    torch.set_num_threads(args.threads)
    clock = StepClock(args.secs)

    class Stop(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps:  # an update lies behind
                clock.note(self.num_timesteps)

        def _on_step(self) -> bool:
            return not clock.over

    envs = VecFrameStack(
        make_atari_env(
            "ale_py:PongNoFrameskip-v4",
            n_envs=args.envs or NUM_ENVS[args.algorithm],
            vec_env_cls=DummyVecEnv if args.kind == "dummy" else SubprocVecEnv,
        ),
        n_stack=4,
    )
    common = {"ent_coef": 0.01, "device": "cpu"}
    if args.algorithm == "ppo":
        model: PPO | A2C = PPO(
            "CnnPolicy",
            envs,
            n_steps=128,
            batch_size=256,
            n_epochs=4,
            clip_range=0.1,
            learning_rate=2.5e-4,
            vf_coef=0.5,
            **common,
        )
    else:
        model = A2C("CnnPolicy", envs, n_steps=5, vf_coef=0.25, **common)
    model.learn(total_timesteps=10**9, callback=Stop())
    envs.close()
    clock.report()


if __name__ == "__main__":
    main()
