"""A copy of the policy that follows the published weights."""

from __future__ import annotations

from rookery.core.ports import ParamSource
from rookery.core.spec import Arrays
from rookery.core.tensors import as_tensor
from rookery.nets.policy import Policy
from rookery.params.flat import FlatParams


class PolicyReplica:
    """``policy``, with the newest weights that ``params`` has when :meth:`refresh` is called."""

    def __init__(self, policy: Policy, params: ParamSource) -> None:
        self.policy, self.params = policy, params
        self.flat = FlatParams(policy)
        self._into = self.flat.tensors()
        self.version = -1

    def refresh(self) -> bool:
        """Take over newer weights, if there are any; whether there are weights at all."""
        version = self.params.get(self.version, self._into)
        if version is not None:
            self.version = version
            self.policy.refreshed()
        return self.version >= 0

    def save(self) -> Arrays:
        """The weights it has, which may be older than those that :meth:`refresh` would find."""
        tensors = self.flat.tensors().items()
        return {name: leaf.detach().cpu().numpy().copy() for name, leaf in tensors}

    def load(self, saved: Arrays, version: int) -> None:
        """Go on with what was saved, until there are weights newer than ``version``."""
        device = self.flat.data.device
        self.flat.load({name: as_tensor(array, device) for name, array in saved.items()})
        self.policy.refreshed()
        self.version = version
