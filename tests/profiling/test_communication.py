"""Bytes and time of all-reduce, heavy layers, pipeline cuts, links of a site, and the slow-down on more nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.cli.profile.communication_advice import format_advice, make_advice
from slurmwrap.model.resource_profile import ModelLayer, ResourceProfile, RunSpeed
from slurmwrap.profiling.communication import (
    LinkSpeed,
    SiteLinks,
    choose_links,
    compute_allreduce_mib,
    compute_slowdown,
    compute_step_s,
    find_bucket_mib,
    find_heavy_layers,
    find_pipeline_cut,
    list_network_rates,
)

FAST, SLOW = LinkSpeed(mib_per_s=100_000, source="fast"), LinkSpeed(mib_per_s=1000, source="slow")
LINKS = SiteLinks(gpus=FAST, network=SLOW)


def make_layer(name: str, mib: float, forward_s: float | None, kind: str = "Linear") -> ModelLayer:
    return ModelLayer(name=name, mib=mib, largest_mib=mib, forward_s=forward_s, kind=kind)


VGG = (*(make_layer(f"features.{n}", 5.0, 0.01, "Conv2d") for n in range(10)), make_layer("fc1", 400.0, 0.01))
PROFILE = ResourceProfile(key="k", model_mib=450.0, steps_per_s=2.0, preruns=1, layers=VGG)


def test_a_ring_sends_its_bytes_almost_twice() -> None:
    assert [compute_allreduce_mib(100, n) for n in (1, 2, 4)] == [0, 100, 150]


def test_gradients_of_the_last_layer_are_sent_behind_the_backward_pass_and_of_the_first_are_not() -> None:
    heavy, light = make_layer("heavy", 100.0, 0.1), make_layer("light", 1.0, 0.9)
    behind = compute_step_s((light, heavy), 1.0, 2, 1000)
    exposed = compute_step_s((heavy, light), 1.0, 2, 1000)
    assert behind == pytest.approx(1.0, abs=0.01)
    # The embedding is ready at the very end: all of its 0.1 s is waited for.
    assert exposed == pytest.approx(1.1, abs=0.01)


def test_a_larger_bucket_is_advised_only_where_it_helps() -> None:
    many = tuple(make_layer(str(n), 5.0, 0.0001) for n in range(1000))
    assert find_bucket_mib(many, 0.01, 8, 1e6) > 25
    assert find_bucket_mib(VGG, 0.5, 8, 1000) == 25


def test_few_layers_that_hold_the_bytes_are_found_unless_they_also_take_the_time() -> None:
    assert [(one.layer.name, round(one.size_share, 2)) for one in find_heavy_layers(VGG)] == [("fc1", 0.89)]
    assert find_heavy_layers((*VGG[:-1], replace(VGG[-1], forward_s=10.0))) == ()
    assert find_heavy_layers(()) == ()


def test_a_pipeline_is_cut_into_equal_times_at_the_beginning_of_a_block() -> None:
    layers = [make_layer(f"h.{n}.{part}", 1.0, 0.1 if n else 0.3) for n in range(4) for part in ("attn", "mlp")]
    cut = find_pipeline_cut(layers, 2)
    assert cut is not None and cut.firsts == ("h.1",) and cut.balance == pytest.approx(1.0)
    assert find_pipeline_cut(layers, 8) is None
    assert find_pipeline_cut([replace(one, forward_s=None) for one in layers], 2) is None


def make_runs(*rates: tuple[int, float]) -> tuple[RunSpeed, ...]:
    return tuple(RunSpeed(work="w", gpus=8, nodes=nodes, steps_per_s=rate, run_s=1.0) for nodes, rate in rates)


def test_the_network_is_fitted_to_runs_on_one_node_and_on_two_before_the_configuration_counts() -> None:
    traffic = compute_allreduce_mib(450.0, 8)
    near_s = 0.5 + traffic / 100_000
    far_s = 0.5 + traffic / 1000
    known = replace(PROFILE, speeds=make_runs((1, 1 / near_s), (2, 1 / far_s)))
    assert list_network_rates(known, 100_000) == [pytest.approx(1000)]
    gbit = 100_000 / 0.8 / (1e9 / 8 / 2**20)
    assert choose_links(100.0, gbit, "", (known,)).network.mib_per_s == pytest.approx(1000)
    configured = choose_links(100.0, gbit, "", (PROFILE,)).network
    assert configured.source.endswith("placement.network_gbit_s") and not configured.assumed
    assert choose_links(0.0, 0.0, "a100").network.assumed


def test_the_slow_down_is_measured_else_predicted_else_unknown() -> None:
    measured = replace(PROFILE, speeds=make_runs((1, 2.0), (2, 1.0)))
    assert compute_slowdown(measured, 8, 1, None) == (2.0, "by the steps of its earlier runs")
    predicted = compute_slowdown(PROFILE, 8, 1, LINKS)
    # 787 MiB take 0.79 s, of which a third of a second of backward pass hides as much.
    assert predicted is not None and predicted[0] == pytest.approx((0.5 + 0.7875 - 1 / 3) / 0.5)
    assert compute_slowdown(PROFILE, 8, 1, None) is None
    assert compute_slowdown(replace(PROFILE, model_mib=None), 8, 1, LINKS) is None


def test_advice_names_the_layer_to_shard_and_says_so_when_there_is_nothing_to_do() -> None:
    advice = make_advice(PROFILE, LINKS, 8)
    text = format_advice(advice, columns=100)
    assert "fc1 (Linear): 88.9 % of the bytes" in text
    assert any("ColwiseParallel" in todo and "fc1" in todo for todo in advice.todo)
    assert any(todo.startswith("stay on one node") for todo in advice.todo)
    assert all(len(line) <= 100 for line in text.splitlines())
    calm = make_advice(replace(PROFILE, steps_per_s=0.01), SiteLinks(gpus=FAST, network=FAST), 8)
    assert calm.todo == ("nothing: the all-reduce hides behind the backward pass on 1, 2 and 4 nodes",)
