"""What a loader that waits for storage would gain from faster storage, and which speeds of mounts others see."""

from __future__ import annotations

import pytest

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.resource_profile import BY_FILES, BY_LOADER, DataLoading, Measurement, ResourceProfile
from slurmwrap.profiling.merge_profiles import merge
from slurmwrap.profiling.storage_model import (
    apply_mount_speed,
    compute_batch_s,
    compute_staged_factor,
    compute_storage_mib_per_s,
    compute_stream_mib_per_s,
    describe_staging,
    summarize_mounts,
)

# Two workers need 200 ms for a batch of 10 MiB, of which they wait 180 ms; the device needs 20 ms for it.
SLOW = DataLoading(
    workers=2,
    fetch_s=0.2,
    cpu_s=0.02,
    stall_s=0.18,
    compute_s=0.02,
    wait_s=0.08,
    batch_mib=10.0,
    batches=100,
    mount="/scratch",
)


def make_profile(key: str, loading: DataLoading = SLOW) -> ResourceProfile:
    return ResourceProfile(key=key, loading=loading, dataset_mib=1000.0)


def test_a_step_takes_the_longer_of_loader_and_device_and_both_without_workers() -> None:
    assert compute_batch_s(SLOW, SLOW.stall_s) == pytest.approx(0.1)
    assert compute_batch_s(SLOW, 0.0) == pytest.approx(0.02)
    assert compute_batch_s(replace(SLOW, workers=0), SLOW.stall_s) == pytest.approx(0.22)
    # One CPU cannot do the CPU work of 4 workers at once; stalls need none.
    many = replace(SLOW, workers=4, fetch_s=0.28, cpu_s=0.1)
    assert compute_batch_s(many, 0.0, cpus=1) == pytest.approx(0.1)
    assert compute_batch_s(many, 0.0, cpus=4) == pytest.approx(0.025)


def test_data_on_fast_storage_saves_the_stalls_but_not_the_copying() -> None:
    assert compute_staged_factor(SLOW) == pytest.approx(5.0)
    # 10 MiB at 100 MiB/s are 100 ms: 120 ms for two workers.
    assert compute_staged_factor(SLOW, local_mib_per_s=100.0) == pytest.approx(0.1 / 0.06)
    # Storage that is slower than the present one is no reason to expect less.
    assert compute_staged_factor(SLOW, local_mib_per_s=1.0) == 1.0
    assert compute_staged_factor(replace(SLOW, compute_s=0.1)) == 1.0


def test_the_speed_of_storage_is_what_is_read_during_stalls() -> None:
    assert compute_stream_mib_per_s(SLOW) == pytest.approx(10 / 0.18)
    assert compute_storage_mib_per_s(SLOW) == pytest.approx(2 * 10 / 0.18)
    hardly = replace(SLOW, stall_s=0.01)
    assert (compute_stream_mib_per_s(hardly), compute_stream_mib_per_s(replace(SLOW, batch_mib=0.0))) == (None, None)


def test_advice_names_mount_size_factor_and_what_limits_then() -> None:
    text = describe_staging(make_profile("k"))
    assert "90 % waiting, on /scratch" in text
    assert "(1,000 MiB)" in text
    assert "5 times faster:" in text
    local = describe_staging(make_profile("k", replace(SLOW, is_local=True)))
    assert "in memory it would be about 5 times faster" in local
    assert "$TMPDIR" not in local
    decoding = replace(SLOW, fetch_s=0.3)
    assert "its loader's CPUs limit it then" in describe_staging(make_profile("k", decoding))
    assert describe_staging(make_profile("k", replace(SLOW, compute_s=0.09))) == ""
    assert describe_staging(ResourceProfile(key="k")) == ""


def test_a_mount_has_a_speed_for_others_only_by_three_users_of_whom_each_has_one_vote() -> None:
    def make(uid: int, stall_s: float, mount: str = "/scratch") -> ResourceProfile:
        return make_profile(
            f"{uid}:k{stall_s}", replace(SLOW, fetch_s=2 * stall_s, cpu_s=0.0, stall_s=stall_s, mount=mount)
        )

    two = [make(1, 0.1), make(2, 0.2)]
    assert summarize_mounts(two) == {}
    assert summarize_mounts([*two, make(3, 0.4)]) == {"/scratch": 50.0}
    # Many runs of one user move nothing.
    assert summarize_mounts([*two, make(3, 0.4), *(make(3, 10.0 + more) for more in range(50))]) == {"/scratch": 50.0}
    assert summarize_mounts([*two, make(3, 0.4, mount="")]) == {}
    # The same mount point of a local disk is another disk on each node.
    assert summarize_mounts([make_profile(f"{uid}:k", replace(SLOW, is_local=True)) for uid in range(5)]) == {}


def test_the_speed_of_a_mount_counts_only_for_a_job_whose_own_prerun_did_not_stall() -> None:
    cached = replace(SLOW, fetch_s=0.021, stall_s=0.001)
    found = apply_mount_speed(make_profile("k", cached), {"/scratch": 100.0})
    assert found.loading is not None
    assert (found.loading.stall_s, found.loading.fetch_s) == (pytest.approx(0.1), pytest.approx(0.12))
    assert apply_mount_speed(make_profile("k"), {"/scratch": 1.0}) == make_profile("k")
    assert apply_mount_speed(make_profile("k", cached), {"/home": 1.0}) == make_profile("k", cached)


def test_a_profile_keeps_the_newest_loading_and_drops_an_implausible_one() -> None:
    def add(old: ResourceProfile | None, measurement: Measurement, at: float) -> ResourceProfile:
        return merge(old, measurement, key="k", source="prerun", at=at, gpu_type="", gpus_per_node=1, complete=False)

    first = add(None, Measurement(loading=SLOW, dataset_mib=1000.0, dataset_source=BY_LOADER), 1.0)
    assert (first.loading, first.dataset_mib, first.dataset_source) == (SLOW, 1000.0, BY_LOADER)
    later = add(first, Measurement(dataset_mib=5.0, dataset_source=BY_FILES), 2.0)
    assert (later.loading, later.dataset_mib, later.dataset_source) == (SLOW, 5.0, BY_FILES)
    for wrong in (
        replace(SLOW, stall_s=0.3),
        replace(SLOW, batch_mib=float("nan")),
        replace(SLOW, workers=-1),
        replace(SLOW, mount="/a\nb"),
    ):
        assert add(first, Measurement(loading=wrong), 3.0).loading == SLOW
