"""AMD's GPUs: read from sysfs by real hooks, the sampler and the check of nodes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from amd_tree import write_amd_gpu
from hook_site import OLD_PYTHON, append, epilog_facts, make_site
from waiting import allow

from slurmwrap.diagnosis.build_evidence import join
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.node_facts import format_gpu_lines
from slurmwrap.model.evidence import LogTail, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks import amd_gpus, gpu_use_sampler, node_check
from slurmwrap.node_hooks.hook_settings import HookSettings

# Slurm's index follows the render nodes: card1 is GPU 0.
ADDRESSES = {"0": "0000:c1:00.0", "1": "0000:05:00.0"}
FAULT = "amdgpu {}: amdgpu: GPU reset begin!"


def write_node(sysfs: Path, **changed: Any) -> Path:
    write_amd_gpu(sysfs, 1, "0000:c1:00.0", **changed)
    write_amd_gpu(sysfs, 2, "0000:05:00.0")
    (sysfs / "drm" / "card0" / "device").mkdir(parents=True, exist_ok=True)  # of a BMC
    (sysfs / "drm" / "card0" / "device" / "vendor").write_text("0x1a03\n")
    (sysfs / "drm" / "card1-DP-1").mkdir(exist_ok=True)
    return sysfs


@pytest.fixture
def settings(tmp_path: Path) -> HookSettings:
    (tmp_path / "state").mkdir(mode=0o700)
    keys = dict.fromkeys(("cluster", "spool", "munge", "munge_socket", "kernel_log", "nvidia_proc"), "")
    keys |= {"node_state_dir": str(tmp_path / "state"), "sysfs": str(write_node(tmp_path / "sys"))}
    return HookSettings("n0", {**keys, "nvidia_control": "/nonexistent"})


def read(settings: HookSettings, *gpus: str) -> list[dict[str, Any]]:
    wanted = [(int(index), ADDRESSES[index]) for index in gpus or ADDRESSES]
    facts = amd_gpus.states(settings, wanted, time.monotonic() + allow(5))
    assert not facts.get("gpu_error")
    found: list[dict[str, Any]] = facts["gpu"]
    return found


def test_slurms_index_follows_the_render_nodes(settings: HookSettings) -> None:
    assert amd_gpus.addresses(settings.sysfs) == ADDRESSES
    assert amd_gpus.addresses("/nonexistent") == {}


def test_memory_processes_errors_and_bad_pages_are_read(settings: HookSettings) -> None:
    pages = "0x027f5d43 : 0x00001000 : R\n0x027f5d4b : 0x00001000 : P\n"
    write_node(Path(settings.sysfs), used_mib=900, errors={"umc": 2}, pages=pages, pids={os.getpid(): 600})
    first, second = read(settings)
    process = {"pid": os.getpid(), "mib": 600, "uid": os.geteuid()}
    assert first == {
        "index": 0, "bus_id": "0000:c1:00.0", "vendor": "amd", "processes": [process], "ras": {"umc": 2},
        "memory": {"used_mib": 900, "total_mib": 65536}, "bad_pages": {"retired": 1, "pending": 1, "failed": 0},
    }  # fmt: skip
    assert (second["processes"], second.get("ras")) == ([], None)


def test_errors_are_new_if_the_counter_rose_since_a_hook_read_it(settings: HookSettings) -> None:
    sysfs = Path(settings.sysfs)
    seen = []
    for count in (2, 2, 5, 1):  # the last one after a reset
        write_node(sysfs, errors={"umc": count})
        seen.append(read(settings, "0")[0].get("new_ras"))
    assert seen == [None, None, {"umc": 3}, {"umc": 1}]


def test_a_gpu_that_is_gone_and_one_that_hangs_are_reported(settings: HookSettings) -> None:
    (Path(settings.sysfs) / "drm" / "card1").rename(Path(settings.sysfs) / "gone")
    lost, _ = read(settings)
    assert lost["error"] == "the GPU has no files of the driver any more"
    counter = Path(settings.sysfs) / "devices" / "0000:05:00.0" / "ras" / "gfx_err_count"
    counter.unlink()
    os.mkfifo(counter)
    facts = amd_gpus.states(settings, [(1, ADDRESSES["1"])], time.monotonic() + 0.2)
    assert (facts["gpu"], facts["gpu_error"]) == ([], "the driver did not answer in time")


def test_the_sampler_reads_use_and_memory(settings: HookSettings) -> None:
    write_node(Path(settings.sysfs), use=83, used_mib=900, pids={7: 600})
    found = gpu_use_sampler.ask(settings, [(0, ADDRESSES["0"])], (), 41, "")
    assert found == [{"gpu": 0, "use": 83, "mem_mib": 900, "mem_total_mib": 65536, "processes": 1}]


@pytest.mark.parametrize("python", [Path(sys.executable).resolve(), OLD_PYTHON])
def test_whole_hooks(open_dir: Path, munge_socket: str, python: Path) -> None:
    if os.geteuid() != 0 or not os.access(python, os.X_OK):
        pytest.skip("needs root and Python 3.6")
    site = make_site(open_dir, munge_socket, str(python))
    site.setting("nvidia_control", "/nonexistent")
    sysfs = write_node(site.root / "sysfs-n0")
    site.prolog(SLURM_JOB_GPUS="0")
    site.arrived()
    own, foreign = (FAULT.format(ADDRESSES[index]) for index in "01")
    append(site.kernel_log, own, foreign)
    write_node(sysfs, errors={"gfx": 1})
    facts = epilog_facts(site, SLURM_JOB_GPUS="0")
    assert [line["text"] for line in facts["kernel"]] == [own]
    assert [(gpu["index"], gpu["bus_id"], gpu["ras"]) for gpu in facts["gpu"]] == [(0, ADDRESSES["0"], {"gfx": 1})]
    assert not facts.keys() & {"errors", "gpu_error", "kernel_error"}
    site.end()


def test_new_errors_explain_a_vague_failure_and_name_the_node() -> None:
    gpu = {"index": 0, "bus_id": "0000:c1:00.0", "vendor": "amd", "new_ras": {"umc": 2}, "bad_pages": {"pending": 1}}
    epilog = Observation(
        nonce="", cluster="c", job_id=41, context=Context.EPILOG, at=9.0, node="n3", facts={"gpu": [gpu]}
    )
    assert format_gpu_lines(epilog) == [
        "amdgpu on n3: GPU 0 (0000:c1:00.0) has new uncorrectable errors: umc 2",
        "amdgpu on n3: GPU 0 (0000:c1:00.0) has 1 bad memory pages that are not yet taken out of use",
    ]
    job = JobRecord(job_id=41, state="FAILED", exit_code=1, nodes=("n3",), start_time=0, end_time=9)
    log = LogTail(name="out", text="RuntimeError: HIP error: unspecified launch failure")
    found = diagnose_run(join(RunKey(cluster="c", job_id=41, submit_time=0), job, [epilog], logs=(log,)))
    assert (found.category, found.node, found.conclusive) == ("gpu_ecc_error", "n3", False)


@pytest.mark.parametrize(
    ("wanted", "errors", "state", "text"),
    [
        (2, {}, "ok", "amdgpu has 2 GPUs, as Slurm has"),
        (4, {}, "fail", "amdgpu has 2 GPUs, Slurm has 4"),
        (2, {"umc": 3}, "fail", "GPU 0 (0000:c1:00.0): uncorrectable errors since the driver was loaded: umc 3"),
    ],
)
def test_the_check_of_a_node_counts_the_gpus(
    settings: HookSettings, wanted: int, errors: dict[str, int], state: str, text: str
) -> None:
    write_node(Path(settings.sysfs), errors=errors)
    node = node_check.CheckedNode(settings, node_check.Request({"gpus": wanted}), time.monotonic() + allow(20))
    assert node_check.check_gpus(node) == (state, text)
