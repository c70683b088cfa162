"""Records for MLflow: the metric sink ``mlflow``.

Its own environment variables decide where they go: ``MLFLOW_TRACKING_URI`` and what belongs to it,
``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID``. Without a URI they are in the run directory,
in plain files, which need no database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

# How long the client tries; here nobody waits for it, but the end of the run should not either.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from rookery.runs.courier_process import Ending, Memo, Record
from rookery.runs.directory import RunDirectory

EXPERIMENT = "rookery"
MAX_VALUE = 500
"""Characters of a parameter that every store takes."""
MAX_BATCH = 1000
"""Metrics of one request."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


class MlflowTracker:
    """One run of MLflow; ``steps`` is the step of its metrics."""

    def __init__(self) -> None:
        self._client: MlflowClient | None = None
        self._id = ""

    def open(self, run: RunDirectory, config: dict[str, Any], memo: Memo) -> str | None:
        """Begin the run, or continue the one in ``memo``."""
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (run.path / "mlflow").absolute().as_uri()
        if urlsplit(uri).scheme in ("", "file"):
            # MLflow asks to confirm this store: it is complete, but no longer developed.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = client = MlflowClient(uri)
        params = dict(_flat(config))
        warning = None
        if memo.id and not _continue(client, memo.id, params):
            warning = f"{uri} has no run {memo.id}, so another one was begun"
            memo.id = ""
        memo.id = memo.id or _begin(client, run, config, params)
        memo.url = uri
        self._id = memo.id
        return warning

    def log(self, records: list[Record]) -> None:
        """Log the numbers of each record at its steps."""
        assert self._client is not None
        now = int(time.time() * 1000)
        metrics = [
            Metric(key, float(value), now, int(record["steps"]))
            for record in records
            for key, value in record.items()
            if key != "steps" and isinstance(value, int | float)
        ]
        for start in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + MAX_BATCH])

    def close(self, ending: Ending) -> None:
        """Tell how the run ended."""
        assert self._client is not None
        self._client.set_terminated(self._id, STATUS[ending])


def _begin(
    client: MlflowClient, run: RunDirectory, config: dict[str, Any], params: dict[str, str]
) -> str:
    tags = {
        "rookery.run": str(run.path.absolute()),
        "group": config.get("recipe") or config["env"]["id"],
        **{f"tag.{tag}": "true" for tag in config.get("tags", ())},
    }
    begun = client.create_run(_experiment(client), run_name=run.path.name, tags=tags)
    run_id = str(begun.info.run_id)
    items = [Param(key, value) for key, value in params.items()]
    for start in range(0, len(items), 100):
        client.log_batch(run_id, params=items[start : start + 100])
    return run_id


def _continue(client: MlflowClient, run_id: str, params: dict[str, str]) -> bool:
    """Take the run up again, if it is there; parameters cannot change, so new values are tags."""
    try:
        before = client.get_run(run_id).data.params
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    client.update_run(run_id, status="RUNNING")
    for key, value in params.items():
        if before.get(key) != value:
            client.set_tag(run_id, f"resumed.{key}", value)
    return True


def _experiment(client: MlflowClient) -> str:
    given = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if given:
        return given
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known else client.create_experiment(name))


def _flat(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their paths, as text."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(value)[:MAX_VALUE]
