"""A gymnasium VectorEnv, in any of its autoreset modes, as the one transition format.

NEXT_STEP spends the step after an end on the reset, so that row is not valid. SAME_STEP resets at
once and hands the last observation over in ``infos["final_obs"]``. DISABLED leaves the reset to us.

Nothing is copied that need not be: in NEXT_STEP, what the environment returns is what comes out.

Shapes: B environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.seeding import seed_of
from rookery.core.spec import ACTION_MASK, Array, Arrays, LeafSpec, LeafSpecs
from rookery.envs import faults
from rookery.envs.attributes import restore_attributes, snapshot_attributes, values_of
from rookery.envs.spaces import (
    LeafError,
    action_leaf,
    carried_leaves,
    env_actions,
    obs_plan,
)
from rookery.envs.timeout import Deadline, TimeUp
from rookery.envs.transition import StepResult

if TYPE_CHECKING:
    from rookery.envs.make import EnvConfig

_FORMAT = "native"


class NativeVector:
    """Adapts ``env`` to :class:`rookery.envs.transition.VectorEnv`."""

    def __init__(
        self,
        env: gym.vector.VectorEnv[Any, Any, Any],
        config: EnvConfig,
        *,
        run_seed: int,
        first_env: int = 0,
        info_keys: tuple[str, ...] = (),
        role: str = "env",
        seed_for: Callable[[int], int] | None = None,
    ) -> None:
        self._env = env
        self._made = values_of(env)
        self._seed_for = seed_for
        self._name = config.id
        self._check = config.check
        self._mask_key = config.action_mask_key
        self._info_keys = info_keys
        self._seed = seed_of(run_seed, role, first_env)
        self._deadline = Deadline(config.step_timeout_secs)
        self._action_space = env.single_action_space
        self._plan = obs_plan(env.single_observation_space)
        self._mode = _autoreset_mode(env)
        self._finish: Callable[[Any, StepResult], None] = {
            AutoresetMode.NEXT_STEP: self._finish_next_step,
            AutoresetMode.SAME_STEP: self._finish_same_step,
            AutoresetMode.DISABLED: self._finish_disabled,
        }[self._mode]
        self.num_envs = env.num_envs
        self.lost_episodes = np.zeros(env.num_envs, np.bool_)
        self.action_leaf: LeafSpec = action_leaf(self._action_space)
        masked = self._mask_key is not None
        self.obs_leaves: LeafSpecs = carried_leaves(self._plan, self._action_space, masked)
        self._checks = faults.BatchChecks(self.obs_leaves, self.action_leaf)
        self._direct = self._plan[0] if len(self._plan) == 1 else None
        if self._direct and not (self._direct.copies_plainly and not self._direct.path):
            self._direct = None
        self._batch_shape = (self.num_envs, *self._plan[0].spec.shape)
        self._obs: Arrays = {}
        self._resets_next = np.zeros(self.num_envs, np.bool_)
        self._any_reset_next = False
        self._seeds_rows = bool(getattr(env, "seeds_rows", False))
        self._tells_lost_lives = bool(getattr(env, "tells_lost_lives", False))

    def reset(self) -> Arrays:
        """Begin an episode in every environment; observations ``[B, ...]``."""
        seed: Any = self._seed
        if self._seed_for is not None:
            seed = [self._seed_for(row) for row in range(self.num_envs)]
        raw, infos = self._call("reset", lambda: self._env.reset(seed=seed))
        self._resets_next = np.zeros(self.num_envs, np.bool_)
        self._any_reset_next = False
        self._obs = self._leaves(raw, infos, "reset")
        self._verify_obs(self._obs, "reset")
        return self._obs

    def begin(self, row: int) -> Arrays:
        """Leave the running episode of ``row`` and begin its next, if the environment has
        ``seeds_rows``; all observations."""
        only = np.zeros(self.num_envs, np.bool_)
        only[row] = True
        self._obs = self._begin_rows(self._obs, only)
        return self._obs

    def step(self, actions: Array) -> StepResult:
        """Step every environment with ``actions`` ``[B, ...]``."""
        moves = env_actions(self._action_space, actions)
        try:
            with self._deadline:
                stepped = self._env.step(moves)
        except (Exception, TimeUp) as error:
            raise self._fault("step", error) from error
        return self._result(*stepped)

    def _result(
        self, raw: Any, reward: Any, terminated: Any, truncated: Any, infos: dict[str, Any]
    ) -> StepResult:
        """What the environment returned from a step, as the one format."""
        out = StepResult(
            obs=self._leaves(raw, infos, "step"),
            reward=np.asarray(reward, np.float64),
            terminated=np.asarray(terminated, np.bool_),
            truncated=np.asarray(truncated, np.bool_),
            valid=~self._resets_next,
            reset=self._resets_next,
        )
        if not out.reward.shape == out.terminated.shape == out.truncated.shape == out.valid.shape:
            self._require_shapes(out)
        self._finish(infos, out)
        if self._info_keys:
            out.info = self._info(infos, out)
        if self._tells_lost_lives and np.count_nonzero(infos["life_lost"]):
            _end_lives(out, infos["life_lost"])
        self._obs = out.obs
        if self._check:
            self._verify_step(out)
        return out

    def close(self) -> None:
        """Release what the environment holds."""
        self._env.close()

    def state_dict(self) -> tuple[Arrays, dict[str, Any]] | None:
        """The environment's own state, if it can be taken out of it."""
        taken = self._take_state()
        if taken is None or not self._obs:
            return None
        env_arrays, env_data = taken
        arrays = {f"env/{name}": array for name, array in env_arrays.items()}
        arrays |= {f"obs/{name}": array.copy() for name, array in self._obs.items()}
        arrays["resets_next"] = self._resets_next.copy()
        header = {"format": _FORMAT, "num_envs": self.num_envs, "vector": self._kind}
        return arrays, header | {"env": env_data}

    @property
    def _kind(self) -> str:
        """Whose state it is; the same environment may have several vectors."""
        kind = type(self._env.unwrapped)
        return f"{kind.__module__}.{kind.__qualname__}"

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        """Continue from a saved state; returns the observations to act on next."""
        if data.get("format") != _FORMAT or data.get("num_envs") != self.num_envs:
            raise UserError(
                f"the saved state of {self._name} is of {data.get('num_envs')} environments of the "
                f"backend format '{data.get('format')}', not {self.num_envs} of '{_FORMAT}'; "
                "resume with the env.backend and env.num_envs of the saved run"
            )
        if data.get("vector", self._kind) != self._kind:
            raise UserError(
                f"the saved state of {self._name} is of {data['vector']}, and {self._kind} steps "
                "it now"
            )
        own = {name[4:]: array for name, array in arrays.items() if name.startswith("env/")}
        self._env.reset(seed=self._seed)
        if hasattr(self._env, "set_state"):
            self._env.set_state({name: array.copy() for name, array in own.items()})
        else:
            restore_attributes(self._env, own, data["env"], self._made)
        self._obs = {n[4:]: array.copy() for n, array in arrays.items() if n.startswith("obs/")}
        self._resets_next = arrays["resets_next"].astype(np.bool_)
        self._any_reset_next = bool(self._resets_next.any())
        return self._obs

    def _take_state(self) -> tuple[Arrays, dict[str, Any]] | None:
        if hasattr(self._env, "get_state"):
            state = self._env.get_state()
            return {name: np.array(array) for name, array in state.items()}, {}
        return snapshot_attributes(self._env, self._made)

    # The three autoreset modes: each completes ``out`` for the rows that ended.

    def _finish_next_step(self, infos: dict[str, Any], out: StepResult) -> None:
        ended = out.terminated | out.truncated
        if self._any_reset_next:
            out.reward = out.reward * out.valid
            if np.count_nonzero(ended & self._resets_next):
                out.terminated = out.terminated & out.valid
                out.truncated = out.truncated & out.valid
                ended = ended & out.valid
        self._resets_next = ended
        self._any_reset_next = bool(np.count_nonzero(ended))
        if self._any_reset_next:
            out.truncated = out.truncated > out.terminated
            out.final_obs = out.obs

    def _finish_same_step(self, infos: dict[str, Any], out: StepResult) -> None:
        out.reset = out.terminated | out.truncated
        if np.count_nonzero(out.reset):
            out.truncated = out.truncated > out.terminated
            out.final_obs = self._final_leaves(infos, np.flatnonzero(out.reset))

    def _finish_disabled(self, infos: dict[str, Any], out: StepResult) -> None:
        out.reset = out.terminated | out.truncated
        if not np.count_nonzero(out.reset):
            return
        out.truncated = out.truncated > out.terminated
        # The environment may write the reset into the arrays it returned.
        out.final_obs = {name: array.copy() for name, array in out.obs.items()}
        out.obs = self._begin_rows(out.final_obs, out.reset)

    def _begin_rows(self, obs: Arrays, rows: Array) -> Arrays:
        """Begin an episode in ``rows`` ``[B]``; ``obs`` with their first observations."""
        begins = np.flatnonzero(rows)
        seed: Any = None
        if self._seeds_rows and self._seed_for is not None:
            seed = [self._seed_for(int(row)) for row in begins]
        raw, infos = self._call(
            "reset", lambda: self._env.reset(seed=seed, options={"reset_mask": rows.copy()})
        )
        begun = self._leaves(raw, infos, "reset", rows=begins)
        after = {name: array.copy() for name, array in obs.items()}
        for name, array in after.items():
            array[rows] = begun[name][rows]
        return after

    # Observations, masks and infos.

    def _leaves(
        self, raw: Any, infos: dict[str, Any], where: str, rows: Array | None = None
    ) -> Arrays:
        """Batched observations (and masks, needed in ``rows``) as leaves ``[B, ...]``."""
        direct = self._direct
        if (
            direct is not None
            and isinstance(raw, np.ndarray)
            and raw.dtype is direct.spec.dtype
            and raw.shape == self._batch_shape
            and min(raw.strides, default=0) >= 0  # torch takes no others
        ):
            leaves: Arrays = {direct.name: raw}
        else:
            leaves = self._convert(raw, where)
        if self._mask_key is not None:
            leaves[ACTION_MASK] = self._masks(infos, where, rows)
        return leaves

    def _convert(self, raw: Any, where: str) -> Arrays:
        try:
            return {
                leaf.name: leaf.convert(leaf.pick(raw), (self.num_envs,)) for leaf in self._plan
            }
        except LeafError as error:
            raise faults.wrong(
                self._name, self._which, where, str(error), faults.FIX_SPACE
            ) from error

    def _final_leaves(self, infos: dict[str, Any], rows: Array) -> Arrays:
        """The last observations of the episodes that ended in ``rows``, from a SAME_STEP end."""
        final = infos.get("final_obs")
        if final is None:
            raise faults.wrong(
                self._name, self._which, "step", "same-step autoreset without infos['final_obs']"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            leaves = self._stack_rows(final, rows)
        else:
            leaves = self._convert(final, "step")
        if self._mask_key is not None:
            leaves[ACTION_MASK] = self._masks(infos.get("final_info", {}), "step", rows)
        return leaves

    def _stack_rows(self, final: Array, rows: Array) -> Arrays:
        """Leaves ``[B, ...]`` of one observation a row, zeros where no episode ended."""
        leaves: Arrays = {}
        for leaf in self._plan:
            leaves[leaf.name] = np.zeros((self.num_envs, *leaf.spec.shape), leaf.spec.dtype)
            for row in rows:
                try:
                    leaves[leaf.name][row] = leaf.convert(leaf.pick(final[row]))
                except LeafError as error:
                    raise faults.wrong(
                        self._name,
                        f"index {row}",
                        "step",
                        f"in final_obs, {error}",
                        faults.FIX_SPACE,
                    ) from error
        return leaves

    def _masks(self, infos: dict[str, Any], where: str, rows: Array | None) -> Array:
        """Action masks ``[B, n]``, demanded in ``rows`` (None: in all)."""
        spec = self.obs_leaves[ACTION_MASK]
        shape = (self.num_envs, *spec.shape)
        value, given = infos.get(str(self._mask_key)), infos.get(f"_{self._mask_key}")
        needed = slice(None) if rows is None else rows
        if value is None or (given is not None and not np.all(given[needed])):
            raise faults.wrong(
                self._name,
                self._which,
                where,
                f"info has no action mask '{self._mask_key}' for every environment "
                "(env.action_mask_key; env.backend=serial may have it)",
            )
        masks = np.asarray(value)
        if masks.shape != shape:
            raise faults.wrong(
                self._name,
                self._which,
                where,
                f"the action masks should have shape {shape}, their shape is {masks.shape}",
            )
        return masks.astype(spec.dtype, copy=False)

    def _info(self, infos: dict[str, Any], out: StepResult) -> Arrays:
        """The asked-for info values; those of an ended episode are of its last step."""
        picked = {key: np.full(self.num_envs, np.nan) for key in self._info_keys}
        final = infos.get("final_info")
        for key, column in picked.items():
            _copy_info(infos, key, out.valid, column)
            if self._mode is AutoresetMode.SAME_STEP:
                # There, infos of an ended row are already of the next episode's reset.
                column[out.reset] = np.nan
                _copy_info(final or {}, key, out.reset, column)
        return picked

    # What may go wrong.

    @property
    def _which(self) -> str:
        return f"native vector of {self.num_envs}"

    def _call(self, where: str, function: Callable[[], tuple[Any, dict[str, Any]]]) -> Any:
        try:
            with self._deadline:
                return function()
        except (Exception, TimeUp) as error:
            raise self._fault(where, error) from error

    def _fault(self, where: str, error: BaseException) -> EnvironmentFault:
        if isinstance(error, TimeUp):
            return faults.hung(self._name, self._which, where, self._deadline.secs)
        return faults.raised(self._name, self._which, where, error, "fix the environment")

    def _verify_obs(self, obs: Arrays, where: str) -> None:
        if not self._check:
            return
        bad = self._checks.bad_obs(obs) or self._checks.bad_mask(obs)
        if bad is not None:
            raise faults.wrong(self._name, f"index {bad[0]}", where, bad[1])

    def _require_shapes(self, out: StepResult) -> None:
        expected = (self.num_envs,)
        for what in ("reward", "terminated", "truncated"):
            shape = getattr(out, what).shape
            if shape != expected:
                problem = f"{what} should have shape {expected}, its shape is {shape}"
                raise faults.wrong(self._name, self._which, "step", problem)

    def _verify_step(self, out: StepResult) -> None:
        bad = self._checks.bad_reward(out.reward) or self._checks.bad_obs(out.obs)
        if bad is None and self._mask_key is not None:
            bad = self._checks.bad_mask(out.obs, over=self._resets_next)
        if bad is None and out.final_obs is not None and out.final_obs is not out.obs:
            bad = self._checks.bad_obs(out.final_obs)
        if bad is not None:
            raise faults.wrong(self._name, f"index {bad[0]}", "step", bad[1])


def _autoreset_mode(env: gym.vector.VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """The mode ``env`` declares, NEXT_STEP (gymnasium's default) if it does not say."""
    mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)


def _end_lives(out: StepResult, lost: Array) -> None:
    """End episodes for the learner where a life was ``lost`` ``[B]``, though the games go on."""
    out.whole_ended = out.terminated | out.truncated
    out.terminated = out.terminated | lost
    out.reset = out.reset | lost
    if out.final_obs is None:
        out.final_obs = out.obs
    elif out.final_obs is not out.obs:
        for name, array in out.final_obs.items():
            array[lost] = out.obs[name][lost]


def _copy_info(infos: Mapping[str, Any], key: str, rows: Array, column: Array) -> None:
    """Copy ``infos[key]`` into ``column`` ``[B]`` in those of ``rows`` that have it."""
    values = infos.get(key)
    if values is None:
        return
    given = infos.get(f"_{key}")
    have = rows if given is None else rows & np.asarray(given, np.bool_)
    if np.count_nonzero(have):
        column[have] = np.asarray(values)[have].astype(np.float64)
