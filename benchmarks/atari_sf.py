"""Steps/s of Sample Factory's APPO on Pong: `atari_sf.py --workers 2 --envs 4 --async`.

Its own Atari wrappers and settings (4 epochs of 4 minibatches of 256, rollouts of 128), but images
are only divided by 255, as with the others. Counted is what its learner says it has learned from,
which is frames unless it is told otherwise: `summaries_use_frameskip` false makes it steps. Runs in
the virtual environment .venv-peers-sf and prints one JSON line.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

from step_clock import StepClock


def make_pong(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    import ale_py  # noqa: F401  registers the games in each worker
    from sf_examples.atari.atari_utils import make_atari_env

    return make_atari_env(name, cfg, env_config, render_mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--envs", type=int, default=1, help="of each worker")
    parser.add_argument("--async", action="store_true", dest="asynchronous")
    parser.add_argument("--secs", type=float, default=60.0)
    args = parser.parse_args()
    from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS, ExperimentStatus
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from sf_examples.atari.train_atari import parse_atari_args

    clock = StepClock(args.secs)

    def note(runner: Any, message: dict[str, Any], _policy: int) -> None:
        if message[LEARNER_ENV_STEPS]:  # 0 is told before the first update
            clock.note(message[LEARNER_ENV_STEPS])
        if clock.over:
            runner.cfg.train_for_env_steps = 0  # ends it after the next update

    register_env("atari_pong", make_pong)
    with tempfile.TemporaryDirectory() as root:
        settings = {
            "env": "atari_pong",
            "device": "cpu",
            "experiment": "pong",
            "train_dir": root,
            "num_workers": args.workers,
            "num_envs_per_worker": args.envs,
            "worker_num_splits": 2 if args.asynchronous else 1,
            "async_rl": args.asynchronous,
            "summaries_use_frameskip": False,
            "normalize_input": False,
            "normalize_returns": False,
            "train_for_env_steps": 10**9,
            "save_every_sec": 10**6,
            "save_best_every_sec": 10**6,
        }
        cfg = parse_atari_args([f"--{name}={value}" for name, value in settings.items()])
        cfg, runner = make_runner(cfg)
        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(note)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise SystemExit(f"Sample Factory ended with status {status}")
    clock.report()


if __name__ == "__main__":
    main()
