"""Programs and scripts that end with a code and no error message, and allocations that no cluster can satisfy."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

EIGHT_GPUS = TrialSpec(trial_dir="/t", script="/t/slurm_script", script_name="train.sbatch", gpus=8, nodes=2)


def judge_on_eight_gpus(trial: Callable[..., TrialResult], job: Path, script: str, program: str = "") -> Verdict:
    (job / "train.py").write_text(textwrap.dedent(program))
    result = trial(f"#!/bin/bash\n{script}")
    folder = job.parent / "trial"
    spec = replace(EIGHT_GPUS, chdir=str(job), trial_dir=str(folder), script=str(folder / "slurm_script"))
    return judge(spec, result, diagnose_run)


@pytest.mark.parametrize("call", ["sys.exit(3)", "exit(3)", "quit(3)"])
def test_a_program_that_exits_because_of_its_own_check_is_stopped(
    trial: Callable[..., TrialResult], job: Path, call: str
) -> None:
    program = f"""
        import os, sys
        if not os.path.exists("split.txt"):
            {call}
    """
    found = judge_on_eight_gpus(trial, job, "python train.py\n", program)
    assert (found.outcome, found.reason) == (Outcome.FAIL, "train.py:4: SystemExit: exit code 3")


def test_a_program_that_exits_because_it_has_one_process_is_not_stopped(
    trial: Callable[..., TrialResult], job: Path
) -> None:
    program = """
        import os, sys
        world_size = int(os.environ.get("WORLD_SIZE", 1))
        if world_size < 4:
            sys.exit(3)
    """
    assert judge_on_eight_gpus(trial, job, "python train.py\n", program).outcome is Outcome.INCONCLUSIVE


def test_what_the_program_printed_last_is_part_of_the_reason(trial: Callable[..., TrialResult], job: Path) -> None:
    program = """
        import sys
        rows = []
        if not rows:
            print("the split is empty")
            sys.exit(2)
    """
    found = judge_on_eight_gpus(trial, job, "python train.py\n", program)
    assert found.reason == "train.py:6: SystemExit: exit code 2 after 'the split is empty'"


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("[ -f split.txt ] || exit 4\n", 2),
        ("[[ -d data ]] || { exit 4; }\n", 2),
        ('MODE=eval\nif [ "$MODE" != "train" ]; then\n    exit 4\nfi\n', 4),
    ],
)
def test_a_script_that_exits_because_of_a_file_or_text_is_stopped(
    trial: Callable[..., TrialResult], job: Path, script: str, line: int
) -> None:
    found = judge_on_eight_gpus(trial, job, script)
    assert (found.outcome, found.reason) == (Outcome.FAIL, f"train.sbatch:{line}: SystemExit: exit code 4")


@pytest.mark.parametrize(
    "script",
    [
        '[ "${SLURM_NTASKS:-1}" != "1" ] || exit 4\n',
        "[ $(nproc) -gt 64 ] || exit 4\n",
        "false || exit 4\n",
        "echo 'needs 8 GPUs'\n[ -f split.txt ] || exit 4\n",
    ],
)
def test_a_script_that_exits_because_of_anything_else_is_not_stopped(
    trial: Callable[..., TrialResult], job: Path, script: str
) -> None:
    assert judge_on_eight_gpus(trial, job, script).outcome is Outcome.INCONCLUSIVE


def judge_output(text: str, **spec: int) -> Outcome:
    result = TrialResult(layer="exit", exit_code=1, crashed=True, logs=(LogTail(name="output", text=text),))
    return judge(replace(EIGHT_GPUS, mem_shrunk=True, **spec), result, diagnose_run).outcome


def make_traceback(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "/w/train.py", line 7, in <module>\n    x = make()\n{error}\n'


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [("900.00 GiB", Outcome.FAIL), ("2.50 TiB", Outcome.FAIL), ("600.00 GiB", Outcome.INCONCLUSIVE)],
)
@pytest.mark.parametrize(
    "capacity", ["GPU 0 has a total capacity of 79.10 GiB", "(GPU 0; 79.10 GiB total capacity; 1.00 GiB free)"]
)
def test_gpu_memory_larger_than_all_gpus_of_the_job_is_the_jobs_own_error(
    asked: str, outcome: Outcome, capacity: str
) -> None:
    error = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. {capacity}"
    assert judge_output(make_traceback(error)) is outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("MemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)", Outcome.FAIL),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 128000000000000000 bytes. Error code 12", Outcome.FAIL),
        ("MemoryError: Unable to allocate 700. GiB for an array with shape (1,)", Outcome.INCONCLUSIVE),
    ],
)  # fmt: skip
def test_host_memory_larger_than_all_nodes_of_the_job_is_the_jobs_own_error(error: str, outcome: Outcome) -> None:
    assert judge_output(make_traceback(error), largest_mem_mib=512 << 10) is outcome
    assert judge_output(make_traceback(error)) is Outcome.INCONCLUSIVE


def test_an_allocation_larger_than_all_gpus_fails_although_another_process_is_on_the_gpu() -> None:
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2048.00 GiB. GPU 0 has a total capacity of 79 "
        "GiB of which 14.72 GiB is free. Process 2491 has 59.99 GiB memory in use."
    )
    assert judge_output(make_traceback(error)) is Outcome.FAIL
    assert judge_output(make_traceback(error.replace("2048.00 GiB", "20.00 GiB"))) is Outcome.INCONCLUSIVE


def test_gpu_memory_that_ran_out_beside_another_process_proves_nothing() -> None:
    text = make_traceback("torch.AcceleratorError: CUDA error: out of memory")
    result = TrialResult(layer="exit", exit_code=1, crashed=True, logs=(LogTail(name="output", text=text),))
    one_gpu = replace(EIGHT_GPUS, gpus=1, nodes=1)
    assert judge(one_gpu, result, diagnose_run).outcome is Outcome.FAIL
    shared = judge(one_gpu, replace(result, gpu_shared=True), diagnose_run)
    assert (shared.outcome, shared.reason.partition(":")[0]) == (
        Outcome.INCONCLUSIVE,
        "another process held memory of this GPU",
    )


def test_a_prefix_with_the_rank_does_not_hide_an_exit(trial: Callable[..., TrialResult], job: Path) -> None:
    program = """
        import sys
        print("[rank: 0] Seed set to 1265")
        if not []:
            sys.exit(3)
    """
    assert judge_on_eight_gpus(trial, job, "python train.py\n", program).outcome is Outcome.FAIL


def test_a_library_that_refuses_its_arguments_fails_on_any_number_of_gpus() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 7, in <module>\n    loss = dice(out, masks)\n'
        '  File "/v/lib/python3.11/site-packages/seglosses/dice.py", line 40, in forward\n    raise ValueError(\n'
        "ValueError: Target size (torch.Size([2, 1, 64])) must be the same as input size (torch.Size([2, 64]))\n"
    )
    assert judge_output(text) is Outcome.FAIL


@pytest.mark.parametrize(
    "message",
    [
        "element 0 of tensors does not require grad and does not have a grad_fn",
        "grad can be implicitly created only for scalar outputs",
        "expected scalar type Long but found Float",
        "one of the variables needed for gradient computation has been modified by an inplace operation",
    ],
)
def test_an_error_of_autograd_fails_although_its_line_uses_the_number_of_processes(
    message: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("scale = 1 / world_size\n(loss * scale).backward()\n")
    text = (
        f'Traceback (most recent call last):\n  File "{tmp_path}/train.py", line 2, in <module>\n'
        f"    (loss * scale).backward()\nRuntimeError: {message}\n"
    )
    assert judge_output(text) is Outcome.FAIL


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("return None, None", Outcome.INCONCLUSIVE),
        ("pass", Outcome.FAIL),
        ("if world_size > 1:\n        return 1, 2", Outcome.INCONCLUSIVE),
    ],
)
def test_a_function_that_never_returns_a_value_fails_on_any_number_of_gpus(
    body: str, outcome: Outcome, tmp_path: Path
) -> None:
    source = f"def make(world_size):\n    {body}\nmodel, optimizer = make(world_size)\n"
    line = source.count("\n")
    (tmp_path / "train.py").write_text(source)
    text = (
        f'Traceback (most recent call last):\n  File "{tmp_path}/train.py", line {line}, in <module>\n'
        "    model, optimizer = make(world_size)\nTypeError: cannot unpack non-iterable NoneType object\n"
    )
    assert judge_output(text) is outcome
