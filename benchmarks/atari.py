"""Atari Pong, env steps/s of ours and of every peer, interleaved: `make bench-atari`.

    python benchmarks/atari.py [--secs 60] [--repeats 3] [--scout 15] [--only NAME ...]

One game, one network (the Nature convolutions and 512 units on four 84x84 uint8 frames), fp32, the
same two cores. A step is one decision, four frames. Every command is timed from the end of its
first update to the end of the one after SECS, so start-up does not count. Of several ways to run a
peer the fastest stands in the first table; with --scout all are tried for that long, and the
fastest is measured. What cannot run is named with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tree_memory import end_tree

HERE = Path(__file__).resolve().parent
OURS = sys.executable
SB3, SF, RLLIB = (
    str(HERE.parent / name / "bin" / "python")
    for name in (".venv-peers", ".venv-peers-sf", ".venv-peers-rllib")
)

# --- What is run ----------------------------------------------------------------------------------

# What follows `rookery train pong`. Two workers with 4 environments each make the peers' batch of
# 8 x 128, and two halves of a minibatch make their 256; likewise 16 x 5 for A2C.
PPO_LIKE = (
    "--formation allreduce --actors 2 --envs 8 --ppo.rollout_steps 128 "
    "--ppo.num_epochs 4 --ppo.num_minibatches 4"
)
# The bare loop's own: 32 environments, 32 steps and minibatches of 256 for each worker.
AS_BARE = (
    "--formation allreduce --actors 2 --envs 64 --ppo.rollout_steps 32 --ppo.num_minibatches 4"
)
A2C_LIKE = "--algo a2c --formation allreduce --actors 2 --envs 16 --a2c.rollout_steps 5"
IMPALA = "--formation async --envs 32 --impala.rollout_steps 64 --impala.num_minibatches 8"
NETWORK = (
    "--policy.torso conv2d --policy.hidden 512 --policy.normalize_images false "
    "--policy.precision fp32"
)
# What follows that; no evaluation and a record every few updates. The limit is some seconds more
# than SECS, for what comes before the first record.
MEASURED = (
    "--engine local --time-limit {limit} --eval.every_steps none --eval.episodes 0 --stop-at none "
    "--log-every 1024 --run {run} --quiet"
)

# Plain Q-learning, as Stable-Baselines3 has it.
DQN_LIKE = (
    "--dqn.double false --dqn.learning_starts 1000 --dqn.capacity_steps 10000 "
    "--dqn.epsilon.steps 1000"
)

ENVIRONMENT, PPO, ONE_PASS, DQN = (
    "environment alone",
    "PPO, 4 epochs",
    "one pass per sample",
    "DQN, 32 for 4 steps",
)
LIMIT, BARE, ROOKERY, PEER = "limit", "bare", "ours", "peer"


@dataclass(frozen=True, eq=False)
class Row:
    """One line of the table: the fastest of its ``ways``."""

    job: str
    name: str
    kind: str
    ways: dict[str, list[str]]
    """Command lines by what tells them apart; see ``filled``."""


def rookery(flags: str, recipe: str = "pong") -> list[str]:
    words = f"{flags} {NETWORK} {MEASURED}".split()
    return [OURS, "-m", "rookery", "train", recipe, *words]


def script(python: str, name: str, words: str = "") -> list[str]:
    return [python, str(HERE / name), *words.split(), "--secs", "{secs}"]


def sb3_ways(algorithm: str) -> dict[str, list[str]]:
    return {
        f"{cls}, torch threads {threads}": script(
            SB3, "atari_sb3.py", f"{algorithm} {kind} --threads {threads}"
        )
        for cls, kind, threads in (
            ("DummyVecEnv", "dummy", 2),
            ("SubprocVecEnv", "subproc", 2),
            ("SubprocVecEnv", "subproc", 1),
        )
    }


ROWS = [
    Row(ENVIRONMENT, "ALE, 1 thread", LIMIT, {"": script(OURS, "atari_env.py", "--threads 1")}),
    Row(ENVIRONMENT, "ALE, 2 threads", LIMIT, {"": script(OURS, "atari_env.py", "--threads 2")}),
    Row(PPO, "bare loop", BARE, {"": script(OURS, "bare_loop.py", "--epochs 4")}),
    Row(PPO, "Rookery PPO, 8 x 128", ROOKERY, {"allreduce": rookery(PPO_LIKE)}),
    Row(
        PPO,
        "Rookery PPO, 64 x 32",
        ROOKERY,
        {"allreduce": rookery(f"{AS_BARE} --ppo.num_epochs 4")},
    ),
    Row(PPO, "Stable-Baselines3 PPO", PEER, sb3_ways("ppo")),
    Row(PPO, "plain loop, CleanRL's settings", PEER, {"": script(SB3, "atari_plain.py")}),
    Row(
        PPO,
        "Sample Factory APPO",
        PEER,
        {
            "synchronous, 8 x 1 envs": script(SF, "atari_sf.py", "--workers 8 --envs 1"),
            "asynchronous, 2 x 4 envs": script(SF, "atari_sf.py", "--workers 2 --envs 4 --async"),
        },
    ),
    Row(
        PPO,
        "RLlib PPO",
        PEER,
        {
            "one process": script(RLLIB, "atari_rllib.py", "ppo --runners 0 --envs 8"),
            "env runners 2": script(RLLIB, "atari_rllib.py", "ppo --runners 2 --envs 4"),
        },
    ),
    Row(ONE_PASS, "bare loop", BARE, {"": script(OURS, "bare_loop.py", "--epochs 1")}),
    Row(
        ONE_PASS,
        "Rookery PPO, 1 epoch, 64 x 32",
        ROOKERY,
        {"allreduce": rookery(f"{AS_BARE} --ppo.num_epochs 1")},
    ),
    Row(ONE_PASS, "Rookery A2C, 16 x 5", ROOKERY, {"allreduce": rookery(A2C_LIKE)}),
    Row(ONE_PASS, "Rookery IMPALA", ROOKERY, {"async": rookery(IMPALA)}),
    Row(ONE_PASS, "Stable-Baselines3 A2C", PEER, sb3_ways("a2c")),
    Row(
        ONE_PASS,
        "RLlib IMPALA",
        PEER,
        {
            f"env runners {runners}, learner {place}": script(
                RLLIB,
                "atari_rllib.py",
                f"impala --runners {runners} --envs {16 // runners} --learners {learners}",
            )
            for runners, learners, place in ((1, 1, "apart"), (2, 1, "apart"), (2, 0, "in main"))
        },
    ),
    Row(DQN, "bare loop", BARE, {"": script(OURS, "bare_dqn.py")}),
    Row(
        DQN,
        "Rookery DQN",
        ROOKERY,
        {
            label: rookery(f"{DQN_LIKE} {flags}", "dqn-pong")
            for label, flags in {
                "one learner": "--learners 1",
                "two learners in lockstep": "--learners 2 --replay.lockstep true",
                "two learners": "--learners 2 --replay.lockstep false",
            }.items()
        },
    ),
    Row(
        DQN,
        "Stable-Baselines3 DQN",
        PEER,
        {
            f"environments {envs}, torch threads 2": script(
                SB3, "atari_sb3.py", f"dqn dummy --envs {envs}"
            )
            for envs in (1, 8)
        },
    ),
]


def memory_ways(envs: int) -> dict[str, list[str]]:
    """Peak memory at equal environments and minibatches of 256; ours has two workers."""
    ours = PPO_LIKE.replace("--envs 8", f"--envs {envs}")
    ours = ours.replace("--ppo.num_minibatches 4", f"--ppo.num_minibatches {envs // 2}")
    theirs = script(SB3, "atari_sb3.py", f"ppo subproc --envs {envs}")
    return {
        f"Rookery PPO, {envs} environments": rookery(ours),
        f"Stable-Baselines3 PPO, SubprocVecEnv, {envs} environments": theirs,
    }


MEMORY = memory_ways(8) | memory_ways(32)

# Each script sets its own threads; what else could change the speed is the same for all. fp32 has
# no use for the instructions that this leaves out, and some virtual machines only pretend to them.
DROPPED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
DEFAULTS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
TOLD = ("ONEDNN_", "DNNL_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "MALLOC_", "LD_PRELOAD")
VERSIONS = {
    "Rookery": (OURS, ("rookery", "torch", "numpy", "gymnasium", "ale-py")),
    "Stable-Baselines3 and plain loop": (
        SB3,
        ("stable-baselines3", "torch", "numpy", "gymnasium", "ale-py", "opencv-python-headless"),
    ),
    "Sample Factory": (SF, ("sample-factory", "torch", "numpy", "gymnasium", "ale-py")),
    "RLlib": (RLLIB, ("ray", "torch", "numpy", "gymnasium", "ale-py")),
}

# --- How it is run --------------------------------------------------------------------------------


class CannotRunError(Exception):
    """A command that gave no figure, and why."""


@dataclass
class Measured:
    """The figures of one way to run a row, or the last reason why there are none."""

    rates: list[float] = field(default_factory=list)
    reason: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rates) if self.rates else 0.0


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    return {**DEFAULTS, **kept}


def run(words: Sequence[str], limit_secs: float) -> str:
    """The command's output; its last line of complaint as an error."""
    if not Path(words[0]).exists():
        raise CannotRunError(f"{words[0]} is missing; run make bench-atari")
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=HERE.parent,
        start_new_session=True,
        text=True,
    )
    try:
        output, complaint = process.communicate(timeout=limit_secs)
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"not done after {limit_secs:.0f} s") from None
    finally:
        end_tree(process)
    if process.returncode:
        lines = [line.strip() for line in complaint.splitlines() if line.strip()]
        reason = lines[-1][:200].replace("|", "/") if lines else "no word of why"
        raise CannotRunError(f"{reason} (exit code {process.returncode})")
    return output


