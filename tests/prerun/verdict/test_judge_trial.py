"""The verdict of a trial's result, with the real classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import Citation, LogTail
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

MANY_GPUS = TrialSpec(trial_dir="/t", script="/t/s", script_name="train.sbatch", chdir="/w", gpus=16, nodes=2)
ONE_GPU = replace(MANY_GPUS, gpus=1, nodes=1)


def make_traceback(error: str, code: str = "loss = model(x)", file: str = "/w/train.py") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in <module>\n    {code}\n{error}\n'


def make_exit_result(text: str, code: int = 1, **more: object) -> TrialResult:
    crashed = "Traceback" in text
    return TrialResult(
        layer="exit",
        exit_code=code,
        seconds=3.0,
        crashed=crashed,
        logs=(LogTail(name="output", text=text),),
        **more,  # type: ignore[arg-type]
    )


def judge_result(
    result: TrialResult, spec: TrialSpec = MANY_GPUS, inspect: Callable[[str], str | None] = lambda p: None
) -> Verdict:
    return judge(spec, result, diagnose_run, inspect, make_source_reader(result))


def make_source_reader(result: TrialResult) -> Callable[[str], str | None]:
    """A reader of the file in `make_traceback`, which contains only the line that failed."""
    rows = result.logs[0].text.splitlines() if result.logs else []
    code = next((later for row, later in pairwise(rows) if '.py", line 7' in row), "")
    return lambda path: "\n" * 6 + code.strip() if path.startswith("/w/") else None


def test_three_steps_pass() -> None:
    measured = Measurement(steps=3, steps_per_s=2.0)
    result = TrialResult(layer="step", steps=3, step_source="optimizer", seconds=9.0, measurement=measured)
    assert judge_result(result) == Verdict(
        outcome=Outcome.PASS,
        layer="optimizer",
        reason="3 optimizer steps ran on one GPU",
        steps=3,
        seconds=9.0,
        measurement=measured,
    )


def test_a_script_that_ends_well_passes_because_of_its_exit_code() -> None:
    found = judge_result(make_exit_result("done\n", 0))
    assert (found.outcome, found.layer) == (Outcome.PASS, "exit")
    assert found.reason == "the script ran to its end; no optimizer step was seen"


def test_a_timeout_is_inconclusive() -> None:
    found = judge_result(TrialResult(layer="timeout", seconds=900.4, steps=1))
    assert (found.outcome, found.reason) == (
        Outcome.INCONCLUSIVE,
        "1 of 3 optimizer steps within 900 s; nothing failed",
    )


def test_an_error_of_the_supervisor_is_inconclusive() -> None:
    found = judge_result(TrialResult(layer="supervisor", error="no space left"))
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "no space left")


def test_a_bug_is_a_fail_with_the_line_of_the_users_code() -> None:
    found = judge_result(
        make_exit_result(make_traceback("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x128 and 64x10)"))
    )
    assert (found.outcome, found.layer, found.category) == (Outcome.FAIL, "exit", "semantic_error")
    assert found.reason == "train.py:7: RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x128 and 64x10)"
    assert found.evidence[0] == Citation(source="/w/train.py", line=7, text="loss = model(x)")


def test_a_crash_with_exit_code_0_is_a_fail() -> None:
    text = make_traceback("NameError: name 'los' is not defined") + "finished\n"
    assert judge_result(make_exit_result(text, 0)).outcome is Outcome.FAIL
    assert judge_result(replace(make_exit_result(text, 0), crashed=False)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "text",
    [
        make_traceback("ModuleNotFoundError: No module named 'einops'", "import einops"),
        make_traceback("KeyError: 'lr'", "lr = config['lr']"),
        make_traceback("AssertionError", "assert args.width % 2 == 0"),
        make_traceback("ValueError: optimizer got an empty parameter list"),
        make_traceback("FileNotFoundError: [Errno 2] No such file or directory: '/w/data/train.csv'", "open(path)"),
        make_traceback("TypeError: forward() missing 1 required positional argument: 'mask'"),
        make_traceback("IndexError: index 12 is out of range", "row = table[12]"),
        "/var/spool/slurm_script: line 5: pyhton: command not found\n",
        "train.py: error: unrecognized arguments: --learning-rate 3\n",
    ],
)
def test_an_error_that_the_real_job_would_also_have_is_a_fail(text: str) -> None:
    code = 127 if "not found" in text else 2 if "unrecognized" in text else 1
    assert judge_result(make_exit_result(text, code)).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "text",
    [
        make_traceback(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79"
        ),
        make_traceback("AssertionError: world size 1 is not divisible by tensor parallel size 8"),
        make_traceback("AssertionError", "assert dist.get_world_size() == 16"),
        make_traceback("ValueError: bad", "raise ValueError('bad') if world < 2 else None"),
        make_traceback("IndexError: list index out of range", "peer = ranks[1]"),
        make_traceback("ZeroDivisionError: integer division or modulo by zero", "shard = size // (world - 1)"),
        make_traceback("RuntimeError: CUDA error: invalid device ordinal", "torch.cuda.set_device(local_rank)"),
        make_traceback("RuntimeError: No CUDA GPUs are available", "model.cuda()"),
        make_traceback("RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."),
        make_traceback(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, unhandled system error"
        ),
        make_traceback(
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (n7)"
        ),
        make_traceback(
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries"
        ),
        make_traceback("MemoryError", "x = bytearray(1 << 40)"),
        "srun: error: Unable to create step for job 5: More processors requested than permitted\n",
        "this job needs 2 nodes\n",
        "bash: nvidia-smi: command not found\n",
        "",
    ],
)
def test_an_error_that_one_gpu_cannot_prove_is_inconclusive(text: str) -> None:
    found = judge_result(make_exit_result(text, 1))
    assert found.outcome is Outcome.INCONCLUSIVE, found


def test_errors_of_a_job_with_one_gpu_are_a_fail() -> None:
    out_of_memory = make_traceback(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79"
    )
    assert judge_result(make_exit_result(out_of_memory), ONE_GPU).outcome is Outcome.FAIL
    assert judge_result(make_exit_result("bad luck\n", 3), ONE_GPU).outcome is Outcome.FAIL


def test_a_kill_from_outside_is_inconclusive() -> None:
    killed = TrialResult(layer="exit", signal=9, logs=(LogTail(name="output", text="working\n"),))
    assert judge_result(killed, ONE_GPU).outcome is Outcome.INCONCLUSIVE


def test_a_script_that_fails_after_a_skipped_command_is_inconclusive() -> None:
    result = make_exit_result("cannot go on\n", 1, refused=("salloc -N2",))
    found = judge_result(result, ONE_GPU)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "salloc -N2" in found.reason


def test_a_broken_input_is_blamed_if_slurmwrap_finds_its_fault(tmp_path: Path) -> None:
    (tmp_path / "train.pt").write_bytes(b"PK\x03\x04" + b"x" * 100)
    text = make_traceback(
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    )
    spec = replace(MANY_GPUS, inputs=("/w/config.json", str(tmp_path / "train.pt")))
    found = judge(spec, make_exit_result(text), diagnose_run, lambda p: "is truncated" if p.endswith(".pt") else None)
    assert (found.outcome, found.category) == (Outcome.FAIL, "incorrect_inputs")
    assert (found.input_path, found.input_fault) == (str(tmp_path / "train.pt"), "is truncated")
    assert len(found.input_digest) == 64
    assert found.reason.startswith(f"{tmp_path}/train.pt is truncated (train.py:7: RuntimeError: ")


def test_a_broken_input_is_not_blamed_for_another_failure() -> None:
    spec = replace(MANY_GPUS, inputs=("/w/x.pt",))
    found = judge(
        spec,
        make_exit_result(make_traceback("ModuleNotFoundError: No module named 'x'")),
        diagnose_run,
        lambda p: "is truncated",
    )
    assert (found.outcome, found.category, found.input_path) == (Outcome.FAIL, "import_error", "")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("explicit", "3 steps ran on one GPU (counted by step())"),
        ("keras", "3 Keras training batches ran on one GPU"),
        ("deepspeed", "3 DeepSpeed steps ran on one GPU"),
        ("megatron", "3 Megatron steps ran on one GPU"),
        ("jax", "3 JAX updates ran on one GPU"),
        ("backward", "3 backward passes ran on one GPU"),
        ("dataloader", "3 batches from the DataLoader ran on one GPU"),
        ("text", "3 training steps by the program's own output ran on one GPU"),
        ("gpu", "the program, whose steps cannot be counted, kept the GPU busy on one GPU"),
    ],
)
def test_the_verdict_names_the_source_of_the_steps(source: str, reason: str) -> None:
    found = judge_result(TrialResult(layer="step", steps=3, step_source=source))
    assert (found.outcome, found.layer, found.reason) == (Outcome.PASS, source, reason)


def test_the_reason_names_the_number_of_gpus_and_the_prerun_command() -> None:
    result = TrialResult(layer="step", steps=3, step_source="optimizer")
    assert judge_result(result, replace(MANY_GPUS, trial_gpus=4)).reason == "3 optimizer steps ran on 4 GPUs"
    command = replace(MANY_GPUS, command="python small.py")
    assert judge_result(result, command).reason == "3 optimizer steps ran on one GPU by --prerun-command"


def test_errors_of_a_trial_with_all_gpus_of_the_job_are_a_fail() -> None:
    whole = replace(MANY_GPUS, gpus=8, nodes=1, trial_gpus=8)
    out_of_memory = make_traceback(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity"
    )
    assert judge_result(make_exit_result(out_of_memory), whole).outcome is Outcome.FAIL
    assert judge_result(make_exit_result(out_of_memory), replace(whole, trial_gpus=2)).outcome is Outcome.INCONCLUSIVE


def test_a_traceback_before_a_timeout_is_mentioned_but_inconclusive() -> None:
    logs = (LogTail(name="output", text=make_traceback("ValueError: x")),)
    found = judge_result(TrialResult(layer="timeout", seconds=900.0, crashed=True, logs=logs))
    assert (found.outcome, found.layer) == (Outcome.INCONCLUSIVE, "timeout")
    assert found.reason == "no optimizer step within 900 s; a traceback was printed: ValueError: x"


def test_a_traceback_in_a_redirected_log_is_found() -> None:
    logs = (
        LogTail(name="output", text=""),
        LogTail(name="/w/train.log", text=make_traceback("NameError: name 'x' is not defined")),
    )
    found = judge_result(replace(make_exit_result("", 1), logs=logs, crashed=True))
    assert (found.outcome, found.reason) == (Outcome.FAIL, "train.py:7: NameError: name 'x' is not defined")


def test_missing_data_on_a_local_disk_is_inconclusive_unless_the_job_runs_there() -> None:
    text = make_traceback("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/u/data/train.bin'")
    assert judge_result(make_exit_result(text), ONE_GPU).outcome is Outcome.INCONCLUSIVE
    assert judge_result(make_exit_result(text), replace(ONE_GPU, chdir="/tmp/u/work")).outcome is Outcome.FAIL


def test_skipped_commands_are_named_when_the_script_ends_well() -> None:
    found = judge_result(make_exit_result("done\n", 0, refused=("sbatch next.sh",)))
    assert found.reason == "the script ran to its end; no optimizer step was seen; 'sbatch next.sh' was left out"


@pytest.mark.parametrize(
    ("file", "kind", "outcome"),
    [
        ("torch/distributed/pipelining/stage.py", "ValueError", Outcome.INCONCLUSIVE),
        ("megatron/core/pipeline_parallel/schedules.py", "AssertionError", Outcome.INCONCLUSIVE),
        ("mpi4py/util/pkl5.py", "RuntimeError", Outcome.INCONCLUSIVE),
        ("torch/distributed/pipelining/stage.py", "TypeError", Outcome.FAIL),
        ("torch/nn/modules/linear.py", "ValueError", Outcome.FAIL),
    ],
)
def test_an_error_in_code_that_forms_process_groups_is_inconclusive(file: str, kind: str, outcome: Outcome) -> None:
    text = make_traceback(f"{kind}: not so", file=f"/v/lib/python3.12/site-packages/{file}")
    assert judge_result(make_exit_result(text)).outcome is outcome
    assert judge_result(make_exit_result(text), ONE_GPU).outcome is Outcome.FAIL


def test_a_missing_file_of_another_rank_is_inconclusive() -> None:
    text = make_traceback("FileNotFoundError: [Errno 2] No such file or directory: '/w/out/rank1.pt'", "x = open(name)")
    found = judge_result(make_exit_result(text), inspect=lambda path: "does not exist")
    assert found.outcome is Outcome.INCONCLUSIVE
    assert judge_result(make_exit_result(text), ONE_GPU, lambda path: "does not exist").outcome is Outcome.FAIL


def test_a_check_with_unreadable_source_is_a_fail_only_for_a_job_with_one_gpu() -> None:
    result = make_exit_result(make_traceback("AssertionError", "assert found == wanted"))
    of_many = judge(MANY_GPUS, result, diagnose_run, lambda path: None, lambda path: None)
    of_one = judge(ONE_GPU, result, diagnose_run, lambda path: None, lambda path: None)
    assert (of_many.outcome, of_one.outcome) == (Outcome.INCONCLUSIVE, Outcome.FAIL)


# (text, outcome for a job that can start, outcome for a job that cannot start yet)
@pytest.mark.parametrize(
    ("text", "now", "later"),
    [
        (
            make_traceback("FileNotFoundError: [Errno 2] No such file or directory: 'd.txt'", "open(p)"),
            "fail",
            "inconclusive",
        ),
        (make_traceback("ModuleNotFoundError: No module named 'mine'", "import mine"), "fail", "inconclusive"),
        (
            make_traceback("ValueError: num_samples should be a positive integer value", "load(p)"),
            "fail",
            "inconclusive",
        ),
        (
            make_traceback("AttributeError: 'NoneType' object has no attribute 'shape'", "img.shape"),
            "fail",
            "inconclusive",
        ),
        (make_traceback("RuntimeError: size mismatch for fc.weight", "m.load_state_dict(s)"), "fail", "inconclusive"),
        ("/w/job: line 3: python: command not found\n", "fail", "inconclusive"),
        ("cat: data.txt: No such file or directory\n", "fail", "inconclusive"),
        (make_traceback("NameError: name 'modle' is not defined"), "fail", "fail"),
        (make_traceback("AttributeError: 'Net' object has no attribute 'foward'", "net.foward(x)"), "fail", "fail"),
        (make_traceback("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), "fail", "fail"),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --lrr 3\n", "fail", "fail"),
    ],
)
def test_an_error_that_may_vanish_before_a_delayed_job_starts_is_inconclusive(text: str, now: str, later: str) -> None:
    broken = lambda path: "is empty"  # noqa: E731 - the fault that slurmwrap finds in the input
    delayed = replace(ONE_GPU, delay="the job is held (--hold)", inputs=("/w/d.txt",))
    found = [judge_result(make_exit_result(text), ONE_GPU), judge_result(make_exit_result(text), delayed, broken)]
    assert [one.outcome.value for one in found] == [now, later]
    assert found[1].input_path == ""
    if later == "inconclusive":
        assert found[1].reason.startswith("the job is held (--hold), and what is missing now may be there when it ")


@pytest.mark.parametrize(
    ("result", "lasting"),
    [
        (
            make_exit_result(make_traceback("AssertionError: world size 1 is not divisible by tensor parallel size 8")),
            True,
        ),
        (
            make_exit_result(
                make_traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0")
            ),
            True,
        ),
        (
            make_exit_result(
                make_traceback("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='h', port=443): Max")
            ),
            False,
        ),
        (make_exit_result("ERROR: cannot read the force field\n", 3), False),
        (TrialResult(layer="timeout", seconds=900.0), True),
        (TrialResult(layer="no_training", seconds=40.0, no_training="it only sleeps"), True),
        (TrialResult(layer="supervisor", error="no space left"), False),
        (TrialResult(layer="supervisor", error="would touch x", touched=("x",)), True),
    ],
)
def test_an_inconclusive_verdict_lasts_if_another_trial_would_end_the_same(result: TrialResult, lasting: bool) -> None:
    found = judge_result(result)
    assert (found.outcome, found.lasting) == (Outcome.INCONCLUSIVE, lasting), found
