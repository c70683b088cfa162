"""``rookery train WHAT --seeds N [--jobs M]``: the same training with several seeds.

Each seed is a run of its own in a common directory, trained by a process of its own::

    runs/cartpole-<date>-<id>/
      seed-0/ seed-1/ seed-2/     runs
      logs/seed-0.log ...         what each process printed
      plots/return.png            all seeds in one picture
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli.arguments import Words
from rookery.cli.progress import can_draw
from rookery.cli.side_by_side import Child, run_all
from rookery.core.errors import RunFailed, UserError
from rookery.doctor.machine import usable_cores
from rookery.programs.plan import Plan
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.config import RunConfig, divided
from rookery.runs.directory import RunDirectory
from rookery.runs.lines import Lines
from rookery.runs.metrics import read_metrics

if TYPE_CHECKING:
    from rookery.cli.live.seed_rows import SeedRows

_OWN_FLAGS = ("seed",)
_KNOWN_CODES = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Seeds:
    """How many seeds, and how many side by side (None: as many as the cores carry)."""

    num: int
    jobs: int | None

    @classmethod
    def take(cls, words: Words) -> Seeds | None:
        """Take ``--seeds`` and ``--jobs`` out of the flags; None if there is one seed to train."""
        num, jobs = words.take("seeds"), words.take("jobs")
        if num is None:
            if jobs is not None:
                raise UserError("--jobs: it says how many of several --seeds train side by side")
            return None
        return cls(_count("--seeds", num), None if jobs is None else _count("--jobs", jobs))


def _count(flag: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{flag}: '{text}' is no number of seeds; give 1 or more")
    return int(text)


def train_seeds(
    seeds: Seeds,
    config: RunConfig,
    words: Words,
    *,
    path: Path | None,
    init_from: Path | None,
) -> int:
    """Train every seed, then show how each ended and draw them together; the exit code."""
    from rookery.runs.start import starting_weights
    from rookery.training import check

    plan = check(config, starting_weights(init_from) if init_from is not None else None)
    # Tried once, before the seeds keep the machine busy: all are to compute alike.
    precision = plan.config.policy.precision
    at_once = min(seeds.jobs or jobs_that_fit(config), seeds.num)
    group = RunDirectory.create(path, name=config.name or config.recipe or config.env.id)
    lines = Lines(quiet="quiet" in words.switches)
    numbers = range(config.seed, config.seed + seeds.num)
    lines.say(f"runs {group.path}: seeds {_listed(numbers)}, {at_once} at a time")
    words.flags["policy.precision"] = precision
    children = [_child(number, numbers, words, group, init_from) for number in numbers]
    with _listener(children, lines, words) as listener:
        interrupted = run_all(children, at_once=at_once, listener=listener)
    results = [_result(n, child, config, group) for n, child in zip(numbers, children, strict=True)]
    for line in _table(results, config):
        lines.say(line)
    _draw(group, lines)
    if interrupted is not None:
        return 128 + interrupted
    _raise_failures(results, children)
    return 0


def _listener(children: Sequence[Child], lines: Lines, words: Words) -> SeedRows | _SeedLines:
    """A row a seed on a terminal, lines elsewhere."""
    if lines.quiet or "plain" in words.switches or not can_draw():
        return _SeedLines(lines)
    from rookery.cli.live.seed_rows import SeedRows

    return SeedRows(children)


class _SeedLines:
    """Prints what every seed prints, its name before it."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def __enter__(self) -> _SeedLines:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to give back."""

    def say(self, text: str) -> None:
        """One line."""
        self.lines.say(text)

    def hear(self, child: Child, line: str) -> None:
        """One line of a seed."""
        self.lines.say(f"{child.name} | {line}")

    def look(self) -> None:
        """Everything is printed at once."""


