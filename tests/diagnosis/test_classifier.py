"""Diagnoses of whole logs: root cause, consequences, and which source outranks which."""

from __future__ import annotations

import json
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run, make_classifier
from slurmwrap.diagnosis.evaluate_classifier import make_evidence
from slurmwrap.diagnosis.signatures import get_default_signatures
from slurmwrap.diagnosis.taxonomy import CATEGORIES, FAILURES, list_decisions
from slurmwrap.model.evidence import Citation, Diagnosis, Evidence, KernelLine, LogTail

DATA = Path(__file__).parents[1] / "data/diagnosis"


def rows_of(*names: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name in names for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


CASES = rows_of("cases", "cases_engine")
PROGRESS = "".join(f"step {number}/900 loss={3 - number / 1000:.3f} lr=1e-4\n" for number in range(1, 6))
LATER = "".join(f"step {number}/900 loss={3 - number / 1000:.3f} lr=1e-4\n" for number in range(6, 12))
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/ann/train.py", line 7, in <module>\n    main()\n'
OOM = TRACEBACK + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
WATCHDOG = (
    "[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=X)\n"
)
PREEMPTED = "slurmstepd: error: *** JOB 45 ON n3 CANCELLED AT 2026-11-20T23:50:10 DUE TO PREEMPTION ***\n"
XID79 = "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID31 = "NVRM: Xid (PCI:0000:41:00): 31, pid=7, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS GPC0"


def diagnose(*texts: str, kernel: tuple[str, ...] = (), state: str = "FAILED", code: int | None = 1) -> Diagnosis:
    logs = tuple(LogTail(name=f"out.{index}", text=text) for index, text in enumerate(texts))
    lines = tuple(KernelLine(text=text, node="n3") for text in kernel)
    return diagnose_run(Evidence(state=state, exit_code=code, logs=logs, kernel=lines, nodes=("n3",)))


def test_each_example_log_is_classified_as_labelled() -> None:
    wrong = {}
    for row in CASES:
        found = diagnose_run(make_evidence(row))
        allowed = (
            found.decision in list_decisions(row["category"]) and found.domain == CATEGORIES[row["category"]].domain
        )
        if found.category != row["category"] or not (allowed and found.evidence and 0 < found.confidence <= 1):
            wrong[row["id"]] = found
    assert not wrong, pformat(wrong)


def test_a_completed_run_is_classified_without_loading_the_signatures() -> None:
    get_default_signatures.cache_clear()
    ran = Evidence(state="COMPLETED", exit_code=0, logs=(LogTail(name="out", text=PROGRESS),))
    assert make_classifier("")(ran).category == "success"
    assert get_default_signatures.cache_info().currsize == 0


def test_without_evidence_the_category_is_no_signature() -> None:
    assert diagnose_run(Evidence()).category == "no_signature"


def test_the_cases_cover_every_category_and_success() -> None:
    assert {row["category"] for row in CASES} == {*FAILURES, "success"}


def test_a_diagnosis_cites_root_cause_and_cascade_with_source_and_line() -> None:
    found = diagnose(PROGRESS + OOM + WATCHDOG)
    assert found == Diagnosis(
        category="gpu_oom",
        domain="U",
        decision="stop",
        confidence=0.93,
        signature="gpu.oom_torch",
        evidence=(
            Citation(
                source="out.0",
                line=9,
                text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
                before=tuple(TRACEBACK.splitlines()),
                after=(WATCHDOG.strip(),),
            ),
            Citation(source="out.0", line=10, text=WATCHDOG.strip(), role="cascade"),
        ),
        advice="Another 2.00 GiB did not fit on the GPU: lower the batch size or sequence length, use activation "
        "checkpointing or sharding, or ask for larger GPUs.",
        step=5,
    )


def test_line_numbers_start_at_the_first_line_of_the_log_tail() -> None:
    log = LogTail(name="out", text=OOM, first_line=1001, truncated=True)
    assert diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(log,))).evidence[0].line == 1004


SITUATIONS = {
    "the root is in another rank's file": ("gpu_oom", PROGRESS + WATCHDOG, PROGRESS + OOM),
    "peers complain before the cause": ("gpu_oom", PROGRESS + WATCHDOG + OOM),
    "an error followed by progress is background": ("no_signature", PROGRESS + OOM + LATER),
    "one redrawn progress line does not excuse an error": ("gpu_oom", PROGRESS + OOM + "step 6/900 loss=2.9 lr=1e-4\n"),
    "a preemption before the job went on is background": ("gpu_oom", PROGRESS + PREEMPTED + LATER + OOM),
    "a warning is no cause": (
        "traceback_from_crash",
        f"2024-01-01 10:00:00 WARNING hub: 401 Client Error: Unauthorized for url: x\n{TRACEBACK}KeyError: 'x'\n",
    ),
    "what Python ignored is no cause": ("no_signature", f"Exception ignored in: <function f at 0x1>\n{OOM}"),
    "a source line inside a traceback is no cause": (
        "traceback_from_crash",
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise MemoryError("x") if a else b\n'
        "KeyError: 'b'\n",
    ),
    "advice is no cause": ("no_signature", "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"),
}


