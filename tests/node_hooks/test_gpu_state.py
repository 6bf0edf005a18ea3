"""The state of a job's GPUs: the whole Epilog with the real nvidia-ml-py on a stand-in for NVIDIA's library."""

from __future__ import annotations

import fcntl
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hook_site import OLD_PYTHON, Site, add_gpu, append, make_site, only
from waiting import wait_until

from slurmwrap.diagnosis.node_facts import format_gpu_lines

HEALTHY: dict[str, Any] = {
    "recovery_action": "none",
    "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
    "ecc_uncorrected": {"volatile": 0, "aggregate": 0},
    "sram": {"volatile": 0, "aggregate": 0, "threshold_exceeded": False},
    "processes": [],
    "pcie": {"width": 16, "max_width": 16, "replays": 0},
    "clock_reasons": [],
    "persistence": True,
}
GPU_0 = {"index": 0, "bus_id": "0000:05:00.0", **HEALTHY}
GPU_1 = {"index": 1, "bus_id": "0000:06:00.0", **HEALTHY}
FREEZER = Path("/sys/fs/cgroup/freezer")


def with_gpus(site: Site, library: str) -> Site:
    """The job has GPUs 0 and 1 of three."""
    for minor, address in enumerate(("0000:05:00.0", "0000:06:00.0", "0000:07:00.0")):
        add_gpu(site, minor, address)
    site.setting("nvidia_control", "/dev/null")
    site.environ["LD_LIBRARY_PATH"] = library
    return site


@pytest.fixture
def node(site: Site, libnvml: Callable[..., str]) -> Site:
    return with_gpus(site, libnvml())


def query_gpus(site: Site, behaviour: str = "", **changed: str) -> dict[str, Any]:
    """Runs an Epilog and returns its GPU facts. `behaviour`: how the stand-in for NVML behaves."""
    site.epilog(FAKE_NVML=f"{behaviour} log={site.root}/calls", **changed)
    facts = only(site.arrived()).facts
    return {key: facts[key] for key in ("gpu", "gpu_error", "driver_hung", "errors") if key in facts}


def nvml_calls(site: Site) -> list[str]:
    path = site.root / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_only_the_gpus_of_the_job_are_reported(node: Site) -> None:
    assert query_gpus(node) == {"gpu": [GPU_0, GPU_1]}
    assert [line for line in nvml_calls(node) if line.endswith(" 2")] == []


def test_recovery_action_and_remapped_rows_of_every_gpu_are_queried_first(node: Site) -> None:
    query_gpus(node)
    handle, field, rows = "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows"
    first = ["nvmlInitWithFlags -1", f"{handle} 0", f"{handle} 1", f"{field} 0", f"{field} 1", f"{rows} 0", f"{rows} 1"]
    assert nvml_calls(node)[:7] == first


def test_the_gpu_state_is_read_under_python_3_6(open_dir: Path, munge_socket: str, libnvml: Callable[..., str]) -> None:
    if os.geteuid() != 0 or not os.access(OLD_PYTHON, os.X_OK):
        pytest.skip("needs root and Python 3.6")
    site = with_gpus(make_site(open_dir, munge_socket, str(OLD_PYTHON)), libnvml())
    assert query_gpus(site, "sram_aggregate@0=2") == {
        "gpu": [{**GPU_0, "sram": {"volatile": 0, "aggregate": 2, "threshold_exceeded": False}}, GPU_1]
    }


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1, "gpu_reset"),
        (2, "node_reboot"),
        (3, "drain_p2p"),
        (4, "drain_and_reset"),
        (5, "recover_imex_domain"),
        (6, "bus_reset"),
        (7, "system_reboot"),
        (8, "8"),
    ],
)
def test_recovery_actions_are_reported_by_name(node: Site, number: int, name: str) -> None:
    assert query_gpus(node, f"recovery@1={number}") == {"gpu": [GPU_0, {**GPU_1, "recovery_action": name}]}