def jobs_that_fit(config: RunConfig) -> int:
    """How many runs of ``config`` this process's cores carry at a time; at least one."""
    return max(1, usable_cores()[0] // cores_needed(config))


def cores_needed(config: RunConfig) -> int:
    """Compute threads that one run keeps busy."""
    config, _ = divided(config)
    nodes = [node for node in Plan.of(config).program().nodes if node.busy]
    stepping = config.env.num_workers if config.env.backend == "process" else 1
    threads = {node.name: node.num_threads for node in nodes}
    acts = config.formation_config.acting_role  # waits for the processes that step its environments
    threads[acts] = max(threads[acts], stepping)
    if config.engine == "inline" and not config.threads:
        return max(threads.values())
    return sum(node.replicas * threads[node.name] for node in nodes)


def _child(
    seed: int, seeds: Sequence[int], words: Words, group: RunDirectory, init_from: Path | None
) -> Child:
    """``rookery train`` for one seed, with everything else as it was given."""
    argv = ["train", *words.names]
    for flag, value in words.flags.items():
        if flag not in _OWN_FLAGS:
            argv += [f"--{flag}", value]
    if init_from is not None:
        argv += ["--init-from", str(init_from)]
    argv += ["--seed", str(seed), "--run", str(_run_path(group, seed))]
    width = len(str(seeds[-1]))
    return Child(f"seed {seed:>{width}}", argv, group.logs / f"seed-{seed}.log")


def _run_path(group: RunDirectory, seed: int) -> Path:
    return group.path / f"seed-{seed}"


def _listed(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


# ---- how it ended --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """How one seed ended."""

    seed: int
    path: Path
    outcome: str
    failed: bool
    steps: int
    wall_secs: float | None
    score: float | None
    """Of its best evaluation."""


def _result(seed: int, child: Child, config: RunConfig, group: RunDirectory) -> Result:
    run = RunDirectory(_run_path(group, seed))
    status = run.read_status()
    if child.code is None:
        outcome = "not started"
    elif child.code < 0:
        outcome = "killed"
    elif status is None:
        outcome = "interrupted" if child.code >= 128 else "failed"
    else:
        outcome = status.state
    best = CheckpointStore(run.checkpoints).best_score() if run.checkpoints.is_dir() else None
    return Result(
        seed,
        run.path,
        outcome,
        child.code not in (0, None),
        max(status.steps if status else 0, _steps_recorded(run)),
        _wall_secs(run),
        best.get(f"{config.eval.score}_mean") if best else None,
    )


def _last_record(run: RunDirectory) -> dict[str, Any]:
    records = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    return records[-1] if records else {}


def _steps_recorded(run: RunDirectory) -> int:
    """Where it was, also if it was killed."""
    return int(_last_record(run).get("steps", 0))


def _wall_secs(run: RunDirectory) -> float | None:
    """Training time, as its last record has it."""
    return _last_record(run).get("wall_secs")


def _table(results: Sequence[Result], config: RunConfig) -> list[str]:
    score_name = f"best {config.eval.score}"
    lines = [f"{'seed':>6}  {'outcome':<12} {'steps':>12} {'time':>10} {score_name:>12}"]
    for result in results:
        secs = "-" if result.wall_secs is None else f"{result.wall_secs:,.1f} s"
        score = "-" if result.score is None else f"{result.score:,.1f}"
        lines.append(
            f"{result.seed:>6}  {result.outcome:<12} {result.steps:>12,} {secs:>10} {score:>12}"
        )
    scores = [result.score for result in results if result.score is not None]
    if len(scores) > 1:
        lines.append(
            f"{score_name}: mean {sum(scores) / len(scores):,.1f}, "
            f"lowest {min(scores):,.1f}, highest {max(scores):,.1f} over {len(scores)} seeds"
        )
    return lines


def _draw(group: RunDirectory, lines: Lines) -> None:
    """All seeds in one picture, as far as there is something to draw."""
    from rookery.runs.curve_picture import compose
    from rookery.runs.plotting import save

    try:
        composed = compose([group.path])
        out = group.plots / f"{composed.stem}.png"
        save(composed.picture, out)
    except UserError as error:
        lines.say(f"no plot: {error}")
    else:
        lines.say(f"plot {out}")


def _raise_failures(results: Sequence[Result], children: Sequence[Child]) -> None:
    """One line for all seeds that failed, with the exit code of the first."""
    failed = [pair for pair in zip(results, children, strict=True) if pair[0].failed]
    if not failed:
        return
    result, child = failed[0]
    why = child.last_line.removeprefix("rookery: ") or f"exit code {child.code}"
    others = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
    fine = len(results) - len(failed)
    error = RunFailed(
        f"seed {result.seed} {result.outcome}: {why}{others}; {fine} of {len(results)} seeds ended "
        f"well; its log is {child.log}"
    )
    if child.code in _KNOWN_CODES:
        error.exit_code = child.code
    raise error
