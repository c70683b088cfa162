"""Never Give Up's rewards and families, one environment and one neighbour at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rookery.core.spec import Array


def life_long_factor(error: Array, mean: float, deviation: float, limit: float = 5.0) -> Array:
    """``min(max(alpha, 1), L)``."""
    return np.array([min(max(1 + (e - mean) / deviation, 1.0), limit) for e in error])


def intrinsic_rewards(
    episodic: Array, error: Array, mean: float, deviation: float, limit: float = 5.0
) -> Array:
    """``r_t = r_episodic min(max(alpha_t, 1), L)``."""
    factors = life_long_factor(error, mean, deviation, limit)
    return np.array([r * factor for r, factor in zip(episodic, factors, strict=True)])


def update_moments(seen: list[float], values: Array, mask: Array) -> tuple[float, float, float]:
    """Count, mean and sum of squared deviations of everything in one list."""
    everything = [*seen, *values[mask]]
    if not everything:
        return 0.0, 0.0, 0.0
    mean = sum(everything) / len(everything)
    return len(everything), mean, sum((value - mean) ** 2 for value in everything)


def episodic_bonus(
    embedding: Array,
    memory: Array,
    filled: Array,
    distances: list[list[float]],
    num_neighbours: int = 10,
    kernel_eps: float = 1e-4,
    cluster_distance: float = 0.008,
    pseudo_count: float = 1e-3,
    max_similarity: float = 8.0,
) -> Array:
    """Algorithm 1; ``distances`` has all squared distances so far, and gets those of this step."""
    out = np.zeros(len(embedding))
    for b, point in enumerate(embedding):
        places = [memory[b, m] for m in range(memory.shape[1]) if filled[b, m]]
        nearest = sorted(float(((point - place) ** 2).sum()) for place in places)[:num_neighbours]
        distances[b] += nearest
        if not nearest:
            continue
        mean = sum(distances[b]) / len(distances[b])
        kernel = 0.0
        for squared in nearest:
            normal = squared / mean if mean > 0 else 0.0
            normal = max(normal - cluster_distance, 0.0)
            kernel += kernel_eps / (normal + kernel_eps)
        similarity = math.sqrt(kernel) + pseudo_count
        out[b] = 0.0 if similarity > max_similarity else 1.0 / similarity
    return out


def _sigmoid(x: Any) -> float:
    return float(1 / (1 + math.exp(-x)))


def _h(z: float, eps: float) -> float:
    return math.copysign(math.sqrt(abs(z) + 1) - 1, z) + eps * z


def _h_inverse(x: float, eps: float) -> float:
    root = (math.sqrt(1 + 4 * eps * (abs(x) + 1 + eps)) - 1) / (2 * eps)
    return math.copysign(root**2 - 1, x)


def mixed_q_values(extrinsic: Array, intrinsic: Array, beta: float, eps: float = 1e-3) -> Array:
    """``h(h^-1(Q_e) + beta h^-1(Q_i))``."""
    return np.array(
        [
            _h(_h_inverse(e, eps) + beta * _h_inverse(i, eps), eps)
            for e, i in zip(extrinsic, intrinsic, strict=True)
        ]
    )


def family_betas(num_policies: int, beta_max: float = 0.3) -> Array:
    """0, a sigmoid, and the largest."""
    betas = []
    for i in range(num_policies):
        if i == 0:
            betas.append(0.0)
        elif i == num_policies - 1:
            betas.append(beta_max)
        else:
            middle = num_policies - 2
            betas.append(beta_max * _sigmoid(10 * (2 * i - middle) / middle))
    return np.array(betas)


def ngu_gammas(num_policies: int, gamma_max: float = 0.997, gamma_min: float = 0.99) -> Array:
    """``1 - exp(((N-1-i) log(1-gamma_max) + i log(1-gamma_min)) / (N-1))``."""
    last = num_policies - 1
    return np.array(
        [
            1
            - math.exp(((last - i) * math.log(1 - gamma_max) + i * math.log(1 - gamma_min)) / last)
            for i in range(num_policies)
        ]
    )


def agent57_gammas(
    num_policies: int = 32, first: float = 0.9999, middle: float = 0.997, last: float = 0.99
) -> Array:
    """The four cases of the appendix, falling."""
    gammas = []
    for j in range(num_policies):
        if j == 0:
            gammas.append(first)
        elif j <= 6:
            gammas.append(first - (first - middle) * _sigmoid(10 * (2 * j - 6) / 6))
        elif j == 7:
            gammas.append(middle)
        else:
            steps, done = num_policies - 9, j - 8
            log = (steps - done) * math.log(1 - middle) + done * math.log(1 - last)
            gammas.append(1 - math.exp(log / steps))
    return np.array(gammas)
