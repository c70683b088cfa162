"""Records for Weights & Biases: the metric sink ``wandb``.

Its own environment variables decide where they go: ``WANDB_API_KEY`` or ``wandb login``,
``WANDB_MODE``, ``WANDB_PROJECT``, ``WANDB_ENTITY``, ``WANDB_RUN_GROUP``. Without a login, or when
the service does not answer, they are written in the run directory, for ``wandb sync``.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import wandb

from rookery.runs.courier_process import Ending, Memo, Record
from rookery.runs.directory import RunDirectory

INIT_SECS = 15.0
"""How long to wait for the service before writing offline, unless WANDB_INIT_TIMEOUT says more."""


class WandbTracker:
    """One run of Weights & Biases; ``steps`` is its step."""

    def __init__(self) -> None:
        self._run: wandb.Run | None = None

    def open(self, run: RunDirectory, config: dict[str, Any], memo: Memo) -> str | None:
        """Begin or continue the run; offline if the service does not let us."""
        memo.id = memo.id or secrets.token_hex(4)
        warning = None
        try:
            self._run = _init(run, config, memo.id)
        except (wandb.errors.UsageError, wandb.errors.CommError) as error:
            reason = str(error).strip().splitlines()[0]
            where = run.path / "wandb" / "offline-run-*"
            warning = f"offline ({reason}); later `wandb sync {where}` sends the records"
            wandb.teardown()  # or the id stays in use by what was just tried
            self._run = _init(run, config, memo.id, mode="offline")
        memo.url = "" if self._run.offline else self._run.url or ""
        return warning

    def log(self, records: list[Record]) -> None:
        """Log each record at its steps, or where W&B is if that is later: it never goes back."""
        assert self._run is not None
        for record in records:
            self._run.log(record, step=max(int(record["steps"]), self._run.step))

    def close(self, ending: Ending) -> None:
        """Finish the run and end W&B's own processes."""
        assert self._run is not None
        self._run.finish(exit_code=0 if ending == "finished" else 1)
        wandb.teardown()


def _init(run: RunDirectory, config: dict[str, Any], run_id: str, *, mode: Any = None) -> wandb.Run:
    settings = wandb.Settings(
        console="off",
        silent=True,
        x_stats_pid=os.getppid(),  # the learner's load, not this process's
    )
    if "WANDB_INIT_TIMEOUT" not in os.environ:
        settings.init_timeout = INIT_SECS
    offline = mode == "offline" or os.environ.get("WANDB_MODE") == "offline"
    return wandb.init(
        id=run_id,
        resume=None if offline else "allow",
        mode=mode,
        name=os.environ.get("WANDB_NAME", run.path.name),
        project=os.environ.get("WANDB_PROJECT", "rookery"),
        group=os.environ.get("WANDB_RUN_GROUP", config.get("recipe") or config["env"]["id"]),
        tags=[*config.get("tags", ()), *_words(os.environ.get("WANDB_TAGS", ""))],
        job_type=os.environ.get("WANDB_JOB_TYPE", "train"),
        dir=os.environ.get("WANDB_DIR", str(run.path)),
        config=config,
        allow_val_change=True,
        settings=settings,
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
