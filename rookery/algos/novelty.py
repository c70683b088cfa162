"""Settings of the intrinsic reward."""

from __future__ import annotations

from dataclasses import dataclass

from rookery.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class NoveltyConfig:
    """What counts as new; the numbers are those of NGU."""

    episodic: bool = True
    """Reward what is unlike the rest of the episode."""
    life_long: bool = True
    """Reward more what is new to the whole run (random network distillation)."""
    embedding_features: int = 32
    """Size of the controllable-state embedding."""
    distilled_features: int = 128
    """Size of the random features."""
    capacity: int = 30_000
    """Embeddings of one episode that are kept for each environment; then the oldest go."""
    num_neighbours: int = 10
    """Neighbours in that memory that a new embedding is compared with."""
    kernel_eps: float = 1e-4
    """How fast likeness falls with distance."""
    cluster_distance: float = 0.008
    """Squared distances up to this, as a share of their mean, count as 0."""
    pseudo_count: float = 1e-3
    """Added to the likeness, so that the bonus is bounded."""
    max_similarity: float = 8.0
    """Beyond this likeness there is no bonus."""
    limit: float = 5.0
    """The most that life-long novelty multiplies the bonus by."""
    train_steps: int = 5
    """Steps of each sequence of a batch that these networks learn from."""
    lr_scale: float = 1.0
    """Their learning rate, as a multiple of the optimizer's."""

    def __post_init__(self) -> None:
        whole = ("embedding_features", "distilled_features", "capacity", "num_neighbours")
        for name in (*whole, "train_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"novelty.{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("kernel_eps", "pseudo_count", "max_similarity", "lr_scale"):
            if not getattr(self, name) > 0:
                raise UserError(f"novelty.{name}: must be positive, got {getattr(self, name):g}")
        if self.cluster_distance < 0:
            raise UserError(
                f"novelty.cluster_distance: must not be negative, got {self.cluster_distance:g}"
            )
        if self.limit < 1:
            raise UserError(
                f"novelty.limit: must be at least 1, got {self.limit:g}; to switch life-long "
                "novelty off, set novelty.life_long to false"
            )
        if self.num_neighbours > self.capacity:
            raise UserError(
                f"novelty.num_neighbours: {self.num_neighbours} is more than novelty.capacity, "
                f"{self.capacity}; raise capacity"
            )
