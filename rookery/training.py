"""Train, resume, evaluate: what the command line and Python programs share.

::

    run = rookery.train("cartpole", seed=1, steps=50_000)
    run.evaluate(episodes=20)
    rookery.resume(run.path, steps=100_000)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rookery.agent import load_config, load_policy
from rookery.cli.settings import config_from_tree, short_flags
from rookery.core.errors import UserError
from rookery.engines.engine import Finish, Job
from rookery.envs.make import register_callable
from rookery.recipes.catalog import Tree, lay_over, load_recipe, recipe_names, resolve
from rookery.roles.evaluator import evaluate as evaluate_policy
from rookery.runs.checkpoint import Checkpoint, find_checkpoint, load_checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory, RunState
from rookery.runs.session import Callbacks

Callback = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk and how its last sitting ended."""

    path: Path
    finish: Finish

    @property
    def solved(self) -> bool:
        """Whether it stopped because its score was reached."""
        return self.finish.outcome.state == "solved"

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int = 0,
        deterministic: bool | None = None,
        max_steps: int | None = None,
        checkpoint: str | None = None,
    ) -> dict[str, Any]:
        """Raw whole-episode scores of its best (else latest) policy."""
        return evaluate_run(
            self.path,
            episodes,
            seed=seed,
            deterministic=deterministic,
            max_steps=max_steps,
            checkpoint=checkpoint,
        )


def train(
    what: str | Callable[..., Any],
    *,
    run: str | Path | None = None,
    init_from: str | Path | None = None,
    on_update: Callback | None = None,
    on_episode: Callback | None = None,
    on_evaluation: Callback | None = None,
    **settings: Any,
) -> Run:
    """Train a recipe, an environment id, ``module:factory``, or a callable that makes one.

    ``settings`` are short flags (``seed=1, steps=50_000, lr=1e-3``) or sections
    (``env={"num_envs": 32}, ppo={"clip": 0.1}``).
    """
    callbacks = Callbacks(on_update, on_episode, on_evaluation)
    start = Path(init_from) if init_from is not None else None
    config = _settings(what, settings)
    return start_run(config, path=Path(run) if run else None, callbacks=callbacks, init_from=start)


def resume(run: str | Path, *, callbacks: Callbacks | None = None, **settings: Any) -> Run:
    """Go on with a run from its newest checkpoint; ``steps`` is the new total."""
    directory = RunDirectory.open(Path(run))
    config = load_config(directory)
    tree = lay_over(config.to_tree(), _tree_of(settings, config.algo, config.formation))
    return continue_run(directory, config_from_tree(tree), callbacks or Callbacks())


def start_run(
    config: RunConfig,
    *,
    path: Path | None = None,
    callbacks: Callbacks | None = None,
    init_from: Path | None = None,
    announce: Callable[[RunDirectory], None] = lambda run: None,
) -> Run:
    """A new run directory, trained to its end."""
    start = None
    if init_from is not None:
        start = load_checkpoint(find_checkpoint(init_from, None), parts=["weights"])
    directory = RunDirectory.create(path, name=config.name or config.recipe or config.env.id)
    announce(directory)
    return _sitting(Job(config, directory, callbacks or Callbacks(), init_from=start))


def continue_run(directory: RunDirectory, config: RunConfig, callbacks: Callbacks) -> Run:
    """Another sitting of an existing run."""
    checkpoint: Checkpoint = load_checkpoint(directory.path, "latest")
    return _sitting(Job(config, directory, callbacks, resume=checkpoint))


def _sitting(job: Job) -> Run:
    run, config = job.run, job.config
    with run.lock():
        run.write_config(yaml.safe_dump(config.to_tree(), sort_keys=False))
        run.write_meta({"seed": config.seed})
        run.write_status("running", steps=job.resume.steps if job.resume else 0)
        try:
            finish = _engine(config.engine)(job)
        except BaseException as error:
            state: RunState = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            run.write_status(state, reason=str(error) or type(error).__name__)
            raise
        outcome = finish.outcome
        ended: RunState = "finished" if outcome.state == "stopped" else outcome.state
        run.write_status(ended, reason=outcome.reason, steps=finish.steps)
    return Run(run.path, finish)


def _engine(name: str) -> Callable[[Job], Finish]:
    if name == "inline":
        from rookery.engines.inline import run as run_inline

        return run_inline
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
) -> dict[str, Any]:
    """Play whole episodes with a saved policy; see :meth:`Run.evaluate`."""
    if episodes < 1:
        raise UserError(f"--episodes: must be at least 1, got {episodes}")
    policy, config, found = load_policy(path, checkpoint)
    mode = config.eval.deterministic if deterministic is None else deterministic
    result = evaluate_policy(
        policy,
        replace(config.env),
        episodes=episodes,
        seed=seed,
        deterministic=mode,
        max_steps=max_steps if max_steps is not None else config.eval.max_steps,
        num_envs=num_envs or config.eval.num_envs,
    )
    return result.summary() | {"checkpoint_steps": found.steps, "deterministic": mode}


def _settings(what: str | Callable[..., Any], settings: dict[str, Any]) -> RunConfig:
    formation = settings.get("formation")
    if callable(what):
        tree: Tree = {"env": {"id": register_callable(what)}}
    elif what in recipe_names():
        tree = load_recipe(what)
    else:
        tree = {"env": {"id": what}}
    if not callable(what):
        tree["recipe"] = what
    tree = resolve(tree, formation)
    algo = settings.get("algo") or tree.get("algo", "ppo")
    return config_from_tree(lay_over(tree, _tree_of(settings, algo, tree["formation"])))


def _tree_of(settings: dict[str, Any], algo: str, formation: str) -> Tree:
    """Keyword arguments as nested settings: short flags written out."""
    short = {flag.replace("-", "_"): path for flag, path in short_flags(algo, formation).items()}
    tree: Tree = {}
    for name, value in settings.items():
        top, _, leaf = short.get(name, name).partition(".")
        tree = lay_over(tree, {top: {leaf: value}} if leaf else {top: value})
    return tree
