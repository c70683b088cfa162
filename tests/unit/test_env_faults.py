"""What environments do wrong, and how the user is told."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rookery
from rookery.core.errors import EnvironmentFault
from rookery.envs import serial, timeout
from rookery.envs.make import EnvConfig, make_env, make_vector
from rookery.envs.native import NativeVector
from rookery.envs.process import ProcessVector, WorkerTracebackError
from rookery.envs.serial import SerialVector
from rookery.envs.timeout import Deadline, TimeUp
from rookery.envs.transition import StepResult, VectorEnv
from tests.toy_envs import FaultyEnv

FAULTY = "tests.toy_envs:FaultyEnv"
ACTIONS = np.zeros(2, np.int64)


def config_of(fault: str, settings: dict[str, Any] | None = None, **kwargs: Any) -> EnvConfig:
    return EnvConfig(id=FAULTY, kwargs={"fault": fault} | kwargs, num_envs=2, **(settings or {}))


def drive(envs: VectorEnv, num_steps: int = 8) -> list[StepResult]:
    """Reset and step; the results with their flags copied."""
    results = []
    envs.reset()
    for _ in range(num_steps):
        out = envs.step(ACTIONS)
        results.append(out)
        out.truncated, out.terminated = out.truncated.copy(), out.terminated.copy()
        out.reward, out.reset = out.reward.copy(), out.reset.copy()
    return results


def fault_of(envs: VectorEnv) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as caught:
        drive(envs)
    assert "\n" not in str(caught.value)
    return caught.value


RAISED = f"environment {FAULTY} (index 5) raised"
WRONG = f"environment {FAULTY} (index 5) returned a wrong value from step:"
MASKED = {"action_mask_key": "mask"}


@pytest.mark.parametrize(
    ("fault", "settings", "message"),
    [
        ("raise", {}, f"{RAISED} ValueError: the wheels came off in step at tests/toy_envs.py:"),
        ("raise", {}, "; fix the environment or set env.on_env_error=restart"),
        ("shape", {}, f"{WRONG} 'obs' should have shape (2,), its shape is (3,); fix"),
        ("scalar", {}, f"{WRONG} 'obs' should have shape (2,), its shape is (); fix"),
        ("dtype", {}, f"{WRONG} 'obs' should be float32, it is <U1; fix"),
        ("nan", {}, f"{WRONG} 'obs' holds NaN or infinity; fix the environment or set env.check="),
        ("range", {}, f"{WRONG} 'obs' is 3 counted from its start, beyond 3 choices"),
        ("inf_reward", {}, f"{WRONG} the reward is inf"),
        ("vector_reward", {}, f"{WRONG} the reward should be one number, it is a ndarray"),
        ("text_reward", {}, f"{WRONG} the reward should be one number, it is a str"),
        ("no_mask", MASKED, f"{WRONG} info has no action mask 'mask'"),
        ("empty_mask", MASKED, f"{WRONG} its action mask allows no action"),
        ("mask_shape", MASKED, f"{WRONG} the action mask should have shape (3,), its"),
    ],
)  # fmt: skip
def test_serial_faults_name_environment_and_cause(
    fault: str, settings: dict[str, Any], message: str
) -> None:
    # Only the second of two environments (5 of the run) fails.
    config = config_of(fault, settings)
    built: list[FaultyEnv] = []

    def build() -> FaultyEnv:
        built.append(FaultyEnv(fault, at=2 if built else 99, length=200))
        return built[-1]

    envs = SerialVector(build, config, run_seed=0, num_envs=2, first_env=4)
    assert message in str(fault_of(envs))


def test_the_cause_is_chained() -> None:
    error = fault_of(make_vector(config_of("raise"), run_seed=0))
    assert isinstance(error.__cause__, ValueError)
    assert error.exit_code == 3


def test_a_fault_in_reset() -> None:
    error = fault_of(make_vector(config_of("reset", at=0), run_seed=0))
    assert "(index 0) raised RuntimeError: the reset broke in reset" in str(error)


def test_a_fault_in_the_reset_after_an_episode() -> None:
    error = fault_of(make_vector(config_of("reset", at=0, episode=1, length=3), run_seed=0))
    assert "the reset broke in reset" in str(error)


@pytest.mark.parametrize("fault", ["nan", "inf_reward", "range", "empty_mask"])
def test_unchecked_values_pass(fault: str) -> None:
    settings = {"check": False, "action_mask_key": "mask"}
    drive(make_vector(config_of(fault, settings), run_seed=0))


@pytest.mark.parametrize("fault", ["nan"])
def test_the_last_observation_is_checked_too(fault: str) -> None:
    error = fault_of(make_vector(config_of(fault, at=5, length=5), run_seed=0))
    assert "in the last observation, 'obs' holds NaN" in str(error)


# Hanging.


@pytest.mark.parametrize(("fault", "where"), [("hang", "step"), ("hang_reset", "reset")])
def test_a_hang_is_ended(fault: str, where: str) -> None:
    config = config_of(fault, {"step_timeout_secs": 0.2}, at=0 if where == "reset" else 2)
    started = time.monotonic()
    error = fault_of(make_vector(config, run_seed=0))
    assert time.monotonic() - started < 5
    assert f"(index 0) did not return from {where} within 0.2 s" in str(error)
    assert "env.step_timeout_secs" in str(error)


def test_a_native_hang_is_ended() -> None:
    config = config_of("hang", {"step_timeout_secs": 0.2})
    vector: Any = SyncVectorEnv([lambda: make_env(config)] * 2)
    error = fault_of(NativeVector(vector, config, run_seed=0))
    assert "(native vector of 2) did not return from step within 0.2 s" in str(error)


def test_a_deadline_that_is_kept_leaves_nothing_behind() -> None:
    with Deadline(0.05):
        pass
    time.sleep(0.1)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_code_that_swallows_the_first_alarm_gets_another() -> None:
    def stubborn() -> None:
        with Deadline(0.05):
            with contextlib.suppress(TimeUp):
                time.sleep(10)
            time.sleep(10)

    with pytest.raises(TimeUp):
        stubborn()


def test_alarms_of_others_reach_their_handler() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda signum, frame: seen.append(signum))
    try:
        with Deadline(5.0):
            pass
        signal.raise_signal(signal.SIGALRM)
        assert seen == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_timers_of_others_go_on_afterwards() -> None:
    before = signal.signal(signal.SIGALRM, lambda signum, frame: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 50.0)
        with Deadline(5.0):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 5.0
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 40.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def in_thread(call: Callable[[], None]) -> list[str]:
    """What became of ``call`` in a thread of its own."""
    outcome: list[str] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            outcome.append(type(error).__name__)
        else:
            outcome.append("done")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return outcome


def test_deadlines_of_other_threads_are_watched() -> None:
    def busy() -> None:
        with Deadline(0.3):
            while True:
                time.sleep(0.001)

    def quick() -> None:
        for _ in range(100):
            with Deadline(0.3):
                time.sleep(0.004)
        time.sleep(0.5)  # of which nobody is told

    assert in_thread(busy) == ["TimeUp"]
    assert in_thread(quick) == ["done"]


def test_a_thread_that_does_not_leave_c_code_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeout, "CONFIRM_SECS", 0.3)

    def asleep() -> None:
        with Deadline(0.2):
            time.sleep(1.5)

    assert in_thread(asleep) == ["TimeUp"]
    assert "train in the main thread, or under engine local" in caplog.text


def test_threads_do_not_disturb_the_main_one() -> None:
    def main_thread() -> None:
        with Deadline(0.2):
            assert in_thread(lambda: time.sleep(0.01)) == ["done"]
            time.sleep(5)

    with pytest.raises(TimeUp):
        main_thread()


def test_a_hanging_environment_stops_a_run_in_a_thread(tmp_path: Path) -> None:
    said: list[str] = []

    def train() -> None:
        try:
            rookery.train(
                FAULTY,
                run=tmp_path / "run",
                envs=1,
                env={"kwargs": {"fault": "spin"}, "step_timeout_secs": 0.3},
            )
        except rookery.EnvironmentFault as error:
            said.append(str(error))

    assert in_thread(train) == ["done"]
    assert "did not return from step within 0.3 s" in said[0]


# Restarting.


class Accident(FaultyEnv):
    """Fails in each of its first lives, once."""

    lives = 0

    def __init__(self, fault: str) -> None:
        type(self).lives += 1
        super().__init__(fault if type(self).lives <= 2 else "", at=2, length=6)


@pytest.fixture
def lives() -> Iterator[None]:
    Accident.lives = 0
    yield
    Accident.lives = 0


@pytest.mark.usefixtures("lives")
@pytest.mark.parametrize("fault", ["raise", "nan", "shape", "hang"])
def test_a_restarted_environment_was_truncated(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"on_env_error": "restart", "step_timeout_secs": 0.2}
    envs = SerialVector(lambda: Accident(fault), config_of(fault, settings), run_seed=0, num_envs=2)
    obs = envs.reset()["obs"].copy()
    obs = envs.step(ACTIONS).obs["obs"].copy()
    with caplog.at_level(logging.WARNING):
        out = envs.step(ACTIONS)
    assert caplog.text.count("restarted it with a new episode") == 2
    assert out.final_obs is not None
    np.testing.assert_array_equal(out.final_obs["obs"], obs)
    np.testing.assert_array_equal(out.obs["obs"], np.zeros((2, 2)))
    assert out.truncated.all()
    assert out.reset.all()
    assert out.valid.all()
    assert not out.terminated.any()
    np.testing.assert_array_equal(out.reward, [0.0, 0.0])
    ends = [envs.step(ACTIONS).terminated.all() for _ in range(6)]
    assert ends == [False] * 5 + [True]


def test_one_that_fails_again_and_again_stops_the_run() -> None:
    envs = make_vector(config_of("raise", {"on_env_error": "restart"}), run_seed=0, num_envs=1)
    envs.reset()
    for _ in range(2 * serial.MAX_RESTARTS):
        envs.step(ACTIONS[:1])
    envs.step(ACTIONS[:1])
    with pytest.raises(EnvironmentFault) as fault:
        envs.step(ACTIONS[:1])
    said = str(fault.value)
    assert "the wheels came off" in said
    assert said.endswith("fix the environment; 5 restarts in 300 s are the limit")
    assert isinstance(fault.value.__cause__, ValueError)


# Native vectors.


def native(fault: str, mode: AutoresetMode, **settings: Any) -> NativeVector:
    config = config_of(fault, settings)
    vector: Any = SyncVectorEnv(
        [lambda: FaultyEnv("", length=3), lambda: FaultyEnv(fault, length=3)], autoreset_mode=mode
    )
    return NativeVector(vector, config, run_seed=0)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "(native vector of 2) raised ValueError: the wheels came off in step at "),
        ("nan", "(index 1) returned a wrong value from step: 'obs' holds NaN"),
        ("inf_reward", "(index 1) returned a wrong value from step: the reward is inf"),
        ("no_mask", "has no action mask 'mask'"),
    ],
)
def test_native_faults(mode: AutoresetMode, fault: str, message: str) -> None:
    settings = {"action_mask_key": "mask"} if "mask" in fault else {}
    assert message in str(fault_of(native(fault, mode, **settings)))


class WrongVector(gym.vector.VectorEnv[Any, Any, Any]):
    """Returns one thing of the wrong shape, or leaves it out."""

    def __init__(self, wrong: str) -> None:
        self._wrong = wrong
        self.num_envs = 2
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = gym.spaces.Box(-1, 1, (2,))
        self.single_action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        obs = np.zeros((2, 3 if self._wrong == "obs" else 2), np.float32)
        reward = np.zeros(3 if self._wrong == "reward" else 2)
        terminated = np.full(2, self._wrong == "final")
        return obs, reward, terminated, np.zeros(2, bool), {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("obs", "'obs' should have shape (2, 2), its shape is (2, 3)"),
        ("reward", "reward should have shape (2,), its shape is (3,)"),
        ("final", "same-step autoreset without infos['final_obs']"),
    ],
)
def test_wrong_vector_classes(wrong: str, message: str) -> None:
    envs = NativeVector(WrongVector(wrong), config_of(""), run_seed=0)
    assert message in str(fault_of(envs))


# Worker processes.


def workers(fault: str, settings: dict[str, Any] | None = None, **kwargs: Any) -> ProcessVector:
    chosen = {"backend": "process"} | (settings or {})
    envs = make_vector(config_of(fault, chosen, **kwargs), run_seed=0)
    assert isinstance(envs, ProcessVector)
    return envs


def pids(envs: ProcessVector) -> list[int]:
    return [worker.process.pid for worker in envs._workers]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is dead, though its parent has not collected it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", f"environment {FAULTY} (index 0) raised ValueError: the wheels came off in step"),
        ("nan", f"environment {FAULTY} (index 0) returned a wrong value from step"),
        ("kill", "worker 0 (pid "),
        ("exit", "exited with code 7 in step"),
    ],
)
def test_faults_of_workers_reach_the_user_and_stop_the_others(fault: str, message: str) -> None:
    envs = workers(fault)
    processes = pids(envs)
    assert len(processes) == 2
    error = fault_of(envs)
    assert message in str(error)
    if fault == "kill":
        assert f"environments 0 to 0) of {FAULTY} was killed by SIGKILL in step" in str(error)
    if fault == "raise":
        assert isinstance(error.__cause__, WorkerTracebackError)
        assert "the wheels" in str(error.__cause__)
    assert not any(is_alive(pid) for pid in processes)


@pytest.mark.slow
def test_workers_that_fail_together_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever is second finds nobody to tell."""
    for _ in range(4):
        envs = workers("raise")
        assert "the wheels came off" in str(fault_of(envs))
    assert capfd.readouterr().err == ""


