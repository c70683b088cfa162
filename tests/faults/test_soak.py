"""Long runs under a rain of kills: `make test-long`."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from rookery.runs.find import load_checkpoint
from tests.faults import processes as p
from tests.faults.test_local_faults import SLOW_STEPS, SMALL, WORLD, finish

KILLS = 20


@pytest.mark.long
@pytest.mark.slow
def test_a_run_survives_twenty_kills(tmp_path: Path) -> None:
    run = tmp_path / f"soak-{tmp_path.name}"
    before = p.shared_memory()
    process = p.start(
        run, WORLD, *SMALL, *SLOW_STEPS, "--steps", "30000", "--supervise.max_restarts", "100"
    )
    chance = random.Random(7)
    for _ in range(KILLS):
        victims = p.until(lambda: p.everyone(run), "someone to kill")
        if process.poll() is not None:
            break
        p.kill(victims[chance.choice(sorted(victims))])
        time.sleep(chance.uniform(0.5, 4.0))
    code, errors = finish(process, timeout=600)
    assert code == 0, errors
    written = [record["steps"] for record in p.records(run)]
    assert written == sorted(written)
    assert load_checkpoint(run, "latest").steps >= 30000
    assert not p.everyone(run)
    p.until(lambda: p.shared_memory() <= before, "shared memory to be gone", timeout_secs=10)
