"""What `slurmwrap profile advise` reports about the communication of a model: the advice, and its text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.profiling.communication import (
    BUCKET_MIB,
    HeavyLayer,
    PipelineCut,
    SiteLinks,
    StepForecast,
    find_bucket_mib,
    find_compute_s,
    find_heavy_layers,
    find_pipeline_cut,
    forecast_step,
)
from slurmwrap.profiling.gpu_scaling import ScalingPoint
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.text_format import percent, table, wrapped

NODE_COUNTS = (1, 2, 4)
STAGES = (2, 4)
# Share of a step that the GPU waits for the network from which on something should be done.
_WORTH = 0.05
# Share of the parameters in a few layers from which on these are worth a treatment of their own.
_MUCH = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationAdvice:
    """The predicted communication of a model, and what to do about it. `forecasts`: for NODE_COUNTS nodes."""

    key: str
    model_mib: float
    gpus_per_node: int
    links: SiteLinks
    heavy: tuple[HeavyLayer, ...] = ()
    forecasts: tuple[StepForecast, ...] = ()  # () if the speed on one GPU is unknown
    cuts: tuple[PipelineCut, ...] = ()
    scaling: tuple[ScalingPoint, ...] = ()
    todo: tuple[str, ...] = field(default=())


def make_advice(
    profile: ResourceProfile, links: SiteLinks, gpus_per_node: int, scaling: Sequence[ScalingPoint] = ()
) -> CommunicationAdvice:
    """Return the advice for a profile with a known size of its model. ValueError without one."""
    if not profile.model_mib:
        raise ValueError(f"'{profile.key}' has no size of its model")
    # The optimizer may also have parameters without gradients, which are not sent.
    model_mib = sum(one.mib for one in profile.layers) or profile.model_mib
    compute_s = find_compute_s(profile)
    forecasts = (
        tuple(
            forecast_step(profile.layers, model_mib, compute_s, gpus_per_node * nodes, nodes, links)
            for nodes in NODE_COUNTS
        )
        if compute_s
        else ()
    )
    heavy = find_heavy_layers(profile.layers)
    cuts = tuple(cut for count in STAGES if (cut := find_pipeline_cut(profile.layers, count)) is not None)
    return CommunicationAdvice(
        key=profile.key,
        model_mib=model_mib,
        gpus_per_node=gpus_per_node,
        links=links,
        heavy=heavy,
        forecasts=forecasts,
        cuts=cuts,
        scaling=tuple(scaling),
        todo=tuple(_list_todo(profile, heavy, forecasts, links)),
    )


def _list_todo(
    profile: ResourceProfile, heavy: Sequence[HeavyLayer], forecasts: Sequence[StepForecast], links: SiteLinks
) -> Iterator[str]:
    if not forecasts:
        yield "measure its speed: slurmwrap profile measure SCRIPT"
        return
    one, two, _ = forecasts
    lost = {forecast.nodes: _find_lost_share(forecast) for forecast in forecasts}
    if max(lost.values()) < _WORTH:
        yield "nothing: the all-reduce hides behind the backward pass on 1, 2 and 4 nodes"
        return
    if lost[2] - lost[1] >= _WORTH:
        yield (
            f"stay on one node as long as its GPUs suffice: on two, {percent(lost[2])} of each step waits for the"
            f" network (on one: {percent(lost[1])})"
        )
    if sum(layer.size_share for layer in heavy) >= _MUCH:
        yield from _list_sharding(heavy)
    elif one.gpus > 1:
        yield (
            "no few layers hold the bytes, so no layer is worth sharding for the network. FSDP and ZeRO-3 send half as"
            " much again as an all-reduce: use them for memory only"
        )
    if two.step_s is not None:
        bucket = find_bucket_mib(profile.layers, two.compute_s, two.gpus, links.network.mib_per_s)
        if bucket != BUCKET_MIB:
            yield f"overlap: DistributedDataParallel(model, bucket_cap_mb={bucket:.0f})"
    if lost[2] >= 2 * _WORTH:
        yield (
            "send less: accumulate gradients over several micro-batches in model.no_sync(), or use"
            " bf16 gradients (ddp_comm_hooks.default_hooks.bf16_compress_hook halves the bytes of fp32)"
        )


def _find_lost_share(forecast: StepForecast) -> float:
    """Return the share of the step that waits; without times of the layers, nothing is assumed to overlap."""
    return forecast.share if forecast.exposed_share is None else forecast.exposed_share


def _list_sharding(heavy: Sequence[HeavyLayer]) -> Iterator[str]:
    tables = [one.layer.name for one in heavy if one.layer.kind.startswith("Embedding")]
    linear = [one for one in heavy if one.layer.kind in ("Linear", "LazyLinear", "Conv1D")]
    others = [one.layer.name for one in heavy if one.layer.name not in {*tables, *(one.layer.name for one in linear)}]
    if tables:
        yield (
            f"shard the embedding row-wise over the GPUs, so that only the looked-up rows are sent: {_join(tables)}"
            " (torchrec, or torch.distributed.tensor.parallel.RowwiseParallel)"
        )
    if linear:
        yield (
            f"split the large linear layers over the GPUs of a node: {_join(one.layer.name for one in linear)}"
            " (torch.distributed.tensor.parallel.ColwiseParallel), so that their gradients are not sent"
        )
    if others:
        kinds = sorted({one.layer.kind for one in heavy if one.layer.name in others and one.layer.kind})
        policy = f": ModuleWrapPolicy({{{', '.join(kinds)}}})" if kinds else ""
        yield f"shard these within each node (FSDP with HYBRID_SHARD{policy}): {_join(others)}"


def _join(names: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(names)


def format_advice(advice: CommunicationAdvice, *, columns: int, paint: Paint = plain) -> str:
    """Return the page of `profile advise`, at most `columns` wide."""
    lines = [paint(advice.key, "bold")]

    def add(text: str, indent: str = "  ") -> None:
        lines.append(
            wrapped(text, indent=indent, hanging=" " * (len(indent) + 2 * (not indent.endswith("- "))), columns=columns)
        )

    add(f"model: {_format_mib(advice.model_mib)} of gradients in each step")
    for one in advice.heavy:
        took = "time not measured" if one.time_share is None else f"{percent(one.time_share)} of the forward pass"
        kind = f" ({one.layer.kind})" if one.layer.kind else ""
        add(f"{one.layer.name}{kind}: {percent(one.size_share)} of the bytes, {took}", "    ")
    if not advice.heavy:
        add("no layer holds more than a tenth of the bytes at less than its share of the time", "    ")
    add(f"GPU link: {advice.links.gpus.source}")
    add(f"network: {advice.links.network.source}")
    if advice.forecasts:
        lines += ["", paint("One step, by the all-reduce of DistributedDataParallel", "bold")]
        head = (">nodes", ">GPUs", ">sent per GPU", ">all-reduce", ">if it did not overlap", ">waits")
        lines.append(table(head, [_list_cells(one) for one in advice.forecasts], columns=columns))
    for cut in advice.cuts:
        add(
            f"pipeline of {cut.stages} stages: cut before {', '.join(cut.firsts)} (the slowest takes"
            f" {cut.balance:.2f} times the mean)"
        )
    lines += ["", paint("What to do", "bold")]
    for todo in advice.todo:
        add(todo, "  - ")
    return "\n".join(lines)


def _list_cells(one: StepForecast) -> tuple[str, ...]:
    waits = "?" if one.exposed_share is None else percent(one.exposed_share)
    return (
        str(one.nodes),
        str(one.gpus),
        _format_mib(one.traffic_mib),
        f"{1000 * one.allreduce_s:,.1f} ms",
        percent(one.share),
        waits,
    )


def _format_mib(mib: float) -> str:
    return f"{mib / 1024:,.1f} GiB" if mib >= 10240 else f"{mib:,.0f} MiB" if mib >= 10 else f"{mib:.2g} MiB"