def test_a_worker_killed_from_outside() -> None:
    envs = workers("")
    envs.reset()
    processes = pids(envs)
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match=rf"worker 1 \(pid {processes[1]}.*SIGKILL"):
        drive(envs, 2)
    assert not any(is_alive(pid) for pid in processes)


@pytest.mark.slow
def test_a_worker_that_hangs_names_the_environment() -> None:
    error = fault_of(workers("hang", {"step_timeout_secs": 0.3}))
    assert "(index 0) did not return from step within 0.3 s" in str(error)


def test_a_worker_that_cannot_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.envs.process.GRACE_SECS", 0.2)
    monkeypatch.setattr("rookery.envs.process._CLOSE_SECS", 0.2)
    envs = workers("", {"step_timeout_secs": 0.2})
    envs.reset()
    processes = pids(envs)
    os.kill(processes[0], signal.SIGSTOP)
    with pytest.raises(EnvironmentFault, match=r"worker 0 .*did not return from step within 0.6 s"):
        envs.step(ACTIONS)
    assert not any(is_alive(pid) for pid in processes)


def test_a_restart_happens_within_the_worker() -> None:
    envs = workers("raise", {"on_env_error": "restart"})
    envs.reset()
    envs.step(ACTIONS)
    out = envs.step(ACTIONS)
    assert out.truncated.all()
    envs.close()


