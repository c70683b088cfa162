"""Steps/s of Stable-Baselines3 on Pong: `atari_sb3.py ppo|a2c|dqn dummy|subproc --threads 2`.

Its own Atari wrappers, network and settings of its zoo. Its `num_timesteps` counts what the
wrapped environments were asked for, so a step is four frames. Runs in the virtual environment
.venv-peers and prints one JSON line.
"""

from __future__ import annotations

import argparse

from step_clock import StepClock

NUM_ENVS = {"ppo": 8, "a2c": 16, "dqn": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=NUM_ENVS)
    parser.add_argument("kind", choices=("dummy", "subproc"))
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--envs", type=int)
    args = parser.parse_args()
    import torch
    from stable_baselines3 import A2C, DQN, PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    torch.set_num_threads(args.threads)
    clock = StepClock(args.secs)

    class Stop(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps > self.locals.get("learning_starts", 0):  # an update lies behind
                clock.note(self.num_timesteps)

        def _on_step(self) -> bool:
            return not clock.over

    num_envs = args.envs or NUM_ENVS[args.algorithm]
    envs = VecFrameStack(
        make_atari_env(
            "ale_py:PongNoFrameskip-v4",
            n_envs=num_envs,
            vec_env_cls=DummyVecEnv if args.kind == "dummy" else SubprocVecEnv,
        ),
        n_stack=4,
    )
    common = {"ent_coef": 0.01, "device": "cpu"}
    model: PPO | A2C | DQN
    if args.algorithm == "dqn":
        # An update for every 4 steps, whatever the number of environments.
        model = DQN(
            "CnnPolicy",
            envs,
            buffer_size=10_000,
            learning_starts=1_000,
            batch_size=32,
            train_freq=4,
            gradient_steps=num_envs,
            target_update_interval=1_000,
            exploration_final_eps=0.1,
            exploration_fraction=1e-6,
            device="cpu",
        )
    elif args.algorithm == "ppo":
        model = PPO(
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
