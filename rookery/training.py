"""Train, resume, evaluate: what the command line and Python programs share.

::

    run = rookery.train("cartpole", seed=1, steps=50_000)
    run.evaluate(episodes=20)
    rookery.resume(run.path, steps=100_000)
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.signature import Signature
from rookery.doctor.precision import computable, faster_precision, why_not_bf16
from rookery.doctor.run_memory import check_memory, memory_note
from rookery.engines.carries import carries
from rookery.engines.engine import Finish, Job
from rookery.engines.fork_server import fork_server_for
from rookery.envs.make import is_callable_id
from rookery.envs.registration import info_keys_of
from rookery.nets.encoder import Encoder
from rookery.nets.policy import Policy
from rookery.programs.memory import estimate
from rookery.programs.plan import Plan, compute_threads, probe
from rookery.programs.validate import validate
from rookery.recipes.on_nodes import at_head_of, over_hosts
from rookery.recipes.schedules import note_on_schedules
from rookery.recipes.settings import Trainable, revised, revised_env, settings_from_python
from rookery.roles.evaluator import evaluate as evaluate_policy
from rookery.roles.evaluator import note_on_cuts
from rookery.roles.learner import load_weights
from rookery.runs.atomic import WriteError
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import MANIFEST, Checkpoint
from rookery.runs.config import RunConfig, divided
from rookery.runs.directory import RunDirectory, RunState
from rookery.runs.elsewhere import moved, other_game
from rookery.runs.find import load_checkpoint
from rookery.runs.lines import lines_for_python
from rookery.runs.metrics import check_sink_there, read_metrics
from rookery.runs.session import Callbacks, Outcome
from rookery.runs.start import starting_weights
from rookery.runs.trained import env_of, find_trained, load_config, run_of
from rookery.zoo.catalog import find_bundle

if TYPE_CHECKING:
    from rookery.agent import Agent
    from rookery.runs.curves import XAxis
    from rookery.runs.plotting import Picture

_LOG = logging.getLogger(__name__)

Callback = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk and how its last session ended."""

    path: Path
    finish: Finish

    @property
    def solved(self) -> bool:
        """Whether it stopped because its score was reached."""
        return self.finish.outcome.state == "solved"

    @property
    def agent(self) -> Agent:
        """Its best policy, else the latest, ready to act."""
        from rookery.agent import load

        return load(self.path)

    def metrics(self) -> Any:
        """Its records: a pandas DataFrame where pandas is installed, else a list of mappings."""
        records = read_metrics(self.path / "metrics.jsonl")
        if importlib.util.find_spec("pandas") is None:
            return records
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame(records)

    def plot(
        self, y: str | None = None, *, x: XAxis = "steps", out: str | Path | None = None
    ) -> Picture:
        """Its learning curve, or another metric ``y``, or several with commas between, or an
        "overview"; notebooks show what this returns.

        ``out`` is a file to save it to: .png, .svg or .pdf.
        """
        from rookery.runs.curve_picture import Wanted, compose
        from rookery.runs.plotting import save

        picture = compose([self.path], Wanted(x=x, y=y)).picture
        if out is not None:
            save(picture, Path(out))
        return picture

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int = 0,
        deterministic: bool | None = None,
        max_steps: int | None = None,
        checkpoint: str | None = None,
        env: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Raw whole-episode scores of its best (else latest) policy.

        ``env`` are settings of the environment that differ from those of training.
        """
        return evaluate_run(
            self.path,
            episodes,
            seed=seed,
            deterministic=deterministic,
            max_steps=max_steps,
            checkpoint=checkpoint,
            env=env,
        )


def train(
    what: Trainable,
    *,
    run: str | Path | None = None,
    init_from: str | Path | None = None,
    on_update: Callback | None = None,
    on_episode: Callback | None = None,
    on_evaluation: Callback | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train a recipe, an environment id, ``module:factory``, a callable that makes one, or one that
    ``gymnasium.make`` made.

    ``settings`` are short flags (``seed=1, steps=50_000, lr=1e-3``) or sections
    (``env={"num_envs": 32}, ppo={"clip": 0.1}``). Progress is printed unless ``quiet``.
    """
    config = _for_python(settings_from_python(what, settings))
    lines = lines_for_python(config, quiet=quiet)
    done = start_run(
        config,
        path=Path(run) if run is not None else None,
        init_from=Path(init_from) if init_from is not None else None,
        callbacks=Callbacks(
            on_update,
            on_episode,
            on_evaluation,
            [lines.record],
            on_stage=lines.stage,
            on_notice=lines.say,
        ),
        announce=lines.begin,
        say=lines.say,
    )
    lines.finish(done)
    return done