def test_memory_errors_are_reported(node: Site) -> None:
    behaviour = "ecc_volatile@0=2 ecc_aggregate@0=9 remapped@0=1 remap_pending@0=1 remap_failed@1=1 remapped@1=512 "
    behaviour += "sram_volatile@1=1 sram_aggregate@1=4 sram_exceeded@1=1"
    rows = {"correctable": 0, "uncorrectable": 1, "pending": True, "failed": False}
    assert query_gpus(node, behaviour) == {
        "gpu": [
            {**GPU_0, "ecc_uncorrected": {"volatile": 2, "aggregate": 9}, "remapped_rows": rows},
            {
                **GPU_1,
                "remapped_rows": {"correctable": 0, "uncorrectable": 512, "pending": False, "failed": True},
                "sram": {"volatile": 1, "aggregate": 4, "threshold_exceeded": True},
            },
        ]
    }


def test_missing_functions_of_an_old_driver_are_no_error(site: Site, libnvml: Callable[..., str]) -> None:
    node = with_gpus(site, libnvml("-DOLD_DRIVER"))
    since = {"recovery_action", "remapped_rows", "sram"}
    old = {key: value for key, value in HEALTHY.items() if key not in since}
    old["retired_pages"] = {"single_bit": 3, "double_bit": 1, "pending": True}
    old["clock_reasons"] = ["hw_slowdown", "hw_thermal"]
    old["nvlink"] = {"links": 6, "active": 6, "errors": {}}
    assert query_gpus(node, "retired_single=3 retired_double=1 retired_pending=1 reasons=0x4d links=6") == {
        "gpu": [{"index": 0, "bus_id": "0000:05:00.0", **old}, {"index": 1, "bus_id": "0000:06:00.0", **old}]
    }


def test_values_that_a_gpu_does_not_support_are_left_out(node: Site) -> None:
    functions = ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetPersistenceMode")
    behaviour = " ".join(f"{function}=3" for function in functions) + " nvmlDeviceGetFieldValues=3"
    left = {"ecc_uncorrected", "remapped_rows", "persistence", "recovery_action"}
    assert query_gpus(node, behaviour)["gpu"][0] == {key: value for key, value in GPU_0.items() if key not in left}


def test_a_failing_check_leaves_the_other_checks_intact(node: Site) -> None:
    rest = {key: value for key, value in GPU_0.items() if key != "remapped_rows"}
    assert query_gpus(node, "nvmlDeviceGetRemappedRows@0=999") == {
        "gpu": [{**rest, "errors": {"remapped_rows": "Unknown Error"}}, GPU_1]
    }


def test_a_lost_gpu_is_reported_and_not_queried_again(node: Site) -> None:
    lost = {"index": 0, "bus_id": "0000:05:00.0", "error": "GPU is lost", "error_code": 15}
    assert query_gpus(node, "lost@0=1") == {"gpu": [lost, GPU_1]}
    assert [line for line in nvml_calls(node) if line.endswith(" 0")] == ["nvmlDeviceGetHandleByPciBusId_v2 0"]


def test_a_gpu_lost_between_two_queries_keeps_its_earlier_answers(node: Site) -> None:
    assert query_gpus(node, "nvmlDeviceGetRemappedRows@0=15")["gpu"][0] == {
        "index": 0,
        "bus_id": "0000:05:00.0",
        "recovery_action": "none",
        "error": "GPU is lost",
        "error_code": 15,
    }


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "Driver Not Loaded"), (18, "RM has detected an NVML/RM version mismatch."), (999, "Unknown Error")],
)
def test_a_driver_that_does_not_start_is_reported_with_its_error(node: Site, code: int, words: str) -> None:
    assert query_gpus(node, f"init={code}") == {"gpu": [], "gpu_error": f"NVML: {words}"}


def test_a_missing_nvml_library_is_reported(node: Site) -> None:
    assert query_gpus(node, LD_LIBRARY_PATH="/nonexistent") == {
        "gpu": [],
        "gpu_error": "NVML: NVML Shared Library Not Found",
    }


def test_nvml_is_not_called_on_a_node_without_the_driver(node: Site) -> None:
    node.setting("nvidia_control", "/nonexistent/nvidiactl")
    assert (query_gpus(node), nvml_calls(node)) == ({}, [])