def test_the_root_cause_is_distinguished_from_surrounding_lines() -> None:
    wrong = {}
    for situation, (category, *texts) in SITUATIONS.items():
        if (found := diagnose(*texts)).category != category:
            wrong[situation] = found
    assert not wrong, pformat(wrong)


def test_a_completed_job_that_went_on_after_an_error_is_a_success() -> None:
    found = diagnose(OOM + PROGRESS, state="COMPLETED", code=0)
    assert (found.category, found.decision) == ("success", "none")


def test_a_failed_step_hidden_by_a_later_command_is_diagnosed() -> None:
    log = LogTail(name="out", text=OOM)
    found = diagnose_run(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=5, logs=(log,)))
    assert found.category == "gpu_oom"


def test_a_failure_without_output_cites_the_derived_exit_code_and_the_hook() -> None:
    hooks = ("epilog on n3: kernel log: lines lost", "epilog on n3: the output was not read: a job of root")
    found = diagnose_run(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=1, derived_signal=0, hooks=hooks))
    assert (found.category, [(one.source, one.role, one.text) for one in found.evidence]) == (
        "no_signature",
        [
            ("slurm", "root", "State COMPLETED, ExitCode 0:0; the worst of its steps 1:0 (DerivedExitCode)"),
            ("hook", "support", hooks[1]),
        ],
    )


def test_a_failed_step_from_which_the_script_recovered_is_a_success() -> None:
    log = LogTail(name="out", text="step failed, second try\nTraining finished.\n")
    assert (
        diagnose_run(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=5, logs=(log,))).category == "success"
    )


def test_a_missing_input_is_named() -> None:
    text = TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'\n"
    found = diagnose(text)
    assert (found.category, found.decision, found.input_path) == (
        "incorrect_inputs",
        "blacklist_input",
        "/data/train.bin",
    )


def test_slurms_time_limit_outranks_the_log() -> None:
    found = diagnose(OOM, state="TIMEOUT", code=0)
    assert (found.category, found.signature) == ("time_limit", "slurm.state_timeout")


def test_a_cancelled_job_with_a_preemption_line_was_preempted() -> None:
    assert diagnose(PROGRESS + PREEMPTED, state="CANCELLED", code=0).category == "job_preempted"


@pytest.mark.parametrize("name", ["messages", "messages_a", "messages_b", "messages_c", "messages_d", "messages_e"])
def test_a_single_message_gives_its_category(name: str) -> None:
    wrong = {}
    for row in rows_of(name):
        kernel = tuple(line for line in row.get("kernel", "").split("\n") if line)
        found = diagnose(row["log"] + "\n", kernel=kernel)
        if found.category != row["category"]:
            wrong[row["log"] or row["kernel"]] = f"{found.category}, not {row['category']}"
    assert not wrong, pformat(wrong)


def test_a_conclusive_xid_outranks_an_nccl_timeout_and_blames_the_node() -> None:
    found = diagnose(PROGRESS + WATCHDOG, kernel=("x", XID79))
    assert (found.category, found.signature, found.node, found.conclusive) == (
        "gpu_hardware",
        "kernel.xid_79",
        "n3",
        True,
    )
    assert found.evidence[0] == Citation(source="kernel:n3", line=2, text=XID79)
    assert found.evidence[1].role == "cascade"


def test_a_conclusive_xid_does_not_outrank_a_typo_but_blames_the_node() -> None:
    found = diagnose("run.sh: line 3: pyhton: command not found\n", kernel=(XID79,), code=127)
    assert (found.category, found.decision, found.node, found.conclusive) == ("syntax_error", "stop", "n3", True)


@pytest.mark.parametrize(
    "line", [XID79, "LustreError: 11-0: scratch-OST0012 failed", "soft lockup - CPU#3 stuck for 22s!"]
)
def test_no_kernel_line_outranks_a_key_error(line: str) -> None:
    found = diagnose(PROGRESS + TRACEBACK + "KeyError: 'label'\n", kernel=(line,))
    assert (found.category, found.decision) == ("traceback_from_crash", "stop")


def test_xid_31_explains_an_abort_and_does_not_blame_the_node() -> None:
    found = diagnose(PROGRESS + "terminate called after throwing an instance of 'c10::Error'\n", kernel=(XID31,))
    assert (found.category, found.node, found.conclusive) == ("invalid_memory_access", "", False)


def test_a_forged_xid_in_the_users_output_blames_no_node() -> None:
    found = diagnose(PROGRESS + XID79 + "\n")
    assert (found.node, found.conclusive) == ("", False)


def test_an_informational_xid_does_not_outrank_an_exception() -> None:
    line = "NVRM: Xid (PCI:0000:41:00): 63, pid=7, name=python, Row Remapper: New row marked for remapping"
    found = diagnose(TRACEBACK + "KeyError: 'x'\n", kernel=(line,))
    assert (found.category, found.conclusive) == ("traceback_from_crash", False)


