"""Predict what data-parallel training loses to communication: bytes per step, time per step, slow-down on more nodes.
Pure.

A ring all-reduce sends 2 (n-1)/n times the bytes of the gradients from each of n processes (Patarasuk and Yuan, JPDC
2009). bench/allreduce.py compares that with what real processes send. The parameters of a model are spread unevenly
over its layers, and the largest layers often take little of the time (RALP, arXiv 1901.05803).

DistributedDataParallel sends the gradients in buckets while the backward pass goes on. So a layer at the end of the
model is sent behind the rest of the backward pass, and the first layer only after it. `compute_step_s` follows the
buckets through the measured layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import median

from slurmwrap.fast_dataclasses import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.resource_profile import ModelLayer, ResourceProfile, RunSpeed

# Gbit/s of one direction -> MiB/s of an all-reduce. NCCL reaches 80 to 90 % of a link.
_EFFICIENCY = 0.8
_MIB_PER_GBIT = 1e9 / 8 / (1 << 20)
# What is assumed of a site that has set nothing. GPU link: NVLink of one GPU, or PCIe 3.0 x16, by the GPU's type.
NETWORK_GBIT_S = 100.0
_NVLINK_GBIT_S = {"v100": 1200.0, "a100": 2400.0, "h100": 3600.0, "h200": 3600.0, "gh200": 3600.0, "b200": 7200.0}
_PCIE_GBIT_S = 100.0
# DistributedDataParallel's first bucket, its other buckets, and what one all-reduce takes besides its bytes.
FIRST_BUCKET_MIB, BUCKET_MIB = 1.0, 25.0
BUCKET_S = 5e-5
# The backward pass takes about twice as long as the forward pass.
_BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """How fast an all-reduce moves data over one kind of link, and where that figure comes from."""

    mib_per_s: float
    source: str
    assumed: bool = False  # neither measured nor configured


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLinks:
    """The links of a site: between the GPUs of a node, and from one node to the others."""

    gpus: LinkSpeed
    network: LinkSpeed

    def between(self, nodes: int) -> LinkSpeed:
        """Return the slowest link of a ring over so many nodes."""
        return self.network if nodes > 1 else self.gpus


def choose_links(
    network_gbit_s: float,
    gpu_gbit_s: float,
    gpu_type: str,
    profiles: Iterable[ResourceProfile] = (),
    *,
    named: tuple[str, str] = ("placement.network_gbit_s", "placement.gpu_link_gbit_s"),
) -> SiteLinks:
    """Return the links by runs of `profiles` on few and on more nodes, else by configuration, else by assumption.

    `network_gbit_s`, `gpu_gbit_s`: as configured; 0: not set. `named`: where they are set.
    """
    if gpu_gbit_s:
        gpus = _make_link(gpu_gbit_s, named[1])
    else:
        kind = gpu_type.lower()
        found = next((rate for name, rate in _NVLINK_GBIT_S.items() if name in kind), None)
        what = "PCIe 3.0" if found is None else f"NVLink of {gpu_type}"
        gpus = _make_link(found or _PCIE_GBIT_S, f"assumed for {what}; set placement.gpu_link_gbit_s", assumed=True)
    fitted = [rate for profile in profiles for rate in list_network_rates(profile, gpus.mib_per_s)]
    if fitted:
        text = f"fitted to {len(fitted)} pair{'s' * (len(fitted) > 1)} of runs on fewer and more nodes"
        return SiteLinks(gpus=gpus, network=LinkSpeed(mib_per_s=median(fitted), source=text))
    if network_gbit_s:
        return SiteLinks(gpus=gpus, network=_make_link(network_gbit_s, named[0]))
    text = "assumed; set placement.network_gbit_s"
    return SiteLinks(gpus=gpus, network=_make_link(NETWORK_GBIT_S, text, assumed=True))


def _make_link(gbit_s: float, source: str, *, assumed: bool = False) -> LinkSpeed:
    text = f"{gbit_s:,.0f} Gbit/s at {100 * _EFFICIENCY:.0f} %, {source}"
    return LinkSpeed(mib_per_s=gbit_s * _EFFICIENCY * _MIB_PER_GBIT, source=text, assumed=assumed)


def compute_allreduce_mib(mib: float, ranks: int) -> float:
    """Return what each of `ranks` processes sends to sum up gradients of `mib` MiB."""
    return 2 * (ranks - 1) / ranks * mib if ranks > 1 else 0.0


def list_network_rates(profile: ResourceProfile, near_mib_per_s: float) -> list[float]:
    """Return the speed of the network in MiB/s by each pair of runs of the same work on one node and on several."""
    if not profile.model_mib:
        return []
    found = []
    for near, far in list_near_far(profile.speeds):
        traffic = compute_allreduce_mib(profile.model_mib, far.gpus)
        lost_s = 1 / far.steps_per_s - 1 / near.steps_per_s if far.steps_per_s and near.steps_per_s else 0.0
        if near.nodes == 1 and traffic and lost_s > 0:
            found.append(traffic / (lost_s + traffic / near_mib_per_s))
    return found


def list_near_far(speeds: Sequence[RunSpeed]) -> list[tuple[RunSpeed, RunSpeed]]:
    """Return pairs of the same work on as many GPUs, first on fewer nodes and then on more, both with counted steps."""
    counted = sorted((one for one in speeds if one.steps_per_s), key=lambda one: one.nodes)
    return [
        (near, far)
        for at, near in enumerate(counted)
        for far in counted[at + 1 :]
        if (near.work, near.gpus) == (far.work, far.gpus) and near.nodes < far.nodes
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForecast:
    """One step on `gpus` GPUs of `nodes` nodes."""

    gpus: int
    nodes: int
    traffic_mib: float  # what each process sends
    allreduce_s: float
    compute_s: float
    step_s: float | None  # with the all-reduce behind the backward pass; None: the times of the layers are unknown

    @property
    def share(self) -> float:
        """Return the all-reduce's share of a step in which it does not overlap with anything."""
        return self.allreduce_s / (self.allreduce_s + self.compute_s)

    @property
    def exposed_share(self) -> float | None:
        """Return the share of the step in which the GPU only waits for the all-reduce; None: unknown."""
        return None if self.step_s is None else 1 - self.compute_s / self.step_s


