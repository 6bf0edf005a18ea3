"""slurmwrap watch --gpus: reports of the nodes, the view, the command line of the step, and permissions."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest

from slurmwrap.cli.watch import watch_command
from slurmwrap.cli.watch.gpu_utilization import (
    Gpu,
    JobGpuUse,
    add_mean,
    add_reports,
    add_silent_nodes,
    fold_gpus,
    format_gpu_memory,
    format_gpu_rows,
    format_utilization,
    gpu_use_to_json_dict,
)
from slurmwrap.cli.watch.gpu_watcher import (
    BOOTSTRAP,
    build_step_environment,
    count_gpus_by_node,
    find_alternative_plans,
    plan_steps,
    read_node_program,
)
from slurmwrap.cli.watch.gpu_watcher import build_srun_command as srun
from slurmwrap.cli.watch.job_status import JobStatus
from slurmwrap.cli.watch.watch_output import (
    ScreenStyle,
    format_log_line,
    format_screen,
    make_change_key,
    status_to_json_dict,
)
from slurmwrap.errors import SlurmwrapError
from slurmwrap.model.job_record import JobRecord
from slurmwrap.slurm.squeue_parser import WatchedJob

NOW = 1_795_280_000.0
WITHOUT_REPORTS = JobGpuUse(nodes=("n2", "n3"), of_nodes=2)
RECORD = JobRecord(
    job_id=81, name="train", user="ada", uid=1000, state="RUNNING", num_nodes=2, gpus=4, nodes=("n2", "n3")
)


def report_line(node: str, index: int, percent: float | None, **more: Any) -> bytes:
    reported = {"used_mib": 61440, "total_mib": 81920, "power_w": 350, "programs": 1, "uuid": f"GPU-{node}-{index}"}
    return json.dumps({"node": node, "index": index, "percent": percent, **reported, **more}).encode()


def make_gpu(node: str, index: int, percent: float | None, **more: Any) -> Gpu:
    reported = {"memory_mib": 61440, "total_mib": 81920, "power_w": 350, "programs": 1, "uuid": f"GPU-{node}-{index}"}
    return Gpu(**{"node": node, "index": index, "percent": percent, "at": NOW, "busy_at": NOW, **reported, **more})


BUSY = add_reports(
    WITHOUT_REPORTS,
    [report_line("n3", 1, 4.0), report_line("n3", 0, 96.0), report_line("n2", 0, 97.0), report_line("n2", 1, 91.0)],
    NOW,
)


def rows(use: JobGpuUse) -> list[tuple[str, str]]:
    return [(label, text) for label, text, _ in format_gpu_rows(use, True)]


def test_reports_of_nodes_become_gpus_sorted_by_node_and_index() -> None:
    gpus = (make_gpu("n2", 0, 97.0), make_gpu("n2", 1, 91.0), make_gpu("n3", 0, 96.0), make_gpu("n3", 1, 4.0))
    assert replace(WITHOUT_REPORTS, troubles={}, gpus=gpus) == BUSY
    assert (BUSY.percent, BUSY.all_heard, BUSY.idle) == (72.0, True, ())


def test_a_row_of_nvidia_smi_gives_the_same_values_except_programs() -> None:
    found = add_reports(
        WITHOUT_REPORTS, [b"smi n3, 2, GPU-b, 91, 61440, 81920, 350.12", b"smi n2, 0, GPU-a, [N/A], 5, 9, [N/A]"], NOW
    )
    assert found.gpus == (
        make_gpu("n2", 0, None, uuid="GPU-a", memory_mib=5, total_mib=9, power_w=None, programs=None),
        make_gpu("n3", 2, 91.0, uuid="GPU-b", programs=None),
    )
    failed = add_reports(
        WITHOUT_REPORTS, [b"smi n3, NVIDIA-SMI has failed, make sure that the driver is installed"], NOW
    )
    assert failed.troubles == {"n3": "nvidia-smi says: NVIDIA-SMI has failed, make sure that the driver is installed"}


@pytest.mark.parametrize(
    "junk",
    [
        b"print hello of a TaskProlog",
        b"{",
        b"[" * 100_000,
        b'{"node": "n9", "index": 0, "percent": 50}',
        b'{"node": ["n3"], "index": 0}',
        b'{"node": "n3", "index": "0"}',
        b'{"node": "n3", "index": 256}',
        b'{"node": "n3", "index": [0]}',
        b'{"node": "n3"}',
        b"smi ",
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_gpu_report_is_ignored(junk: bytes) -> None:
    assert add_reports(BUSY, [junk], NOW) == BUSY


def test_impossible_numbers_become_unknown_values() -> None:
    reported = add_reports(
        WITHOUT_REPORTS,
        [report_line("n2", 0, -1.0, used_mib=1e30, total_mib="x", power_w=True, programs=float("nan"))],
        NOW,
    )
    nothing = {"memory_mib": None, "total_mib": None, "power_w": None, "programs": None}
    assert reported.gpus == (make_gpu("n2", 0, None, **nothing),)


def test_a_gpu_is_idle_without_a_program_or_after_a_minute_at_zero_percent() -> None:
    use = add_reports(
        WITHOUT_REPORTS,
        [report_line("n2", 0, 0.0), report_line("n2", 1, 0.0, programs=0), report_line("n3", 0, 50.0)],
        NOW,
    )
    assert [one.name for one in use.idle] == ["n2:1"]
    for seconds in range(5, 60, 5):
        use = add_reports(use, [report_line("n2", 0, 0.0), report_line("n3", 0, 50.0)], NOW + seconds)
    assert [one.name for one in use.idle] == []
    use = add_reports(use, [report_line("n2", 0, 0.0), report_line("n3", 0, 0.0)], NOW + 60)
    assert [(one.name, one.busy_at - NOW) for one in use.idle] == [("n2:0", 0.0)]


def test_old_reports_expire_and_a_silent_node_is_reported() -> None:
    later = add_reports(BUSY, [report_line("n2", 0, 90.0)], NOW + 25)
    assert [one.name for one in later.gpus] == ["n2:0"]
    reported = add_silent_nodes(later, 1047.0, {"n2": 1040.0, "n3": 1000.0})
    assert reported.troubles == {"n3": "nothing heard of it for 40 s"}
    assert add_silent_nodes(reported, 1050.0, {"n2": 1050.0, "n3": 1000.0}).troubles == {
        "n3": "nothing heard of it for 50 s"
    }
    hung = replace(later, troubles={"n3": "the NVIDIA driver does not answer (GPU 1)"})
    assert add_silent_nodes(hung, 1050.0, {"n3": 1000.0}) == hung


def test_the_trouble_of_a_node_ends_with_its_next_gpu_report() -> None:
    hung = add_reports(
        WITHOUT_REPORTS, [b'{"node": "n3", "error": "the NVIDIA driver does not answer (its start)"}'], NOW
    )
    assert hung.troubles == {"n3": "the NVIDIA driver does not answer (its start)"}
    assert add_reports(hung, [report_line("n3", 0, 5.0)], NOW).troubles == {}


def test_the_last_60_means_are_kept() -> None:
    use = BUSY
    for _ in range(70):
        use = add_mean(use)
    assert use.means == (72.0,) * 60
    assert add_mean(WITHOUT_REPORTS) == WITHOUT_REPORTS


# --- the view ---------------------------------------------------------------------------------------------------------


def test_utilization_shows_mean_and_lowest_gpu_and_memory_use() -> None:
    assert (format_utilization(BUSY), format_gpu_memory(BUSY.gpus)) == (
        "72 % of 4 (lowest n3:1 4 %)",
        "up to 60 of 80 GiB",
    )
    one = replace(WITHOUT_REPORTS, nodes=("n2",), of_nodes=1, gpus=(make_gpu("n2", 0, 97.4, memory_mib=512),))
    assert (format_utilization(one), format_gpu_memory(one.gpus)) == ("97 %", "0.5 of 80 GiB")
    assert format_utilization(replace(one, gpus=(make_gpu("n2", 0, 97.0), make_gpu("n2", 1, 91.0)))) == "94 % of 2"
    assert format_utilization(replace(BUSY, of_nodes=64)) == "72 % of 4 on 2 of 64 nodes (lowest n3:1 4 %)"
    mute = replace(one, gpus=(make_gpu("n2", 0, None, memory_mib=None),))
    assert (format_utilization(mute), format_gpu_memory(mute.gpus)) == ("not reported by the driver", "")


def test_idle_gpus_are_listed_in_folded_form() -> None:
    idle = [make_gpu(f"n{node}", index, 0.0, programs=0) for node in (4, 5, 6) for index in (0, 1, 2, 5)]
    assert fold_gpus([*idle, make_gpu("n7", 3, 0.0)]) == ["n[4-6]:0-2,5", "n7:3"]
    use = replace(
        WITHOUT_REPORTS, gpus=(make_gpu("n2", 0, 100.0), make_gpu("n3", 2, 0.0, programs=0)), means=(0.0, 25.0, 50.0)
    )
    assert rows(use) == [
        ("GPU use", "50 % of 2 (lowest n3:2 0 %)  ▁▃▅"),
        ("GPU mem", "up to 60 of 80 GiB"),
        ("idle", "n3:2 (no program on it)"),
    ]
    many = replace(WITHOUT_REPORTS, gpus=tuple(make_gpu(f"n{node}", node, 0.0, busy_at=0.0) for node in range(6)))
    assert rows(many)[2] == ("idle", "n0:0, n1:1, n2:2, n3:3 and 2 more")


def test_the_same_trouble_of_several_nodes_is_shown_once() -> None:
    hung = {"n2": "the NVIDIA driver does not answer (GPU 1)", "n3": "the NVIDIA driver does not answer (GPU 1)"}
    assert rows(replace(WITHOUT_REPORTS, troubles=hung)) == [
        ("GPU use", "n[2-3]: the NVIDIA driver does not answer (GPU 1)"),
    ]
    assert rows(replace(BUSY, troubles={"n3": "x\x1b[2J"}))[2:] == [("trouble", "n3: x\\x1b[2J")]


def test_a_text_replaces_the_figures_before_and_after_the_measurement() -> None:
    assert rows(WITHOUT_REPORTS) == [("GPU use", "its nodes are being asked, by a small step in the job")]
    busy = replace(WITHOUT_REPORTS, given_up="Unable to create step for job 81: Requested nodes are busy")
    words = "Unable to create step for job 81: Requested nodes are busy"
    assert rows(busy) == [("GPU use", f"not measured: {words}")]
    assert rows(replace(BUSY, means=(1.0,), given_up="its step ended")) == [
        ("GPU use", "not measured any more: its step ended")
    ]


def make_status(use: JobGpuUse | None, **more: Any) -> JobStatus:
    record = more.pop("record", RECORD)
    return JobStatus(at=NOW, address="81", rows=(WatchedJob(record=record),), gpus=True, gpu_use=use, **more)


def test_no_line_is_wider_than_the_terminal_with_gpu_rows() -> None:
    use = replace(BUSY, means=(72.0,) * 30, troubles={"n3": "the NVIDIA driver does not answer (GPU 1)"})
    for columns in (40, 79):
        assert (
            max(len(one) for one in format_screen(make_status(use), ScreenStyle(columns=columns, zone=UTC))) <= columns
        )
    assert format_screen(make_status(use), ScreenStyle(columns=79, zone=UTC))[1:] == [
        "GPU use  72 % of 4 (lowest n3:1 4 %)  ▆▆▆▆▆▆▆▆▆▆",
        "GPU mem  up to 60 of 80 GiB",
        "trouble  n3: the NVIDIA driver does not answer (GPU 1)",
    ]


def test_the_change_key_ignores_changes_of_single_numbers() -> None:
    assert format_log_line(make_status(BUSY), ScreenStyle(zone=UTC)) == (
        "16:53:20 job 81 (train): running on n[2-3], 2 nodes, 4 GPUs; "
        "GPU use 72 % of 4 (lowest n3:1 4 %); GPU mem up to 60 of 80 GiB"
    )
    other = add_reports(BUSY, [report_line("n3", 1, 44.0)], NOW + 5)
    assert make_change_key(make_status(BUSY)) == make_change_key(make_status(other))
    assert make_change_key(make_status(WITHOUT_REPORTS)) != make_change_key(make_status(BUSY))
    idle = add_reports(BUSY, [report_line("n3", 1, 0.0, programs=0)], NOW + 5)
    assert make_change_key(make_status(BUSY)) != make_change_key(make_status(idle))
    late = [replace(BUSY, troubles={"n3": f"nothing heard of it for {seconds} s"}) for seconds in (20, 30)]
    assert make_change_key(make_status(late[0])) == make_change_key(make_status(late[1]))


def test_json_has_each_gpu() -> None:
    found = status_to_json_dict(make_status(add_reports(BUSY, [report_line("n3", 1, 0.0, programs=0)], NOW)))
    assert (found["gpus"], found["gpu_percent"]) == (4, 71.0)
    assert found["gpu_use"]["gpus"][3] == {
        "node": "n3", "index": 1, "uuid": "GPU-n3-1", "percent": 0.0, "memory_mib": 61440, "total_mib": 81920,
        "power_w": 350, "programs": 0,
    }  # fmt: skip
    assert gpu_use_to_json_dict(replace(WITHOUT_REPORTS, given_up="x")) == {
        "nodes": ["n2", "n3"], "of_nodes": 2, "gpus": [], "idle": [], "troubles": {}, "given_up": "x",
    }  # fmt: skip


def test_the_gpus_option_is_suggested_where_nothing_is_measured() -> None:
    def row(found: JobStatus) -> list[str]:
        return [one for one in format_screen(found, ScreenStyle(zone=UTC)) if one.startswith("GPU use")]

    off = replace(make_status(None), gpus=False)
    assert row(off) == ["GPU use  --gpus measures it, by a small step in the job"]
    assert row(replace(off, gpus=None)) == []  # a job of another user
    assert row(replace(off, rows=(WatchedJob(record=replace(RECORD, gpus=0)),))) == []
    task = replace(RECORD, array_job_id=81, array_task_id=2)
    array = replace(make_status(None, record=task))
    assert row(array) == ["GPU use  of one task at a time: slurmwrap watch 81_N --gpus"]


# --- the step ---------------------------------------------------------------------------------------------------------


SCONTROL_OUTPUT = (
    "JobId=3 JobName=x Nodes=n9 CPU_IDs=0 Mem=1 GRES=(null) JobState=RUNNING NumNodes=4 "
    "JOB_GRES=gpu:a100:7 Nodes=n[0-1] CPU_IDs=0-3 Mem=1000 GRES=gpu:a100:2(IDX:0-1) "
    "Nodes=n2 CPU_IDs=0 Mem=1000 GRES=gpu:a100:1(IDX:3),gpu:v100:2(IDX:4-5) Nodes=n3 CPU_IDs=0 Mem=1000 GRES= "
    "MinCPUsNode=1"
)


def test_nodes_with_the_same_number_of_gpus_share_one_step() -> None:
    counts = count_gpus_by_node(SCONTROL_OUTPUT)
    assert counts == {"n0": 2, "n1": 2, "n2": 3}
    assert plan_steps(counts) == [("--gres=gpu:2", ("n0", "n1")), ("--gres=gpu:3", ("n2",))]
    assert count_gpus_by_node("JobId=3 JobName=x") == {}


def test_a_gres_request_that_slurm_refuses_is_repeated_for_each_node() -> None:
    refused = "Unable to create step for job 3: Invalid generic resource (gres) specification"
    plan = ("--gres=gpu:2", ("n0", "n1"))
    assert find_alternative_plans(plan, refused) == [("--gpus=2", ("n0",)), ("--gpus=2", ("n1",))]
    assert find_alternative_plans(("--gpus=2", ("n0",)), refused) == []
    assert find_alternative_plans(plan, "Unable to create step for job 3: Requested nodes are busy") == []


def test_the_srun_command_line_of_the_step() -> None:
    assert srun(81, ("n2", "n3"), "--gres=gpu:8", None) == [
        "srun", "--jobid=81", "--overlap", "--job-name=slurmwrap-watch", "--nodelist=n2,n3", "--nodes=2", "--ntasks=2",
        "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0", "--gres=gpu:8", "--cpu-bind=none", "--mpi=none",
        "--chdir=/", "--immediate=25", "--wait=0", "--kill-on-bad-exit=0", "/bin/sh", "-c", BOOTSTRAP,
    ]  # fmt: skip
    setpriv_words = ["setpriv", "--reuid=1000", "--regid=100", "--init-groups", "srun"]
    assert srun(81, ("n2",), "--gres=gpu:8", (1000, 100))[:5] == setpriv_words


def test_the_step_environment_excludes_slurm_variables_of_the_shell() -> None:
    given = {"PATH": "/usr/bin", "SLURM_CONF": "/x", "SLURM_GRES": "gpu:1", "SLURM_JOB_ID": "5", "HOME": "/root"}
    pythons = f"/usr/bin/python3 /usr/libexec/platform-python python3 {sys.executable}"
    programs = {"LC_ALL": "C", "SLURMWRAP_PYTHONS": pythons, "SLURMWRAP_PROGRAM": read_node_program()}
    assert build_step_environment(given, own=False) == {"PATH": "/usr/bin", "SLURM_CONF": "/x", **programs}
    assert build_step_environment(given, own=True) == {
        "PATH": "/usr/bin",
        "SLURM_CONF": "/x",
        "HOME": "/root",
        **programs,
    }


def test_gpus_of_another_users_job_are_refused() -> None:
    class UnusedWatcher:
        def follow(self, record: JobRecord) -> None:
            raise AssertionError

    with pytest.raises(SlurmwrapError) as raised, pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_command, "may_measure", lambda record: False)
        watch_command._with_gpus(make_status(None), UnusedWatcher())  # type: ignore[arg-type]
    assert str(raised.value) == "job 81 is ada's: only its user, or root, can start a step in it"
    assert raised.value.hint == "slurmwrap watch 81 without --gpus shows the rest"
