"""The Nature network as a module of RLlib, imported by its processes."""

from __future__ import annotations

from typing import Any

from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn


class NatureModule(TorchRLModule, ValueFunctionAPI):
    """Convolutions and 512 units, shared by a policy and a value."""

    def setup(self) -> None:
        """Called by RLlib once the spaces are known."""
        super().setup()
        self.torso = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.policy = nn.Linear(512, int(self.action_space.n))
        self.value = nn.Linear(512, 1)

    def _hidden(self, batch: dict[str, Any]) -> Tensor:
        hidden: Tensor = self.torso(batch[Columns.OBS].float() / 255.0)
        return hidden

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(self._hidden(batch))}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        hidden = self._hidden(batch)
        return {
            Columns.ACTION_DIST_INPUTS: self.policy(hidden),
            Columns.EMBEDDINGS: hidden,
        }

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """Values of the observations; what ``_forward_train`` made of them is used again."""
        hidden = self._hidden(batch) if embeddings is None else embeddings
        values: Tensor = self.value(hidden).squeeze(-1)
        return values