def test_unknown_gpus_of_a_job_are_reported_as_unknown(node: Site) -> None:
    assert query_gpus(node, SLURM_JOB_GPUS="8") == {"gpu_error": "which GPUs the job had is unknown"}
    assert query_gpus(node, SLURM_JOB_GPUS="1,8") == {
        "gpu": [GPU_1],
        "gpu_error": "the PCI address of 1 GPUs is unknown",
    }


def test_processes_that_remain_on_a_gpu_are_reported(node: Site) -> None:
    pid = os.getpid()
    found = {**GPU_0, "processes": [{"pid": pid, "mib": 512, "uid": os.getuid()}]}
    assert query_gpus(node, f"process@0={pid}") == {"gpu": [found, GPU_1]}


def test_throttling_and_a_narrow_pcie_link_are_reported(node: Site) -> None:
    hot = {**GPU_0, "clock_reasons": ["hw_thermal", "hw_power_brake"]}
    narrow = {**GPU_1, "pcie": {"width": 4, "max_width": 16, "replays": 0}, "persistence": False}
    assert query_gpus(node, "reasons@0=0xC4 width@1=4 persistence@1=0") == {"gpu": [hot, narrow]}


def test_counters_report_the_increase_since_the_last_query(node: Site) -> None:
    links = "links@0=18 field38@0=5 field45@0=0 field52@0={} field59@0=1 active@0={} replays@0={}"
    errors = {"crc_flit": 5, "crc_data": 0, "replay": 7, "recovery": 1}
    first = {**GPU_0, "nvlink": {"links": 18, "active": 18, "errors": errors}}
    assert query_gpus(node, links.format(7, 18, 0)) == {"gpu": [first, GPU_1]}
    new = {"links": 18, "active": 17, "was_active": 18, "errors": {**errors, "replay": 9}, "new_errors": {"replay": 2}}
    pcie = {"width": 16, "max_width": 16, "replays": 3, "new_replays": 3}
    assert query_gpus(node, links.format(9, 17, 3)) == {"gpu": [{**GPU_0, "nvlink": new, "pcie": pcie}, GPU_1]}


def test_gpu_accounting_is_reported_for_processes_of_this_job(node: Site) -> None:
    used = {"pid": 701, "max_mib": 30720, "gpu_percent": 87, "memory_percent": 41, "ms": 5000}
    node.prolog()
    node.arrived()
    assert query_gpus(node, "accounting@0=1") == {"gpu": [{**GPU_0, "accounting": [used]}, GPU_1]}


XID_79 = "NVRM: Xid (PCI:0000:07:00): 79, pid=7, name=python, GPU has fallen off the bus."
NOT_ASKED = {"gpu_error": "not asked: the kernel says that a GPU of this node fell off the bus"}


@pytest.mark.parametrize(
    "line",
    [
        XID_79,
        "NVRM: GPU 0000:07:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:20b0) has fallen off the bus and is not responding",
    ],
)
def test_nvml_is_not_called_after_any_gpu_of_the_node_fell_off_the_bus(node: Site, line: str) -> None:
    append(node.kernel_log, "before")
    node.prolog()
    append(node.kernel_log, line)
    node.arrived()
    assert (query_gpus(node), nvml_calls(node)) == (NOT_ASKED, [])
    assert (query_gpus(node, SLURM_JOB_ID="42"), nvml_calls(node)) == (
        NOT_ASKED,
        [],
    )  # the next job's Epilog does not call NVML either


def test_a_program_named_like_a_driver_message_does_not_stop_the_query(node: Site) -> None:
    append(node.kernel_log, "before")
    node.prolog()
    append(node.kernel_log, "NVRM: x[77]: segfault at 0 ip 0 sp 0 error 4 in GPU has fallen off the bus[1+2]")
    node.arrived()
    assert query_gpus(node) == {"gpu": [GPU_0, GPU_1]}


def test_a_hanging_call_is_ended_and_earlier_answers_are_kept(node: Site) -> None:
    found = query_gpus(node, "hang@1=nvmlDeviceGetRemappedRows")
    begun = {"recovery_action": "none"}
    assert found == {
        "gpu": [{**identify(GPU_0), **begun, "remapped_rows": HEALTHY["remapped_rows"]}, {**identify(GPU_1), **begun}],
        "gpu_error": "the driver did not answer in time",
    }
    assert query_gpus(node) == {"gpu": [GPU_0, GPU_1]}  # the process was ended, so the driver does not count as stuck


