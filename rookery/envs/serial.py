"""B environments stepped one after another in this process.

An ended episode is followed at once by the next (same-step reset), whose seed is a pure function of
run seed, environment index and episode number: the same episodes come whatever the number of
processes, and a stopped run repeats its running episodes exactly by playing their actions again.

Shapes: B environments.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.seeding import seed_of
from rookery.core.spec import ACTION_MASK, Array, Arrays, LeafSpec, LeafSpecs
from rookery.envs import faults
from rookery.envs.episode_log import EpisodeLog, require_header, state_header
from rookery.envs.spaces import (
    LeafError,
    action_leaf,
    carried_leaves,
    concatenate_mask,
    env_action,
    obs_plan,
    split_actions,
)
from rookery.envs.timeout import Deadline, TimeUp
from rookery.envs.transition import StepResult

if TYPE_CHECKING:
    from rookery.envs.make import EnvConfig

_LOG = logging.getLogger(__name__)

MAX_RESTARTS = 5
RESTART_WINDOW_SECS = 300.0
"""More than MAX_RESTARTS failures within this time are no accident: the run stops."""


class SerialVector:
    """Steps the environments that ``make`` builds, one after another."""

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        config: EnvConfig,
        *,
        run_seed: int,
        num_envs: int,
        first_env: int = 0,
        info_keys: tuple[str, ...] = (),
        role: str = "env",
        seed_for: Callable[[int], int] | None = None,
    ) -> None:
        self._make = make
        self._seed_for = seed_for
        self._name = config.id
        self._check = config.check
        self._restarts_allowed = config.on_env_error == "restart"
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._mask_key = config.action_mask_key
        self._info_keys = info_keys
        self._seed_path = (run_seed, role)
        self._first_env = first_env
        self._deadline = Deadline(config.step_timeout_secs)
        self._envs = [make() for _ in range(num_envs)]
        self._require_same_spaces()
        self._action_space = self._envs[0].action_space
        self._plan = obs_plan(self._envs[0].observation_space)
        self.num_envs = num_envs
        self.action_leaf: LeafSpec = action_leaf(self._action_space)
        masked = self._mask_key is not None
        self.obs_leaves: LeafSpecs = carried_leaves(self._plan, self._action_space, masked)
        self._checks = faults.BatchChecks(self.obs_leaves, self.action_leaf)
        self._log = EpisodeLog(num_envs, self.action_leaf.array)
        self._allocate()
        self.lost_episodes = np.zeros(num_envs, np.bool_)
        """Rows whose episode the last :meth:`load_state_dict` could not repeat: they begin anew."""

    def _require_same_spaces(self) -> None:
        first = self._envs[0]
        for index, env in enumerate(self._envs):
            if (env.observation_space, env.action_space) != (
                first.observation_space,
                first.action_space,
            ):
                raise UserError(
                    f"environment {self._name} (index {self._first_env + index}) has other spaces "
                    f"than index {self._first_env}; all environments of a run must have the same"
                )

    def _allocate(self) -> None:
        def empty() -> Arrays:
            return {
                name: np.zeros((self.num_envs, *leaf.shape), leaf.dtype)
                for name, leaf in self.obs_leaves.items()
            }

        # Two sets take turns, so that the observation acted on outlives the step.
        self._obs, self._obs_before, self._final = empty(), empty(), empty()
        self._fast = [
            (leaf, leaf.name, leaf.env_shape, leaf.env_dtype, leaf.copies_plainly)
            for leaf in self._plan
        ]
        self._reward = np.zeros(self.num_envs, np.float64)
        self._terminated = np.zeros(self.num_envs, np.bool_)
        self._truncated = np.zeros(self.num_envs, np.bool_)
        self._valid = np.ones(self.num_envs, np.bool_)
        self._info = {key: np.full(self.num_envs, np.nan) for key in self._info_keys}

    def reset(self) -> Arrays:
        """Begin a new episode in every environment; observations ``[B, ...]``."""
        with self._deadline:
            for row in range(self.num_envs):
                self._begin(row)
        self._verify_obs(self._obs, "reset")
        return self._obs

    def begin(self, row: int) -> Arrays:
        """Leave the running episode of ``row`` and begin its next; all observations."""
        with self._deadline:
            self._begin(row)
        return self._obs

    def step(self, actions: Array) -> StepResult:
        """Step every environment with ``actions`` ``[B, ...]``."""
        self._obs, self._obs_before = self._obs_before, self._obs
        self._log.append(actions)
        for column in self._info.values():
            column.fill(np.nan)
        moves = split_actions(self._action_space, actions)
        any_ended = False
        row = 0
        try:
            with self._deadline:
                for row, move in enumerate(moves):
                    try:
                        any_ended |= self._step_one(row, move)
                    except (Exception, TimeUp) as error:
                        self._recover(row, self._fault(row, "step", error))
                        any_ended = True
        except TimeUp as error:
            raise self._fault(row, "step", error) from error
        if self._check:
            any_ended |= self._verify_step(any_ended)
        return self._result(any_ended)

    def _result(self, any_ended: bool) -> StepResult:
        reset = self._terminated | self._truncated
        return StepResult(
            obs=self._obs,
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            valid=self._valid,
            reset=reset,
            final_obs=self._final if any_ended else None,
            info=self._info,
        )

    def _step_one(self, row: int, move: Any) -> bool:
        """Step environment ``row`` and, if its episode ended, begin the next one."""
        obs, reward, terminated, truncated, info = self._envs[row].step(move)
        self._reward[row] = reward if type(reward) is float else faults.scalar_reward(reward)
        for key, column in self._info.items():
            if key in info:
                column[row] = info[key]
        if terminated or truncated:
            self._terminated[row] = terminated
            self._truncated[row] = not terminated
            self._write(self._final, row, obs, info)
            self._begin(row)
            return True
        self._terminated[row] = self._truncated[row] = False
        self._write(self._obs, row, obs, info)
        return False

    def _begin(self, row: int) -> None:
        """Reset environment ``row`` to the start of its next episode."""
        episode = int(self._log.episode[row]) + 1
        if self._seed_for is not None:
            seed = self._seed_for(row)
        else:
            run_seed, role = self._seed_path
            seed = seed_of(run_seed, role, self._first_env + row, episode)
        self._log.begin(row, episode, seed)
        self._reset_one(row, seed)

    def _reset_one(self, row: int, seed: int) -> None:
        try:
            obs, info = self._envs[row].reset(seed=seed)
            self._write(self._obs, row, obs, info)
        except (Exception, TimeUp) as error:
            raise self._fault(row, "reset", error) from error

    def _write(self, arrays: Arrays, row: int, obs: Any, info: dict[str, Any]) -> None:
        """Copy one observation, and its mask, into row ``row`` of ``arrays``."""
        for leaf, name, shape, dtype, plainly in self._fast:
            value = leaf.pick(obs) if leaf.path else obs
            if (
                plainly
                and type(value) is np.ndarray
                and value.dtype is dtype
                and value.shape == shape
            ):
                arrays[name][row] = value
            else:
                arrays[name][row] = leaf.convert(value)
        if self._mask_key is not None:
            self._write_mask(arrays[ACTION_MASK], row, info)

    def _write_mask(self, masks: Array, row: int, info: dict[str, Any]) -> None:
        if self._mask_key not in info:
            raise LeafError(f"info has no action mask '{self._mask_key}' (env.action_mask_key)")
        mask = concatenate_mask(info[self._mask_key])
        if mask.shape != masks.shape[1:]:
            raise LeafError(
                f"the action mask should have shape {masks.shape[1:]}, its shape is {mask.shape}"
            )
        masks[row] = mask

    # Faults.

    def _which(self, row: int) -> str:
        return f"index {self._first_env + row}"

    def _fault(self, row: int, where: str, error: BaseException) -> EnvironmentFault:
        """``error`` of environment ``row``, told in one line and chained to its cause."""
        if isinstance(error, EnvironmentFault):
            return error
        which = self._which(row)
        if isinstance(error, TimeUp):
            fault = faults.hung(self._name, which, where, self._deadline.secs)
        elif isinstance(error, LeafError):
            fault = faults.wrong(self._name, which, where, str(error), faults.FIX_SPACE)
        else:
            remedy = "fix the environment" if self._restarts_allowed else faults.RESTART
            fault = faults.raised(self._name, which, where, error, remedy)
        fault.__cause__ = error
        return fault

    def _verify_obs(self, obs: Arrays, where: str) -> None:
        if self._check:
            bad = self._checks.bad_obs(obs) or self._checks.bad_mask(obs)
            if bad is not None:
                raise faults.wrong(self._name, self._which(bad[0]), where, bad[1])

    def _verify_step(self, any_ended: bool) -> bool:
        """Check the batch; with restarts allowed, end the episodes that broke the rules."""
        recovered = False
        while (bad := self._first_bad(any_ended)) is not None:
            row, what = bad
            self._recover(row, faults.wrong(self._name, self._which(row), "step", what))
            recovered = True
        return recovered

    def _first_bad(self, any_ended: bool) -> tuple[int, str] | None:
        checks = self._checks
        bad = checks.bad_reward(self._reward) or checks.bad_obs(self._obs)
        if bad is None:
            bad = checks.bad_mask(self._obs)
        if bad is None and any_ended:
            # Rows that did not end now hold an earlier end, which was checked in its turn.
            bad = checks.bad_obs(self._final)
            if bad is not None:
                bad = bad[0], f"in the last observation, {bad[1]}"
        return bad

    def _recover(self, row: int, fault: EnvironmentFault) -> None:
        """Put a new environment in place of the one that failed, or raise ``fault``.

        To the learner the broken episode was truncated at the observation last acted on.
        """
        now = time.monotonic()
        often = (
            len(self._restarts) == MAX_RESTARTS and now - self._restarts[0] < RESTART_WINDOW_SECS
        )
        if not self._restarts_allowed:
            raise fault
        if often:
            spent = f"{MAX_RESTARTS} restarts in {RESTART_WINDOW_SECS:g} s are the limit"
            raise EnvironmentFault(f"{fault}; {spent}") from fault.__cause__
        _LOG.warning("%s; restarted it with a new episode", fault)
        self._restarts.append(now)
        self._deadline.restart()
        self._replace(row)
        self._begin(row)
        for name, array in self._final.items():
            array[row] = self._obs_before[name][row]
        for column in self._info.values():
            column[row] = np.nan
        self._reward[row] = 0.0
        self._terminated[row] = False
        self._truncated[row] = True

    def _replace(self, row: int) -> None:
        try:
            self._envs[row].close()
        except Exception as error:
            _LOG.warning("closing %s failed (%s)", self._name, faults.one_line(error))
        self._envs[row] = self._make()

    # Saving and resuming.

    def state_dict(self) -> tuple[Arrays, dict[str, Any]] | None:
        """Seeds and actions of the running episodes, and the observations they led to."""
        if (self._log.episode < 0).any():
            return None
        arrays = self._log.state()
        arrays |= {f"obs/{name}": array.copy() for name, array in self._obs.items()}
        return arrays, state_header(self.num_envs)

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        """Repeat the saved episodes; returns the observations to act on next."""
        require_header(data, self.num_envs, self._name)
        self.lost_episodes = np.zeros(self.num_envs, np.bool_)
        self._log = EpisodeLog(self.num_envs, self.action_leaf.array)
        for row in range(self.num_envs):
            if not self._repeat(row, arrays):
                self.lost_episodes[row] = True
                with self._deadline:
                    self._begin(row)
        self._verify_obs(self._obs, "reset")
        return self._obs

    def _repeat(self, row: int, arrays: Arrays) -> bool:
        """Play a saved episode again; False, and a warning, where it cannot be repeated."""
        length = int(arrays["length"][row])
        self._log.begin(row, int(arrays["episode"][row]), int(arrays["seed"][row]))
        if length < 0:
            _LOG.warning(
                "environment %s (%s): its episode was too long to keep; resuming with a new one",
                self._name,
                self._which(row),
            )
            return False
        actions = arrays["actions"][row, :length]
        same = self._play(row, actions) and all(
            np.array_equal(array[row], arrays[f"obs/{name}"][row])
            for name, array in self._obs.items()
        )
        if not same:
            _LOG.warning(
                "environment %s (%s) does not repeat an episode from its seed and actions; "
                "resuming with a new episode, so this run differs from one never stopped",
                self._name,
                self._which(row),
            )
            return False
        self._log.restore(row, actions)
        return True

    def _play(self, row: int, actions: Array) -> bool:
        """Reset to the logged seed and take ``actions``; False if the episode ends on the way."""
        with self._deadline:
            self._reset_one(row, int(self._log.seed[row]))
        for action in actions:
            with self._deadline:
                try:
                    obs, _, terminated, truncated, info = self._envs[row].step(
                        env_action(self._action_space, action)
                    )
                    self._write(self._obs, row, obs, info)
                except (Exception, TimeUp) as error:
                    raise self._fault(row, "step", error) from error
            if terminated or truncated:
                return False
        return True

    def close(self) -> None:
        """Close every environment."""
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()
