"""The Prolog gate as slurmd runs it: the whole hook. Its exit code 1 drains the node and holds the job."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gate_site import XID_79, XID_95, Gate, enable_gate
from hook_site import OLD_PYTHON, USER, append, make_site

REFUSED = {"refused": True, "cause": "gpu_lost", "text": "GPU 0 is lost", "gpu": ""}


def test_a_published_fault_refuses_the_node_only_with_a_valid_permit(gate: Gate) -> None:
    gate.fault()
    gate.permit()
    assert gate.prolog(True) == {**REFUSED, "source": "published"}
    assert not (gate.site.state / "41.mark").exists()  # the job does not run, so there is nothing to mark or sample
    assert gate.prolog(True, SLURM_JOB_ID="40") == {**REFUSED, "source": "published"}
    assert not (gate.site.state / "40.mark").exists()  # a mark left by a run without an Epilog
    gate.permit(allowed=False)
    assert gate.prolog(False) == {
        **REFUSED,
        "refused": False,
        "source": "published",
        "why_not": "the cap on nodes is used up",
    }
    assert (gate.site.state / "41.mark").exists()


def test_the_gate_works_under_python_3_6(open_dir: Path, munge_socket: str, libnvml: Callable[..., str]) -> None:
    if os.geteuid() != 0 or not os.access(OLD_PYTHON, os.X_OK):
        pytest.skip("needs root and Python 3.6")
    gate = enable_gate(make_site(open_dir, munge_socket, str(OLD_PYTHON)), libnvml())
    gate.permit()
    append(gate.site.kernel_log, XID_95)
    assert gate.prolog(True, FAKE_NVML="recovery@0=1")["cause"] == "recovery_action"
    gate.fault()
    assert gate.prolog(True) == {**REFUSED, "source": "published"}
    gate.site.end()


def test_a_fault_that_root_wrote_on_the_node_refuses_the_node(gate: Gate) -> None:
    gate.permit()
    (gate.published / "faults.json").unlink(missing_ok=True)
    fault = {"node": "n0", "cause": "site check", "since": time.time() - 5, "text": "InfiniBand is down"}
    (gate.site.state / "faults.json").write_text(json.dumps({"version": 1, "at": 0, "faults": [fault]}))
    assert gate.prolog(True) == {
        "refused": True,
        "cause": "site check",
        "text": "InfiniBand is down",
        "source": "node",
        "gpu": "",
    }


def test_a_gate_that_is_off_reads_nothing(gate: Gate) -> None:
    gate.fault()
    gate.permit()
    gate.site.edit(gate.site.files.prolog, "gate=on", "gate=off")
    assert gate.prolog(False) == {}


def stale_permit(gate: Gate) -> None:
    gate.permit(until=time.time() - 1)


def permit_valid_too_long(gate: Gate) -> None:
    gate.permit(until=time.time() + 10**9)


def permit_without_a_number(gate: Gate) -> None:
    gate.permit(until="later")


def permit_of_another_version(gate: Gate) -> None:
    gate.permit(version=2)


def missing_permit(gate: Gate) -> None:
    pass


def truncated_permit(gate: Gate) -> None:
    path = gate.permit()
    path.write_text(path.read_text()[:-3])


def permit_of_a_user(gate: Gate) -> None:
    os.chown(gate.permit(), USER, USER)


def world_writable_permit(gate: Gate) -> None:
    gate.permit().chmod(0o666)


def permit_in_an_open_directory(gate: Gate) -> None:
    gate.permit()
    gate.published.chmod(0o777)


def permit_is_a_link(gate: Gate) -> None:
    path = gate.permit()
    path.rename(gate.site.root / "elsewhere")
    path.symlink_to(gate.site.root / "elsewhere")


def permit_is_a_fifo(gate: Gate) -> None:
    os.mkfifo(gate.published / "gate-permit.json")


@pytest.mark.parametrize(
    "fault",
    [
        stale_permit,
        permit_valid_too_long,
        permit_without_a_number,
        permit_of_another_version,
        missing_permit,
        truncated_permit,
        permit_of_a_user,
        world_writable_permit,
        permit_in_an_open_directory,
        permit_is_a_link,
        permit_is_a_fifo,
    ],
)
def test_without_a_trustworthy_permit_the_job_starts(gate: Gate, fault: Callable[[Gate], None]) -> None:
    fault(gate)
    local = {"node": "n0", "cause": "x", "since": time.time() - 5}
    (gate.site.state / "faults.json").write_text(json.dumps({"version": 1, "faults": [local]}))
    found = gate.prolog(False)
    assert found["why_not"] in ("no permit", "the permit is stale")


def fault_of_another_node(gate: Gate) -> None:
    gate.fault(node="n1")


def fault_before_the_boot(gate: Gate) -> None:
    gate.fault(since=time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - 60)


def fault_in_the_future(gate: Gate) -> None:
    gate.fault(since=time.time() + 86400)


def fault_of_another_gpu(gate: Gate) -> None:
    gate.fault(gpu="0000:07:00.0")


def fault_file_of_a_user(gate: Gate) -> None:
    os.chown(gate.fault(), USER, USER)


def faults_not_a_list(gate: Gate) -> None:
    gate.write("faults.json", {"version": 1, "faults": {"node": "n0"}})


def malformed_faults(gate: Gate) -> None:
    gate.write("faults.json", {"version": 1, "faults": [None, 1, "n0", {"node": "n0"}, {"node": "n0", "cause": 1}]})


@pytest.mark.parametrize(
    "fault",
    [
        fault_of_another_node,
        fault_before_the_boot,
        fault_in_the_future,
        fault_of_another_gpu,
        fault_file_of_a_user,
        faults_not_a_list,
        malformed_faults,
    ],
)
def test_a_fault_that_is_not_this_jobs_or_not_certain_is_ignored(gate: Gate, fault: Callable[[Gate], None]) -> None:
    gate.permit()
    fault(gate)
    assert gate.prolog(False) == {}


def test_a_fault_from_before_the_boot_counts_if_the_driver_confirms_it(gate: Gate) -> None:
    gate.permit()
    fault_before_the_boot(gate)
    found = gate.prolog(True, FAKE_NVML="remap_failed@1=1")
    assert found == {
        "refused": True,
        "cause": "row_remap_failed",
        "text": "a row could not be remapped",
        "source": "nvml",
        "gpu": "0000:06:00.0",
    }


def test_a_gpu_that_fell_off_the_bus_is_refused_without_calling_nvml(gate: Gate) -> None:
    gate.permit()
    append(gate.site.kernel_log, XID_79)
    log = gate.site.root / "calls"
    same = {"refused": True, "cause": "xid_79", "text": XID_79, "source": "kernel", "gpu": "0000:05:00"}
    assert gate.prolog(True, FAKE_NVML=f"log={log}") == same
    assert gate.prolog(True, FAKE_NVML=f"log={log}", SLURM_JOB_ID="42") == same  # remembered until the next boot
    assert gate.prolog(False, FAKE_NVML=f"log={log}", SLURM_JOB_GPUS="1") == {}  # GPU 1 is healthy
    assert not log.exists()


@pytest.mark.parametrize(
    ("behaviour", "cause", "text"),
    [
        ("recovery@0=1", "recovery_action", "it asks for recovery action gpu_reset"),
        ("lost@0=1", "gpu_lost", "the GPU is lost"),
        ("remap_failed@0=1", "row_remap_failed", "a row could not be remapped"),
    ],
)
def test_after_a_suspicious_kernel_line_nvml_decides(gate: Gate, behaviour: str, cause: str, text: str) -> None:
    gate.permit()
    assert gate.prolog(False, FAKE_NVML=behaviour) == {}  # without a suspicious kernel line NVML is not called
    append(gate.site.kernel_log, XID_95)
    found = gate.prolog(True, FAKE_NVML=behaviour)
    assert found == {"refused": True, "cause": cause, "text": text, "source": "nvml", "gpu": "0000:05:00.0"}


@pytest.mark.parametrize("line", [XID_95, XID_79.replace("05:00", "07:00"), XID_95.replace("05:00", "07:00")])
def test_a_suspicion_that_nvml_does_not_confirm_lets_the_job_start(gate: Gate, line: str) -> None:
    gate.permit()
    append(gate.site.kernel_log, line)
    assert gate.prolog(False) == {}


@pytest.mark.parametrize("behaviour", ["hang=nvmlInitWithFlags", "init=9", "nvmlDeviceGetHandleByPciBusId_v2@0=999"])
def test_the_job_starts_when_the_driver_does_not_answer(gate: Gate, behaviour: str) -> None:
    gate.permit()
    append(gate.site.kernel_log, XID_95)
    assert gate.prolog(False, FAKE_NVML=behaviour) == {}


def test_jobs_that_start_together_are_all_refused(gate: Gate) -> None:
    gate.fault()
    gate.permit()
    environ = {os.fsencode(k): os.fsencode(v) for k, v in gate.site.environ.items()}
    running = [
        subprocess.Popen([gate.site.files.prolog], env={**environ, b"SLURM_JOB_ID": b"%d" % job})
        for job in range(41, 47)
    ]
    assert [process.wait(90) for process in running] == [1] * 6
    assert [one.facts["gate"]["refused"] for one in gate.site.arrived()] == [True] * 6


def test_old_refusal_files_are_removed(gate: Gate) -> None:
    old, new = gate.site.state / "a.refused", gate.site.state / "b.refused"
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    gate.site.epilog()
    assert (old.exists(), new.exists()) == (False, True)