def test_closed_workers_are_gone() -> None:
    envs = workers("")
    processes = pids(envs)
    assert all(is_alive(pid) for pid in processes)
    envs.close()
    assert not any(is_alive(pid) for pid in processes)
    with pytest.raises(RuntimeError, match="are closed"):
        envs.step(ACTIONS)


def test_forgotten_workers_are_gone() -> None:
    envs = workers("")
    processes = pids(envs)
    del envs
    assert not any(is_alive(pid) for pid in processes)


def test_workers_die_with_a_killed_parent() -> None:
    code = (
        "import time\n"
        "from rookery.envs.make import EnvConfig, make_vector\n"
        "envs = make_vector(EnvConfig(id='tests.toy_envs:FaultyEnv', backend='process',\n"
        "                             kwargs={'fault': 'hang'}), run_seed=0, num_envs=2)\n"
        "envs.reset()\n"
        "print(*[worker.process.pid for worker in envs._workers], flush=True)\n"
        "import numpy as np\n"
        "envs.step(np.zeros(2, np.int64)); envs.step(np.zeros(2, np.int64))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    processes = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(processes) == 2
    time.sleep(0.3)  # the workers now hang in step, where they cannot see the socket close
    assert all(is_alive(pid) for pid in processes)
    parent.kill()
    parent.wait()
    give_up = time.monotonic() + 5
    while any(is_alive(pid) for pid in processes) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not any(is_alive(pid) for pid in processes)
