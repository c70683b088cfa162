"""Steps/s of RLlib on Pong: `atari_rllib.py ppo|impala --runners 2 --envs 4`.

Its new API stack with the Nature network as its module (its own convolutions pad, which makes a
larger network) and gymnasium's wrappers. For PPO its count of sampled environment steps is taken,
for IMPALA the smaller of those sampled and those learned from, so that what its queues drop is not
counted. Runs in the virtual environment .venv-peers-rllib and prints one JSON line.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

# Ray looks for news and tells its makers of its use; neither belongs into a measurement.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Its processes import the environment and the network from here.
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))


def config_of(algorithm: str, runners: int, envs: int, learners: int) -> Any:
    from atari_rllib_module import NatureModule
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    common = {"lr": 2.5e-4, "gamma": 0.99, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01}
    if algorithm == "ppo":
        config: Any = PPOConfig().training(
            train_batch_size_per_learner=1024,
            minibatch_size=256,
            num_epochs=4,
            lambda_=0.95,
            clip_param=0.1,
            use_kl_loss=False,
            grad_clip=0.5,
            **common,
        )
        fragment = 1024 // (envs * max(runners, 1))
    else:
        config = IMPALAConfig().training(train_batch_size_per_learner=512, grad_clip=40.0, **common)
        config = config.reporting(min_time_s_per_iteration=2)
        fragment = 32
    return (
        config.environment("pong")
        .framework("torch")
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=envs,
            rollout_fragment_length=fragment,
        )
        .learners(num_learners=learners, num_gpus_per_learner=0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=NatureModule))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=("ppo", "impala"))
    parser.add_argument("--runners", type=int, default=2, help="processes; 0: in this one")
    parser.add_argument("--envs", type=int, default=4, help="of each runner")
    parser.add_argument("--learners", type=int, default=0, help="processes; 0: in this one")
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2, help="of the process that learns")
    args = parser.parse_args()
    import ray
    import torch
    from atari_wrapped import make_pong
    from ray.tune.registry import register_env
    from step_clock import StepClock

    ray.init(
        num_cpus=args.runners
        + args.learners
        + 1,  # places, not cores: all share the cores of this process
        include_dashboard=False,
        log_to_driver=False,
    )
    register_env("pong", lambda _: make_pong())
    torch.set_num_threads(args.threads)
    config = config_of(args.algorithm, args.runners, args.envs, args.learners)
    algorithm = config.build_algo()
    torch.set_num_threads(args.threads)
    sampled, learned = StepClock(args.secs), StepClock(args.secs)
    before = 0
    while not sampled.over:
        result = algorithm.train()
        modules = result.get("learners", {}).get("__all_modules__", {})
        count = int(modules.get("num_env_steps_trained_lifetime", 0))
        if count > before:  # IMPALA may return without having learned anything
            before = count
            sampled.note(int(result["env_runners"]["num_env_steps_sampled_lifetime"]))
            learned.note(count)
    algorithm.stop()
    ray.shutdown()
    # PPO learns from each step in every epoch, and RLlib counts it each time.
    slower = min(sampled, learned, key=lambda clock: clock.rate)
    (sampled if args.algorithm == "ppo" else slower).report(
        sampled_per_s=sampled.rate, learned_per_s=learned.rate
    )


if __name__ == "__main__":
    main()