def forecast_step(
    layers: Sequence[ModelLayer], model_mib: float, compute_s: float, gpus: int, nodes: int, links: SiteLinks
) -> StepForecast:
    """Return a step of a model of `model_mib` MiB, of which one GPU computes `compute_s` seconds."""
    traffic = compute_allreduce_mib(model_mib, gpus)
    rate = links.between(nodes).mib_per_s
    return StepForecast(
        gpus=gpus,
        nodes=nodes,
        traffic_mib=traffic,
        allreduce_s=traffic / rate,
        compute_s=compute_s,
        step_s=compute_step_s(layers, compute_s, gpus, rate) if has_times(layers) else None,
    )


def has_times(layers: Sequence[ModelLayer]) -> bool:
    """Return whether the layers' forward times were measured."""
    return any(one.forward_s for one in layers)


def compute_step_s(
    layers: Sequence[ModelLayer],
    compute_s: float,
    ranks: int,
    mib_per_s: float,
    bucket_mib: float = BUCKET_MIB,
) -> float:
    """Return the seconds of a step whose gradients are sent in buckets during the backward pass.

    Buckets are filled from the last layer to the first and sent one after the other.
    """
    forward = sum(one.forward_s or 0.0 for one in layers)
    now, sent_at = (1 - _BACKWARD_SHARE) * compute_s, 0.0
    held, room = 0.0, FIRST_BUCKET_MIB
    for one in reversed(layers):
        now += _BACKWARD_SHARE * compute_s * ((one.forward_s or 0.0) / forward if forward else 1 / len(layers))
        held += one.mib
        if held >= room:
            sent_at = max(now, sent_at) + _send_s(held, ranks, mib_per_s)
            held, room = 0.0, bucket_mib
    if held:
        sent_at = max(now, sent_at) + _send_s(held, ranks, mib_per_s)
    return max(compute_s, sent_at)


def _send_s(mib: float, ranks: int, mib_per_s: float) -> float:
    return compute_allreduce_mib(mib, ranks) / mib_per_s + (BUCKET_S if ranks > 1 else 0.0)


def compute_slowdown(
    profile: ResourceProfile, gpus: int, nodes: int, links: SiteLinks | None
) -> tuple[float, str] | None:
    """Return how many times as long a step takes on one node more than `nodes`, and the basis of that; None: unknown.

    Counted steps of earlier runs come first. Without them, the model's size, the speed of the pre-run and `links` tell
    it; the share that hides behind the backward pass is then that of a model whose layers are all alike. `links` None:
    the site's links are unknown.
    """
    pairs = [
        (near, near.steps_per_s / far.steps_per_s)
        for near, far in list_near_far(profile.speeds)
        if near.nodes == nodes and near.steps_per_s and far.steps_per_s
    ]
    # With as many GPUs, else with other numbers of them.
    if measured := [ratio for near, ratio in pairs if near.gpus == gpus] or [ratio for _, ratio in pairs]:
        return max(1.0, median(measured)), "by the steps of its earlier runs"
    compute_s = find_compute_s(profile)
    if links is None or not profile.model_mib or not compute_s or gpus < 2:
        return None
    traffic = compute_allreduce_mib(profile.model_mib, gpus)
    near, far = (
        _compute_even_step_s(compute_s, traffic / links.between(count).mib_per_s) for count in (nodes, nodes + 1)
    )
    return max(1.0, far / near), f"by {traffic:,.0f} MiB per step and {links.network.source}"