def identify(gpu: dict[str, Any]) -> dict[str, Any]:
    return {"index": gpu["index"], "bus_id": gpu["bus_id"]}


@pytest.fixture
def frozen() -> Iterator[Path]:
    """A frozen cgroup of version 1: a process that enters it is in D state, and SIGKILL does not end it."""
    group = FREEZER / f"slurmwrap-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").write_text("FROZEN")
    except OSError as error:
        pytest.skip(f"no freezer cgroup of version 1: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the end of what was frozen")
    group.rmdir()


def test_a_driver_stuck_in_the_kernel_is_not_queried_until_it_recovers(node: Site, frozen: Path) -> None:
    before = int(time.time())
    found = query_gpus(node, f"hang=nvmlInitWithFlags freeze={frozen}/cgroup.procs")
    pid, since = found["driver_hung"]["pid"], found["driver_hung"]["since"]
    assert (frozen / "cgroup.procs").read_text() == f"{pid}\n" and before <= since <= time.time()
    hung = {
        "gpu_error": f"driver hung: process {pid} waits in nvmlInit since {since}",
        "driver_hung": {"pid": pid, "since": since, "call": "nvmlInit"},
    }
    assert found == {"gpu": [], **hung}
    (node.root / "calls").unlink()
    assert query_gpus(node, SLURM_JOB_ID="42") == {"gpu_error": hung["gpu_error"], "driver_hung": hung["driver_hung"]}
    assert nvml_calls(node) == []
    (frozen / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (frozen / "cgroup.procs").read_text(), "the end of the process")
    assert query_gpus(node) == {"gpu": [GPU_0, GPU_1]}


def test_only_one_hook_queries_the_driver_at_a_time(node: Site) -> None:
    node.prolog()
    node.arrived()
    with (node.state / "driver.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert query_gpus(node) == {"gpu": [], "gpu_error": "another hook was asking the driver all the time"}
        assert nvml_calls(node) == []
    assert query_gpus(node) == {"gpu": [GPU_0, GPU_1]}


def test_gpu_facts_are_complete_when_the_counters_cannot_be_saved(node: Site) -> None:
    node.prolog()
    node.arrived()
    (node.state / "gpu.counters").mkdir()  # nothing can be renamed to it
    assert query_gpus(node, "links=18")["gpu"][0]["nvlink"] == {"links": 18, "active": 18, "errors": {}}


def test_gpu_facts_become_lines_of_evidence(node: Site) -> None:
    node.epilog(FAKE_NVML="recovery@0=2 remap_failed@1=1 reasons@0=0x40 process@1=1")
    assert format_gpu_lines(only(node.arrived())) == [
        "NVML on n0: GPU 0 (0000:05:00.0) asks for recovery action node_reboot",
        "NVML on n0: GPU 1 (0000:06:00.0) has a failed row remapping",
        "NVML on n0: GPU 0 (0000:05:00.0) is slowed down: hw_thermal",
        "NVML on n0: GPU 1 (0000:06:00.0) still had 1 processes after the job",
    ]


def test_a_stale_or_invalid_stuck_driver_marker_is_ignored_and_removed(node: Site) -> None:
    node.prolog()
    node.arrived()
    for content in ('{"pid": 1, "start": 17, "since": 1, "call": "x"}', "{", '{"pid": "x"}', "[]"):
        (node.state / "driver.stuck").write_text(content)
        assert query_gpus(node)["gpu"] == [GPU_0, GPU_1]
        assert not (node.state / "driver.stuck").exists()


def test_a_zipapp_without_nvidia_ml_py_is_reported(node: Site) -> None:
    old, new = node.files.zipapp, node.root / "new.pyz"
    with zipfile.ZipFile(old) as given, zipfile.ZipFile(new, "w") as made:
        for item in given.infolist():
            if not item.filename.startswith("pynvml"):
                made.writestr(item, given.read(item))
    new.replace(old)
    assert query_gpus(node) == {
        "gpu": [],
        "gpu_error": "NVML: nvidia-ml-py is not in the zipapp: No module named 'pynvml'",
    }
