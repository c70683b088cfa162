"""What a run asks of a Ray cluster, in bundles of resources; nothing of Ray is imported here.

::

    asked = asked_of(config, at_head=0, node_cpus=[4.0, 4.0])
    asked.gang()                        # what has to be there before anything starts
    in_words(together(asked.gang()))    # "9 CPU and 1 GPU"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rookery.runs.config import RunConfig

Bundle = dict[str, float]


@dataclass(frozen=True, slots=True)
class HostAsked:
    """One host."""

    num_actors: int
    bundle: Bundle


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run asks for."""

    head: Bundle
    hosts: tuple[HostAsked, ...]
    num_needed: int
    """The first so many hosts have to be there for it to begin; the others come and go."""

    def gang(self) -> list[Bundle]:
        """Bundles that are placed together: the head's, and of each host that is needed."""
        return [self.head, *(host.bundle for host in self.hosts[: self.num_needed])]

    def all(self) -> list[Bundle]:
        """Those, and of the hosts that may come later."""
        return [self.head, *(host.bundle for host in self.hosts)]


def asked_of(config: RunConfig, *, at_head: int, node_cpus: Sequence[float]) -> Asked:
    """What the run of ``config`` asks for, on nodes with so many CPUs each; without any, of a
    machine that has as many as are asked for."""
    settings, acting = config.ray, config.formation_config.num_actors
    cpus = settings.head_cpus if settings.head_cpus is not None else max(at_head, 1)
    head = _bundle(cpus, settings.head_gpus, settings.head_resources)
    places = acting - at_head
    each = settings.host_actors or config.formation_config.host_actors
    each = min(each or _fitting(node_cpus, float(cpus)) or places, places)
    sizes = [each] * (places // each) + [places % each] * bool(places % each) if places else []
    hosts = tuple(HostAsked(size, _host_bundle(config, size)) for size in sizes)
    least = acting if settings.min_actors is None else settings.min_actors
    needed = next((num for num in range(len(sizes)) if at_head + sum(sizes[:num]) >= least), None)
    return Asked(head, hosts, len(sizes) if needed is None else needed)


def _host_bundle(config: RunConfig, num_actors: int) -> Bundle:
    settings = config.ray
    cpus = num_actors if settings.host_cpus is None else settings.host_cpus
    return _bundle(cpus, settings.host_gpus, settings.host_resources)


def _fitting(node_cpus: Sequence[float], head_cpus: float) -> int:
    """Actors for which every node has CPUs, one node beside the head; 0: nothing is known."""
    there = [cpus for cpus in node_cpus if cpus >= 1]
    if not there:
        return 0
    return max(int(min(there) - (head_cpus if len(there) == 1 else 0)), 1)


def _bundle(cpus: float, gpus: float, custom: Mapping[str, float]) -> Bundle:
    amounts = {"CPU": float(cpus), "GPU": gpus, **custom}
    # Ray refuses bundles of nothing.
    return {name: amount for name, amount in amounts.items() if amount} or {"CPU": 0.001}


def together(bundles: Iterable[Mapping[str, float]]) -> Bundle:
    """All of them added up."""
    total: Bundle = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def in_words(resources: Mapping[str, float], names: Iterable[str] | None = None) -> str:
    """``9 CPU and 1 GPU``; of ``names`` also those of which there is nothing."""
    shown = [f"{resources.get(name, 0.0):g} {name}" for name in (names or resources)]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]])) or "nothing"


def shortage(
    asked: Sequence[Bundle], there: Mapping[str, float], free: Mapping[str, float]
) -> str | None:
    """What is asked and what is there, in one line; None where there is enough, by the sum."""
    total = together(asked)
    if all(free.get(name, 0.0) >= amount for name, amount in total.items()):
        return None
    return (
        f"asked are {in_words(total)}; the cluster has {in_words(there, total)}, of which "
        f"{in_words(free, total)} are free"
    )
