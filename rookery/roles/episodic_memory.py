"""What each environment saw in its running episode, as embeddings.

Shapes: B environments, M places in the memory of each, D features, K environments of these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rookery.algos.novelty import NoveltyConfig
from rookery.core.spec import Array, Arrays
from rookery.ops.intrinsic import EpisodicDistance, episodic_bonus


class EpisodicMemory:
    """A bounded memory for each environment.

    ::

        memory.clear(rows)                 # where an episode begins
        memory.add(embedding[rows], rows)  # its first observation
        bonus = memory.judge(embedding)    # of the next ones, which are then added
    """

    def __init__(self, config: NoveltyConfig, num_envs: int, device: torch.device) -> None:
        self.config = config
        size = (num_envs, config.capacity, config.embedding_features)
        self.places = torch.zeros(size, device=device)
        self.count = torch.zeros(num_envs, dtype=torch.int64, device=device)
        """``[B]`` embeddings of the running episode so far, those included that had to go."""
        zeros = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.distance = EpisodicDistance(zeros, zeros.clone())
        """Outlasts episodes: it is what distances are compared with."""

    def clear(self, rows: Tensor) -> None:
        """Forget the episodes of ``rows`` ``[K]``."""
        self.count[rows] = 0

    def add(self, embedding: Tensor, rows: Tensor) -> None:
        """Keep ``embedding`` ``[K, D]`` of ``rows`` ``[K]``, in the place of the oldest if full."""
        self.places[rows, self.count[rows] % self.config.capacity] = embedding
        self.count[rows] += 1

    def judge(self, embedding: Tensor, rows: Tensor) -> Tensor:
        """``[K]`` the bonus of ``embedding`` ``[K, D]``, which is kept afterwards."""
        config, count = self.config, self.count[rows]
        reach = min(int(count.max()), config.capacity) if len(rows) else 0
        filled = torch.arange(max(reach, 1), device=count.device) < count[:, None]
        known = EpisodicDistance(*(part[rows] for part in self.distance))
        bonus, known = episodic_bonus(
            embedding,
            self.places[rows, : max(reach, 1)],
            filled,
            known,
            num_neighbours=config.num_neighbours,
            kernel_eps=config.kernel_eps,
            cluster_distance=config.cluster_distance,
            pseudo_count=config.pseudo_count,
            max_similarity=config.max_similarity,
        )
        for mine, new in zip(self.distance, known, strict=True):
            mine[rows] = new
        self.add(embedding, rows)
        return bonus

    def save(self) -> Arrays:
        """Arrays that :meth:`load` goes on from; places that hold nothing are left out."""
        reach = min(int(self.count.max()), self.config.capacity)
        kept = {"places": self.places[:, :reach], "count": self.count}
        return {
            name: leaf.cpu().numpy().copy() for name, leaf in kept.items()
        } | self.carried_over()

    def load(self, arrays: Arrays) -> None:
        """Go on from :meth:`save`."""
        places: Array = arrays["places"]
        self.places[:, : places.shape[1]] = torch.from_numpy(places)
        self.count.copy_(torch.from_numpy(arrays["count"]))
        self.take_over(arrays)

    def carried_over(self) -> Arrays:
        """What outlasts episodes."""
        kept = {"distance_mean": self.distance.mean, "distance_num": self.distance.num}
        return {name: leaf.cpu().numpy().copy() for name, leaf in kept.items()}

    def take_over(self, arrays: Arrays) -> None:
        """Go on from :meth:`carried_over`, in new episodes."""
        self.distance.mean.copy_(torch.from_numpy(arrays["distance_mean"]))
        self.distance.num.copy_(torch.from_numpy(arrays["distance_num"]))