def resume(
    run: str | Path,
    *,
    on_update: Callback | None = None,
    on_episode: Callback | None = None,
    on_evaluation: Callback | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Go on with a run from its newest checkpoint; ``steps`` is the new total.

    A run that was solved stays as it is unless ``stop_at`` is given (None: train on).
    """
    saved = SavedRun.find(Path(run))
    config = _for_python(revised(saved.config, settings))
    lines = lines_for_python(config, quiet=quiet)
    callbacks = Callbacks(
        on_update,
        on_episode,
        on_evaluation,
        [lines.record],
        on_stage=lines.stage,
        on_notice=lines.say,
    )
    done = continue_run(
        saved,
        config,
        callbacks,
        new_goal="stop_at" in settings,
        announce=lines.go_on,
        say=lines.say,
    )
    lines.finish(done)
    return done


def _for_python(config: RunConfig) -> RunConfig:
    """``config``, if a function call can carry it."""
    if config.engine == "mpi":
        raise UserError(
            "engine mpi: ranks take their roles from the command, not from a script; use "
            "`mpiexec -n 4 rookery train ...`, or engine local"
        )
    return config


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run on disk and where in it to go on."""

    directory: RunDirectory
    config: RunConfig
    start: Path
    """The run (its newest valid checkpoint), or one checkpoint."""

    @classmethod
    def find(cls, path: Path) -> SavedRun:
        """The run that ``path`` means: a run directory, or a checkpoint inside one."""
        if find_bundle(path) is not None:
            raise UserError(
                f"{path} is not a run and cannot be resumed; "
                f"`rookery train RECIPE --init-from {path}` trains its policy further"
            )
        is_checkpoint = os.path.isfile(path / MANIFEST)
        directory = run_of(path.resolve()) if is_checkpoint else RunDirectory.open(path)
        return cls(directory, load_config(directory), path if is_checkpoint else directory.path)

    def load(self) -> Checkpoint:
        """The checkpoint to go on from."""
        path = self.directory.path
        if not CheckpointStore(self.directory.checkpoints).steps_available():
            raise UserError(f"{path}: {self.directory.how_to_go_on()}")
        return load_checkpoint(self.start, None if self.start != path else "latest")

    def settled(self, config: RunConfig, checkpoint: Checkpoint, new_goal: bool) -> Outcome | None:
        """Why there is nothing left to train, None if there is something."""
        status = self.directory.read_status()
        if status is None or self.start != self.directory.path:
            return None
        if status.state == "solved" and not new_goal:
            return Outcome("solved", f"{status.reason}; --stop-at none trains it further")
        if status.state == "finished" and checkpoint.steps >= config.total_steps:
            done = f"{checkpoint.steps:,} of {config.total_steps:,} steps are done"
            return Outcome("finished", f"nothing to do, {done}; a larger --steps trains it further")
        return None


def start_run(
    config: RunConfig,
    *,
    path: Path | None = None,
    callbacks: Callbacks | None = None,
    init_from: Path | None = None,
    announce: Callable[[RunDirectory], None] = lambda run: None,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """A new run directory, trained to its end. Whatever can be refused is, before it exists."""
    start = starting_weights(init_from) if init_from is not None else None
    config = _divided(config, say)
    with fork_server_for(config.engine) as server:
        plan = check(config, start)
        config = plan.config
        directory = RunDirectory.create(path, name=config.name or config.recipe or config.env.id)
        _say_notes(plan, say)
        announce(directory)
        job = Job(
            plan,
            directory,
            callbacks or Callbacks(),
            init_from=start,
            fork_server=server,
        )
        return _session(job)


def continue_run(
    saved: SavedRun,
    config: RunConfig,
    callbacks: Callbacks,
    *,
    new_goal: bool = False,
    announce: Callable[[RunDirectory, Checkpoint], None] = lambda run, checkpoint: None,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """Another session of an existing run; ``new_goal``: the score to stop at was given anew."""
    checkpoint = saved.load()
    settled = saved.settled(config, checkpoint, new_goal)
    if settled is not None:
        updates = checkpoint.parts["learner"].data["updates"]
        wall_secs = checkpoint.parts["session"].data["wall_secs"]
        return Run(saved.directory.path, Finish(settled, checkpoint.steps, updates, wall_secs))
    if config.device == "cpu":
        policy = computable(config.policy, saved.directory.path.name)
        config = replace(config, policy=policy)
    config = _divided(config, say)
    with fork_server_for(config.engine) as server:
        plan = check(config)
        _say_notes(plan, say)
        announce(saved.directory, checkpoint)
        job = Job(plan, saved.directory, callbacks, resume=checkpoint, fork_server=server)
        return _session(job)


def _say_notes(plan: Plan, say: Callable[[str], None]) -> None:
    """What a user may not have meant or known, before the run begins."""
    for note in (memory_note(estimate(plan)), note_on_schedules(plan.config)):
        if note is not None:
            say(note)


def _divided(config: RunConfig, say: Callable[[str], None]) -> RunConfig:
    """``config`` with environments that those who act can share, said if that changed it."""
    config, note = divided(config)
    if note is not None:
        say(note)
    return config


def check(config: RunConfig, start: Checkpoint | None = None) -> Plan:
    """Refuse what cannot run, before anything is written; the plan of what can."""
    if config.engine != "inline" and is_callable_id(config.env.id):
        raise UserError(
            f"engine {config.engine} starts other processes, which cannot see a Python callable: "
            "put it in a module and train 'module:name', or use engine inline"
        )
    for sink in config.metrics.sinks:
        check_sink_there(sink)
    if config.hosts.listen is not None:
        from rookery.engines.gateway import check_listening

        check_listening(config)
    if config.engine == "ray":
        from rookery.engines.ray import check_ray

        check_ray(config)
    signature = probe(config.env, config.seed)
    plan = Plan.of(with_precision(config, signature), signature)
    if config.engine != "ray":  # whose head is elsewhere
        plan.device()
    links = carries(config.engine)
    validate(started(plan).program(), config.engine, links, concurrent=plan.concurrent)
    check_memory(plan, estimate(plan), one_host=_on_one_host(config.engine))
    if start is not None:
        _check_start(start, plan.policy(), config)
    return plan


def started(plan: Plan) -> Plan:
    """``plan``, or that of the head which the engine will start for it."""
    config = plan.config
    if config.engine != "ray":
        return plan
    return replace(plan, config=over_hosts(config, at_head_of(config, config.ray.head_actors)))


def _on_one_host(engine: str) -> bool:
    """Whether all processes of a run are on this machine."""
    if engine == "ray":
        return False
    if engine != "mpi":
        return True
    from rookery.engines.mpi import world

    return len({seat.host for seat in world().seats}) == 1


def with_precision(config: RunConfig, signature: Signature) -> RunConfig:
    """``config`` with the precision that suits this machine, where it was left open; refuses one
    that it does not have.

    Ranks of an MPI job and nodes of a Ray cluster may be unlike machines, so theirs is fp32.
    """
    if config.policy.precision == "bf16" and config.device == "cpu" and (why := why_not_bf16()):
        raise UserError(
            f"policy.precision: this machine cannot compute in bf16 ({why}); use fp32, or auto"
        )
    if config.policy.precision != "auto":
        return config
    images = any(len(shape) == 3 for shape in Encoder(signature.obs, False).shapes.values())
    tried = images and config.engine not in ("mpi", "ray") and config.device == "cpu"
    found = faster_precision() if tried else "fp32"
    return replace(config, policy=replace(config.policy, precision=found))


def _check_start(start: Checkpoint, policy: Policy, config: RunConfig) -> None:
    """Refuse to start from weights of another task or another network."""
    weights = start.parts["weights"]
    saved = weights.data.get("signature")
    difference = Signature.from_json(saved).difference(policy.signature) if saved else None
    if difference is not None:
        raise UserError(
            f"--init-from {start.path}: it was trained in another environment ({difference}); "
            f"give a run of one like {config.env.id}"
        )
    try:
        load_weights(policy, weights)
    except UserError as error:
        raise UserError(f"--init-from {start.path}: {error}") from error
    before = env_of(start)
    if before is not None and (other := other_game(before, config.env)) is not None:
        _LOG.warning("--init-from %s: its weights are of another game (%s)", start.path, other)


def _session(job: Job) -> Run:
    run, config = job.run, job.plan.config
    with run.lock():
        run.write_config(yaml.safe_dump(config.to_tree(), sort_keys=False))
        extra = {"seed": config.seed, "recipe": config.recipe, "tags": list(config.tags)}
        if job.init_from is not None:
            extra["init_from"] = str(job.init_from.path)
        run.write_meta(extra)
        run.write_status("running", steps=job.resume.steps if job.resume else 0)
        try:
            finish = _engine(config.engine)(job)
        except BaseException as error:
            state: RunState = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            if isinstance(error, EnvironmentFault) and error.__cause__ is not None:
                with contextlib.suppress(OSError, UserError):  # a full disk, say
                    error.args = (f"{error} (log: {run.write_failure(error)})",)
            if isinstance(error, WriteError):
                error.args = (f"{error}; {run.how_to_go_on()}",)
            reason = str(error) or type(error).__name__
            run.write_status(state, reason=reason, steps=_steps_recorded(job))
            raise
        outcome = finish.outcome
        run.write_status(outcome.state, reason=outcome.reason, steps=finish.steps)
    return Run(run.path, finish)


def _steps_recorded(job: Job) -> int:
    """How far a session came that did not end well."""
    start = job.resume.steps if job.resume else 0
    with contextlib.suppress(OSError, UserError):
        last = read_metrics(job.run.metrics_path)[-1:]
        return max([start, *(int(record["steps"]) for record in last)])
    return start


def _engine(name: str) -> Callable[[Job], Finish]:
    if name == "inline":
        from rookery.engines.inline import run as run_inline

        return run_inline
    if name == "mpi":
        from rookery.engines.mpi import run as run_mpi

        return run_mpi
    if name == "ray":
        from rookery.engines.ray import run as run_ray

        return run_ray
    from rookery.engines.local import run as run_local

    return run_local


def evaluate_run(
    path: Path,
    episodes: int,
    *,
    seed: int = 0,
    deterministic: bool | None = None,
    max_steps: int | None = None,
    checkpoint: str | None = None,
    num_envs: int | None = None,
    env: Mapping[str, Any] | None = None,
    on_episodes: Callable[[int], Any] = lambda num_over: None,
) -> dict[str, Any]:
    """Play whole episodes with a saved policy; see :meth:`Run.evaluate`."""
    for name, value, low in (("episodes", episodes, 1), ("seed", seed, 0)):
        if value < low:
            raise UserError(f"--{name}: must be at least {low}, got {value}")
    if max_steps is not None and max_steps < 0:
        raise UserError(f"--max-steps: must be at least 1, or 0 for none, got {max_steps}")
    trained = find_trained(path, checkpoint)
    if env:
        trained = moved(trained, revised_env(trained.env, dict(env)))
    mode = trained.eval.deterministic if deterministic is None else deterministic
    with compute_threads(1):
        result = evaluate_policy(
            trained.policy,
            trained.env,
            episodes=episodes,
            seed=seed,
            deterministic=mode,
            max_steps=max_steps if max_steps is not None else trained.eval.max_steps,
            num_envs=num_envs or trained.eval.num_envs,
            info_keys=trained.info_keys or info_keys_of(trained.env.id),
            on_episodes=on_episodes,
        )
    if result.cut:
        _LOG.warning(note_on_cuts(result, "--max-steps"))
    how = {"by": trained.eval.score, "checkpoint_steps": trained.steps, "deterministic": mode}
    return result.summary() | how
