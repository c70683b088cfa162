"""A native vector whose environments step in threads of their own, in two halves."""

from __future__ import annotations

from rookery.core.spec import Array, Arrays
from rookery.envs.native import NativeVector
from rookery.envs.spaces import env_actions
from rookery.envs.timeout import TimeUp
from rookery.envs.transition import StepResult


class BackgroundVector(NativeVector):
    """Adapts a VectorEnv with ``send`` and ``recv`` to
    :class:`rookery.envs.transition.BackgroundVectorEnv`."""

    _stepping = False

    def begin_step(self, actions: Array) -> None:
        """Let every environment begin its step with ``actions`` ``[B, ...]``."""
        self._require_stepping(False)
        try:
            self._env.send(env_actions(self._action_space, actions))  # type: ignore[attr-defined]
        except Exception as error:
            raise self._fault("step", error) from error
        self._stepping = True

    def finish_step(self) -> StepResult:
        """Wait for the step that :meth:`begin_step` began."""
        self._require_stepping(True)
        try:
            with self._deadline:
                stepped = self._env.recv()  # type: ignore[attr-defined]
        except (Exception, TimeUp) as error:
            raise self._fault("step", error) from error
        self._stepping = False
        return self._result(*stepped)

    def step(self, actions: Array) -> StepResult:
        """Both halves."""
        self.begin_step(actions)
        return self.finish_step()

    def reset(self) -> Arrays:
        """Begin an episode in every environment; not while a step runs."""
        self._require_stepping(False)
        return super().reset()

    def begin(self, row: int) -> Arrays:
        """Begin the next episode of ``row``; not while a step runs."""
        self._require_stepping(False)
        return super().begin(row)

    def _require_stepping(self, expected: bool) -> None:
        """Results of two steps would be mixed up, or waited for in vain."""
        if self._stepping != expected:
            raise RuntimeError(
                "finish_step comes after begin_step" if expected else "a step runs: finish_step"
            )
