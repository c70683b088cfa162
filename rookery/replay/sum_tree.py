"""A tree of sums: choose leaves with odds in proportion to their weights, many at once.

::

    tree = SumTree(1_000_000)
    tree.set(leaves, weights)
    chosen, probability = tree.sample(512, rng)

An inner node is the sum of its two children, added anew after one of them changed. So the sums are
a function of the weights alone and cannot drift, however many updates there were. They are brought
up to date when they are asked for: many small changes cost one pass.

Shapes: K leaves, N chosen or changed.
"""

from __future__ import annotations

import numpy as np

from rookery.core.spec import Array


class SumTree:
    """Weights of ``num_leaves`` leaves, float64, all 0 at first."""

    def __init__(self, num_leaves: int) -> None:
        if num_leaves < 1:
            raise ValueError(f"a sum tree needs at least 1 leaf, got {num_leaves}")
        self.num_leaves = num_leaves
        self._depth = max(num_leaves - 1, 0).bit_length()
        self._first = 1 << self._depth
        # Node 1 is the root, the children of node i are 2i and 2i+1; node 0 is unused.
        self._nodes = np.zeros(2 * self._first)
        self._changed: list[Array] = []  # nodes of leaves whose sums are out of date

    @property
    def total(self) -> float:
        """The sum of all weights."""
        self._refresh()
        return float(self._nodes[1])

    @property
    def weights(self) -> Array:
        """``[K]`` a view of the weights; change them by :meth:`set` only."""
        return self._nodes[self._first : self._first + self.num_leaves]

    @property
    def num_bytes(self) -> int:
        """Bytes of all nodes."""
        return int(self._nodes.nbytes)

    def get(self, leaves: Array) -> Array:
        """``[N]`` weights of ``leaves`` ``[N]``."""
        return self._nodes[self._checked(leaves)]

    def set(self, leaves: Array, weights: Array) -> None:
        """Give ``leaves`` ``[N]`` new ``weights``; of a leaf named twice the last counts."""
        weights = np.asarray(weights, np.float64)
        wrong = ~((weights >= 0.0) & (weights < np.inf))  # NaN is neither
        if np.count_nonzero(wrong):  # the fastest way to ask, here and below
            raise ValueError(
                f"weights must be finite and not negative, got {weights[wrong].flat[0]}"
            )
        if not len(weights):
            return
        node = self._checked(leaves)
        self._nodes[node] = weights
        self._changed.append(node)

    def refill(self, weights: Array) -> None:
        """Replace all weights ``[K]`` and every sum."""
        if len(weights) != self.num_leaves:
            raise ValueError(f"{len(weights)} weights for {self.num_leaves} leaves")
        self._nodes[:] = 0.0
        self._nodes[self._first : self._first + self.num_leaves] = weights
        self._add_up()

    def sample(self, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """``[N]`` leaves and the probability ``[N]`` of each, one from each of N equal parts.

        The parts (https://arxiv.org/abs/1511.05952, section 3.3) spread the choice evenly over the
        weights; a leaf is chosen N times its probability on average, and never if that is 0.
        """
        total, nodes = self.total, self._nodes
        if not total > 0.0:
            raise ValueError("nothing to sample: all weights are 0")
        left_over = (np.arange(num) + rng.random(num)) * (total / num)
        node = np.ones(num, np.int64)
        for _ in range(self._depth):
            left = node << 1
            on_the_left = nodes[left]
            # Rounding may push `left_over` beyond a node's sum; an empty side is never entered.
            right = (left_over >= on_the_left) & (nodes[left | 1] > 0.0)
            left_over -= on_the_left * right
            node = left | right
        return node - self._first, nodes[node] / total

    def _refresh(self) -> None:
        """Bring the sums above all changed leaves up to date."""
        if not self._changed:
            return
        node, nodes = np.concatenate(self._changed), self._nodes
        if len(node) * 4 > self.num_leaves:
            self._add_up()
            return
        self._changed.clear()
        for _ in range(self._depth):
            node = node >> 1
            left = node << 1
            nodes[node] = nodes[left] + nodes[left | 1]

    def _add_up(self) -> None:
        """Bring every sum up to date."""
        self._changed.clear()
        begin = self._first
        while begin > 1:
            level = self._nodes[begin : 2 * begin]
            begin //= 2
            np.add(level[0::2], level[1::2], out=self._nodes[begin : 2 * begin])

    def _checked(self, leaves: Array) -> Array:
        leaves = np.asarray(leaves, np.int64)
        if np.count_nonzero(leaves.view(np.uint64) >= self.num_leaves):  # negative ones are large
            raise IndexError(f"a leaf is not within 0..{self.num_leaves - 1}")
        return leaves + self._first