def _compute_even_step_s(compute_s: float, allreduce_s: float) -> float:
    """Return the step of a model with equal layers: all but the last bucket may be sent during the backward pass."""
    return compute_s + max(allreduce_s - _BACKWARD_SHARE * compute_s, 0.0)


def find_compute_s(profile: ResourceProfile) -> float | None:
    """Return the seconds of a step on one GPU without communication; None: unknown."""
    alone = [1 / one.steps_per_s for one in profile.speeds if one.gpus == 1 and one.steps_per_s]
    if alone:
        return median(alone)
    # Complete runs on several GPUs replaced the speed of the pre-run; it includes their communication.
    return 1 / profile.steps_per_s if profile.steps_per_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyLayer:
    """A layer with a large part of the parameters."""

    layer: ModelLayer
    size_share: float
    time_share: float | None  # None: not measured


def find_heavy_layers(layers: Sequence[ModelLayer], least_share: float = 0.1, most: int = 5) -> tuple[HeavyLayer, ...]:
    """Return the layers that hold at least `least_share` of the parameters and take less of the time, largest first."""
    total = sum(one.mib for one in layers)
    forward = sum(one.forward_s or 0.0 for one in layers)
    found = [
        HeavyLayer(
            layer=one,
            size_share=one.mib / total,
            time_share=(one.forward_s or 0.0) / forward if forward else None,
        )
        for one in layers
        if total and one.mib >= least_share * total
    ]
    light = [one for one in found if one.time_share is None or one.time_share < one.size_share]
    return tuple(sorted(light, key=lambda one: -one.size_share)[:most])


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCut:
    """Layers cut into stages of about the same time. `firsts`: first layer of each stage but the first."""

    stages: int
    firsts: tuple[str, ...]
    balance: float  # time of the slowest stage over the mean; 1: all take the same time


def find_pipeline_cut(layers: Sequence[ModelLayer], stages: int) -> PipelineCut | None:
    """Return the cut with the least time of the slowest stage; None without times, or with fewer layers than stages."""
    layers = _merge_blocks(layers)
    times = [one.forward_s or 0.0 for one in layers]
    total = sum(times)
    if len(layers) < stages or stages < 2 or total <= 0:
        return None
    sums = [0.0]
    for time in times:
        sums.append(sums[-1] + time)
    # best[k][i]: least time of the slowest of k stages that hold the first i layers, and where the last of them begins.
    best = [[(0.0 if i == 0 else inf, 0) for i in range(len(sums))]]
    for _ in range(stages):
        before = best[-1]
        best.append(
            [
                min(((max(before[j][0], sums[i] - sums[j]), j) for j in range(i)), default=(inf, 0))
                for i in range(len(sums))
            ]
        )
    begins, at = list[int](), len(layers)
    for count in range(stages, 1, -1):
        at = best[count][at][1]
        begins.append(at)
    return PipelineCut(
        stages=stages,
        firsts=tuple(layers[begin].name for begin in reversed(begins)),
        balance=best[stages][len(layers)][0] / (total / stages),
    )


def _merge_blocks(layers: Sequence[ModelLayer]) -> list[ModelLayer]:
    """Return the layers with neighbours of one numbered block, such as "encoder.layer.3", as one: a cut inside of it
    would need its code to change.
    """
    found: list[ModelLayer] = []
    for one in layers:
        parts = one.name.split(".")
        numbers = [at for at, part in enumerate(parts) if part.isdecimal()]
        name = ".".join(parts[: numbers[0] + 1]) if numbers else one.name
        if found and found[-1].name == name:
            last = found.pop()
            one = replace(one, mib=last.mib + one.mib, forward_s=(last.forward_s or 0.0) + (one.forward_s or 0.0))
        found.append(replace(one, name=name))
    return found


def find_bucket_mib(layers: Sequence[ModelLayer], compute_s: float, ranks: int, mib_per_s: float) -> float:
    """Return the bucket size with the shortest predicted step, in MiB; the default if none is 2 % faster."""
    usual = compute_step_s(layers, compute_s, ranks, mib_per_s)
    times = {size: compute_step_s(layers, compute_s, ranks, mib_per_s, size) for size in (5.0, 10.0, 50.0, 100.0)}
    best = min(times, key=lambda size: times[size])
    return best if times[best] < 0.98 * usual else BUCKET_MIB