def last_json(output: str) -> dict[str, float]:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            told: dict[str, float] = json.loads(line)
            return told
    raise CannotRunError("printed no figure")


def rate_of_run(directory: Path) -> float:
    """Steps/s between the first and the last record of ours: start-up is not training."""
    try:
        lines = (directory / "metrics.jsonl").read_text().splitlines()
    except OSError:
        raise CannotRunError("wrote no metrics") from None
    if len(lines) < 2:
        raise CannotRunError("wrote fewer than two records; give it more time")
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    return float((last["steps"] - first["steps"]) / (last["wall_secs"] - first["wall_secs"]))


def filled(command: Sequence[str], secs: float, directory: Path) -> list[str]:
    """``command`` with its {secs}, {limit} and {run}."""
    return [word.format(secs=secs, limit=secs + 10, run=directory) for word in command]


def measure(command: Sequence[str], secs: float, spare_secs: float) -> float:
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "run"
        words = filled(command, secs, directory)
        output = run(words, secs + spare_secs)
        if "rookery" in command:
            return rate_of_run(directory)
    return float(last_json(output)["steps_per_s"])


def measure_memory(command: Sequence[str], secs: float, spare_secs: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as root:
        words = filled(command, secs, Path(root) / "run")
        tree = [sys.executable, str(HERE / "tree_memory.py"), *words]
        return last_json(run(tree, secs + spare_secs))


# --- What is printed ------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unknown")


def print_conditions(secs: float, repeats: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    told = {name: value for name, value in sorted(environment().items()) if name.startswith(TOLD)}
    print(f"- {processor()}, cores {cores}, load {os.getloadavg()[0]:.1f} at the beginning")
    print(f"- {secs:g} s each, {repeats} times, interleaved; {platform.platform()}")
    print("- environment: " + (" ".join(f"{k}={v}" for k, v in told.items()) or "nothing set"))
    for name, (python, packages) in VERSIONS.items():
        print(f"- {name}: {versions(python, packages)}")


def versions(python: str, packages: Sequence[str]) -> str:
    code = (
        "import platform, sys\nfrom importlib.metadata import version\n"
        "print(', '.join(['Python ' + platform.python_version()]"
        " + [f'{name} {version(name)}' for name in sys.argv[1:]]))"
    )
    try:
        return run([python, "-c", code, *packages], 120).strip()
    except CannotRunError as error:
        return f"not known ({error})"


def print_speeds(results: dict[Row, dict[str, Measured]]) -> None:
    best = {row: max(ways.values(), key=lambda way: way.median) for row, ways in results.items()}
    print("| job | system | env steps/s (median) | runs | of the bare loop | of the best peer |")
    print("|---|---|---|---|---|---|")
    for row, ways in results.items():
        found = best[row]
        if not found.rates:
            print(f"| {row.job} | {row.name} | did not run: {found.reason} | | | |")
            continue
        limits, peers = (
            [best[other].median for other in results if (other.job, other.kind) == (row.job, kind)]
            for kind in (BARE, PEER)
        )
        way = next(label for label, one in ways.items() if one is found)
        runs = ", ".join(f"{rate:,.0f}" for rate in found.rates)
        shares = [
            f"{found.median / max(others):.2f}" if others and max(others) > 0 else ""
            for others in (limits, peers)
        ]
        system = f"{row.name} ({way})" if way else row.name
        print(
            f"| {row.job} | {system} | {found.median:,.0f} | {runs} | {shares[0]} | {shares[1]} |"
        )


def print_ways(results: dict[Row, dict[str, Measured]]) -> None:
    print("| system | way | env steps/s (median) | runs |")
    print("|---|---|---|---|")
    for row, ways in results.items():
        for label, way in ways.items():
            runs = ", ".join(f"{rate:,.0f}" for rate in way.rates) or way.reason
            print(f"| {row.name} | {label} | {way.median:,.0f} | {runs} |")


def print_memory(names: Sequence[str], secs: float, spare_secs: float) -> None:
    print("| system | peak memory of all processes (PSS, MiB) | processes |")
    print("|---|---|---|")
    for name in names:
        say(f"memory of {name}")
        try:
            told = measure_memory(MEMORY[name], secs, spare_secs)
            line = f"{told['peak_pss_mib']:,.0f} | {told['processes']:.0f}"
        except CannotRunError as error:
            line = f"did not run: {error} |"
        print(f"| {name} | {line} |", flush=True)


def measure_all(
    rows: Sequence[Row], secs: float, repeats: int, spare_secs: float
) -> dict[Row, dict[str, Measured]]:
    results = {row: {label: Measured() for label in row.ways} for row in rows}
    for turn in range(repeats):
        for row in rows:
            for label, command in row.ways.items():
                way = results[row][label]
                try:
                    way.rates.append(measure(command, secs, spare_secs))
                    told = f"{way.rates[-1]:,.0f} env steps/s"
                except CannotRunError as error:
                    told = way.reason = str(error)
                say(f"{turn + 1}/{repeats} {row.job}: {row.name} {label}: {told}")
    return results


def fastest_ways(results: dict[Row, dict[str, Measured]]) -> list[Row]:
    """The rows, each with the fastest of its ways alone."""
    best = {row: max(ways, key=lambda label: ways[label].median) for row, ways in results.items()}
    return [replace(row, ways={label: row.ways[label]}) for row, label in best.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--secs", type=float, default=60.0, help="measured time of each run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scout", type=float, help="try all ways for so long, measure the fastest")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="rows whose job or name holds one of these"
    )
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--spare-secs", type=float, default=240.0, help="for start-up and the end")
    parser.add_argument("--no-memory", action="store_true", help="speeds only")
    parser.add_argument("--memory-secs", type=float, default=30.0)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])

    def wanted(name: str) -> bool:
        return not args.only or any(part.lower() in name.lower() for part in args.only)

    rows = [row for row in ROWS if wanted(f"{row.job}: {row.name}")]
    names = [] if args.no_memory else [name for name in MEMORY if wanted(name)]
    if not rows:
        raise SystemExit(f"no such row; there are: {', '.join(row.name for row in ROWS)}")
    print_conditions(args.secs, args.repeats)
    tried: dict[Row, dict[str, Measured]] = {}
    if args.scout:
        choices = [row for row in rows if len(row.ways) > 1]
        tried = measure_all(choices, args.scout, 1, args.spare_secs)
        chosen = dict(zip(choices, fastest_ways(tried), strict=True))
        rows = [chosen.get(row, row) for row in rows]
    results = measure_all(rows, args.secs, args.repeats, args.spare_secs)
    print("\n### Env steps/s\n")
    print_speeds(results)
    several = tried or {row: ways for row, ways in results.items() if len(ways) > 1}
    if several:
        print(f"\n### Every way that was tried, {args.scout or args.secs:g} s each\n")
        print_ways(several)
    if names:
        print("\n### Memory\n")
        print_memory(names, args.memory_secs, args.spare_secs)


if __name__ == "__main__":
    main()