def test_a_killed_process_is_cpu_oom_only_with_cgroup_evidence() -> None:
    log = (LogTail(name="out", text=PROGRESS + "run.sh: line 12: 4410 Killed   python train.py\n"),)
    bare = Evidence(state="FAILED", exit_code=137, logs=log)
    oom_kill = Evidence(state="FAILED", exit_code=137, logs=log, oom_kills=1)
    full_memory = Evidence(state="FAILED", exit_code=137, logs=log, mem_peak_mib=4090, mem_limit_mib=4096)
    assert [diagnose_run(evidence).category for evidence in (bare, oom_kill, full_memory)] == [
        "no_signature",
        "cpu_oom",
        "cpu_oom",
    ]


@pytest.mark.parametrize(
    ("text", "category", "node"),
    [
        (WATCHDOG, "gpu_hardware", "n5"),
        (TRACEBACK + "KeyError: 'lr'\n", "traceback_from_crash", ""),  # a pending reset does not outrank the exception
        (OOM, "gpu_oom", ""),
    ],
)
def test_a_gpu_recovery_action_outranks_only_vague_errors(text: str, category: str, node: str) -> None:
    nvml = ("NVML on n5: GPU 2 (0000:41:00.0) asks for recovery action gpu_reset",)
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(LogTail(name="out", text=text),), nvml=nvml))
    assert (found.category, found.node, found.conclusive) == (category, node, False)
    assert (found.evidence[0].source == "nvml:n5") == bool(node)


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("NVML on n5: GPU 2 (0000:41:00.0) is lost", "gpu_hardware"),
        ("NVML on n5: GPU 2 (0000:41:00.0) has a failed row remapping", "gpu_ecc_error"),
        ("NVML on n5: the driver hangs in nvmlInit_v2", "gpu_hardware"),
        ("NVML on n5: GPU 2 (0000:41:00.0) has a row remapping that waits for a reset", "nccl_error"),
    ],
)
def test_a_gpu_that_nvml_reports_as_broken_outranks_an_nccl_timeout(line: str, category: str) -> None:
    log = (LogTail(name="out", text=PROGRESS + WATCHDOG),)
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=log, nvml=(line,)))
    assert (found.category, found.conclusive) == (category, False)


def test_a_failed_node_is_named_only_for_a_single_node_job() -> None:
    one = diagnose_run(Evidence(state="NODE_FAIL", nodes=("n1",)))
    two = diagnose_run(Evidence(state="NODE_FAIL", nodes=("n1", "n2")))
    assert (one.node, two.node) == ("n1", "")


@pytest.mark.parametrize(
    ("line", "category"),
    [
        (
            "x.sh: line 5: 901 Aborted                 (core dumped) python3 main.py --gin.LEARNING_RATE=1",
            "core_dump",
        ),
        (
            "x.sh: line 9: 77 Segmentation fault      (core dumped) run --no-such-file --nan-check",
            "invalid_memory_access",
        ),
        ("Container rank 0 status failed cmd ['python', '--nccl-timeout'] code -6 log log/x.log", "core_dump"),
        ("ERROR: Global rank 3 (PID 77) exited with code -11", "invalid_memory_access"),
        ("ERROR: Global rank 3 (PID 77) exited with code -9", "no_signature"),
        ("ERROR: worker 3 exited with code 1", "no_signature"),
        ("+ python train.py --abort-on-error='CUDA out of memory'", "no_signature"),
    ],
)
def test_the_exit_code_counts_and_the_words_of_a_command_do_not(line: str, category: str) -> None:
    assert diagnose(PROGRESS + line + "\n").category == category


def test_an_unrecognised_log_is_no_signature_and_cites_its_last_line() -> None:
    found = diagnose(PROGRESS + "bye\n\n")
    assert (found.category, found.decision, found.signature) == ("no_signature", "retry", "")
    before = tuple(PROGRESS.splitlines()[-3:])
    assert found.evidence == (Citation(source="out.0", line=6, text="bye", before=before),)


def test_the_middle_of_a_huge_log_is_skipped_and_line_numbers_stay_correct() -> None:
    text = PROGRESS * 40_000 + OOM
    found = diagnose(text)
    assert found.evidence[0].line == text.count("\n")


def test_a_time_limit_cites_the_gpu_whose_clock_was_held_down() -> None:
    slowed = "NVML on n3: GPU 0 was slowed down in 34 of 100 minutes of use (hw_thermal 34)"
    found = diagnose_run(
        Evidence(state="TIMEOUT", nvml=("NVML on n3: GPU 1 (0000:05:00.0) is lost", slowed), nodes=("n3",))
    )
    assert found.category == "time_limit" and found.node == ""
    assert [(one.text, one.role) for one in found.evidence if one.source == "hook"] == [(slowed, "support")]
