"""From a trial's result to its verdict, with the real classifier."""

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

MANY = TrialSpec(trial_dir="/t", script="/t/s", script_name="train.sbatch", chdir="/w", gpus=16, nodes=2)
ONE = replace(MANY, gpus=1, nodes=1)


def crash(error: str, code: str = "loss = model(x)", file: str = "/w/train.py") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in <module>\n    {code}\n{error}\n'


def exited(text: str, code: int = 1, **more: object) -> TrialResult:
    crashed = "Traceback" in text
    return TrialResult(
        layer="exit",
        exit_code=code,
        seconds=3.0,
        crashed=crashed,
        logs=(LogTail(name="output", text=text),),
        **more,  # type: ignore[arg-type]
    )


def verdict(
    result: TrialResult, spec: TrialSpec = MANY, inspect: Callable[[str], str | None] = lambda p: None
) -> Verdict:
    return judge(spec, result, diagnose_run, inspect, source_of(result))


def source_of(result: TrialResult) -> Callable[[str], str | None]:
    """Reads the file of `crash`, which holds nothing but the line that failed."""
    rows = result.logs[0].text.splitlines() if result.logs else []
    code = next((later for row, later in pairwise(rows) if '.py", line 7' in row), "")
    return lambda path: "\n" * 6 + code.strip() if path.startswith("/w/") else None


def test_three_steps_pass() -> None:
    measured = Measurement(steps=3, steps_per_s=2.0)
    result = TrialResult(layer="step", steps=3, step_source="optimizer", seconds=9.0, measurement=measured)
    assert verdict(result) == Verdict(
        outcome=Outcome.PASS,
        layer="optimizer",
        reason="3 optimizer steps ran on one GPU",
        steps=3,
        seconds=9.0,
        measurement=measured,
    )


def test_a_script_that_ends_well_passes_by_its_exit() -> None:
    found = verdict(exited("done\n", 0))
    assert (found.outcome, found.layer) == (Outcome.PASS, "exit")
    assert found.reason == "the script ran to its end; no optimizer step was seen"


def test_time_running_out_proves_nothing() -> None:
    found = verdict(TrialResult(layer="timeout", seconds=900.4, steps=1))
    assert (found.outcome, found.reason) == (
        Outcome.INCONCLUSIVE,
        "1 of 3 optimizer steps within 900 s; nothing failed",
    )


def test_our_own_failure_proves_nothing() -> None:
    found = verdict(TrialResult(layer="supervisor", error="no space left"))
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "no space left")


def test_a_bug_fails_with_the_line_of_the_users_code() -> None:
    found = verdict(exited(crash("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x128 and 64x10)")))
    assert (found.outcome, found.layer, found.category) == (Outcome.FAIL, "exit", "semantic_error")
    assert found.reason == "train.py:7: RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x128 and 64x10)"
    assert found.evidence[0] == Citation(source="/w/train.py", line=7, text="loss = model(x)")


def test_a_crash_behind_a_good_exit_code_fails_too() -> None:
    text = crash("NameError: name 'los' is not defined") + "finished\n"
    assert verdict(exited(text, 0)).outcome is Outcome.FAIL
    assert verdict(replace(exited(text, 0), crashed=False)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "text",
    [
        crash("ModuleNotFoundError: No module named 'einops'", "import einops"),
        crash("KeyError: 'lr'", "lr = config['lr']"),
        crash("AssertionError", "assert args.width % 2 == 0"),
        crash("ValueError: optimizer got an empty parameter list"),
        crash("FileNotFoundError: [Errno 2] No such file or directory: '/w/data/train.csv'", "open(path)"),
        crash("TypeError: forward() missing 1 required positional argument: 'mask'"),
        crash("IndexError: index 12 is out of range", "row = table[12]"),
        "/var/spool/slurm_script: line 5: pyhton: command not found\n",
        "train.py: error: unrecognized arguments: --learning-rate 3\n",
    ],
)
def test_what_the_real_job_would_meet_as_well_fails(text: str) -> None:
    code = 127 if "not found" in text else 2 if "unrecognized" in text else 1
    assert verdict(exited(text, code)).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "text",
    [
        crash(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79"
        ),
        crash("AssertionError: world size 1 is not divisible by tensor parallel size 8"),
        crash("AssertionError", "assert dist.get_world_size() == 16"),
        crash("ValueError: bad", "raise ValueError('bad') if world < 2 else None"),
        crash("IndexError: list index out of range", "peer = ranks[1]"),
        crash("ZeroDivisionError: integer division or modulo by zero", "shard = size // (world - 1)"),
        crash("RuntimeError: CUDA error: invalid device ordinal", "torch.cuda.set_device(local_rank)"),
        crash("RuntimeError: No CUDA GPUs are available", "model.cuda()"),
        crash("RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."),
        crash("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, unhandled system error"),
        crash(
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (n7)"
        ),
        crash("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries"),
        crash("MemoryError", "x = bytearray(1 << 40)"),
        "srun: error: Unable to create step for job 5: More processors requested than permitted\n",
        "this job needs 2 nodes\n",
        "bash: nvidia-smi: command not found\n",
        "",
    ],
)
def test_what_one_gpu_cannot_show_never_fails(text: str) -> None:
    found = verdict(exited(text, 1))
    assert found.outcome is Outcome.INCONCLUSIVE, found


def test_a_job_of_one_gpu_is_its_own_proof() -> None:
    oom = crash(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79"
    )
    assert verdict(exited(oom), ONE).outcome is Outcome.FAIL
    assert verdict(exited("bad luck\n", 3), ONE).outcome is Outcome.FAIL


def test_a_kill_from_outside_proves_nothing() -> None:
    killed = TrialResult(layer="exit", signal=9, logs=(LogTail(name="output", text="working\n"),))
    assert verdict(killed, ONE).outcome is Outcome.INCONCLUSIVE


def test_a_script_that_needs_a_command_we_left_out_proves_nothing() -> None:
    result = exited("cannot go on\n", 1, refused=("salloc -N2",))
    found = verdict(result, ONE)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "salloc -N2" in found.reason


def test_a_broken_input_is_blamed_after_our_own_read(tmp_path: Path) -> None:
    (tmp_path / "train.pt").write_bytes(b"PK\x03\x04" + b"x" * 100)
    text = crash("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory")
    spec = replace(MANY, inputs=("/w/config.json", str(tmp_path / "train.pt")))
    found = judge(spec, exited(text), diagnose_run, lambda p: "is truncated" if p.endswith(".pt") else None)
    assert (found.outcome, found.category) == (Outcome.FAIL, "incorrect_inputs")
    assert (found.input_path, found.input_fault) == (str(tmp_path / "train.pt"), "is truncated")
    assert len(found.input_digest) == 64
    assert found.reason.startswith(f"{tmp_path}/train.pt is truncated (train.py:7: RuntimeError: ")


def test_a_broken_input_is_not_blamed_for_another_failure() -> None:
    spec = replace(MANY, inputs=("/w/x.pt",))
    found = judge(
        spec, exited(crash("ModuleNotFoundError: No module named 'x'")), diagnose_run, lambda p: "is truncated"
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
def test_the_verdict_names_the_layer_that_counted(source: str, reason: str) -> None:
    found = verdict(TrialResult(layer="step", steps=3, step_source=source))
    assert (found.outcome, found.layer, found.reason) == (Outcome.PASS, source, reason)


def test_where_it_ran_is_said() -> None:
    result = TrialResult(layer="step", steps=3, step_source="optimizer")
    assert verdict(result, replace(MANY, trial_gpus=4)).reason == "3 optimizer steps ran on 4 GPUs"
    command = replace(MANY, command="python small.py")
    assert verdict(result, command).reason == "3 optimizer steps ran on one GPU by --prerun-command"


def test_a_trial_with_all_the_gpus_of_the_job_is_its_proof() -> None:
    whole = replace(MANY, gpus=8, nodes=1, trial_gpus=8)
    oom = crash("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity")
    assert verdict(exited(oom), whole).outcome is Outcome.FAIL
    assert verdict(exited(oom), replace(whole, trial_gpus=2)).outcome is Outcome.INCONCLUSIVE


def test_a_traceback_before_the_time_ran_out_is_mentioned_but_proves_nothing() -> None:
    logs = (LogTail(name="output", text=crash("ValueError: x")),)
    found = verdict(TrialResult(layer="timeout", seconds=900.0, crashed=True, logs=logs))
    assert (found.outcome, found.layer) == (Outcome.INCONCLUSIVE, "timeout")
    assert found.reason == "no optimizer step within 900 s; a traceback was printed: ValueError: x"


def test_a_crash_in_a_file_that_the_script_wrote_its_output_to_is_found() -> None:
    logs = (
        LogTail(name="output", text=""),
        LogTail(name="/w/train.log", text=crash("NameError: name 'x' is not defined")),
    )
    found = verdict(replace(exited("", 1), logs=logs, crashed=True))
    assert (found.outcome, found.reason) == (Outcome.FAIL, "train.py:7: NameError: name 'x' is not defined")


def test_data_on_a_disk_of_the_node_itself_proves_nothing_unless_the_job_works_there() -> None:
    text = crash("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/u/data/train.bin'")
    assert verdict(exited(text), ONE).outcome is Outcome.INCONCLUSIVE
    assert verdict(exited(text), replace(ONE, chdir="/tmp/u/work")).outcome is Outcome.FAIL


def test_commands_that_were_left_out_are_said_when_the_script_ends_well() -> None:
    found = verdict(exited("done\n", 0, refused=("sbatch next.sh",)))
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
def test_what_a_library_refuses_where_it_forms_groups_is_not_proven(file: str, kind: str, outcome: Outcome) -> None:
    text = crash(f"{kind}: not so", file=f"/v/lib/python3.12/site-packages/{file}")
    assert verdict(exited(text)).outcome is outcome
    assert verdict(exited(text), ONE).outcome is Outcome.FAIL


def test_a_missing_file_of_another_rank_proves_nothing_though_it_is_missing() -> None:
    text = crash("FileNotFoundError: [Errno 2] No such file or directory: '/w/out/rank1.pt'", "x = open(name)")
    found = verdict(exited(text), inspect=lambda path: "does not exist")
    assert found.outcome is Outcome.INCONCLUSIVE
    assert verdict(exited(text), ONE, lambda path: "does not exist").outcome is Outcome.FAIL


def test_a_check_whose_source_cannot_be_read_fails_only_a_job_of_one_gpu() -> None:
    result = exited(crash("AssertionError", "assert found == wanted"))
    of_many = judge(MANY, result, diagnose_run, lambda path: None, lambda path: None)
    of_one = judge(ONE, result, diagnose_run, lambda path: None, lambda path: None)
    assert (of_many.outcome, of_one.outcome) == (Outcome.INCONCLUSIVE, Outcome.FAIL)


# (text, outcome for a job that can start, the same for one that cannot start yet)
@pytest.mark.parametrize(
    ("text", "now", "later"),
    [
        (crash("FileNotFoundError: [Errno 2] No such file or directory: 'd.txt'", "open(p)"), "fail", "inconclusive"),
        (crash("ModuleNotFoundError: No module named 'mine'", "import mine"), "fail", "inconclusive"),
        (crash("ValueError: num_samples should be a positive integer value", "load(p)"), "fail", "inconclusive"),
        (crash("AttributeError: 'NoneType' object has no attribute 'shape'", "img.shape"), "fail", "inconclusive"),
        (crash("RuntimeError: size mismatch for fc.weight", "m.load_state_dict(s)"), "fail", "inconclusive"),
        ("/w/job: line 3: python: command not found\n", "fail", "inconclusive"),
        ("cat: data.txt: No such file or directory\n", "fail", "inconclusive"),
        (crash("NameError: name 'modle' is not defined"), "fail", "fail"),
        (crash("AttributeError: 'Net' object has no attribute 'foward'", "net.foward(x)"), "fail", "fail"),
        (crash("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), "fail", "fail"),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --lrr 3\n", "fail", "fail"),
    ],
)
def test_what_is_missing_now_proves_nothing_about_a_job_that_starts_later(text: str, now: str, later: str) -> None:
    broken = lambda path: "is empty"  # noqa: E731 - whatever our own read says of it
    delayed = replace(ONE, delay="the job is held (--hold)", inputs=("/w/d.txt",))
    found = [verdict(exited(text), ONE), verdict(exited(text), delayed, broken)]
    assert [one.outcome.value for one in found] == [now, later]
    assert found[1].input_path == ""
    if later == "inconclusive":
        assert found[1].reason.startswith("the job is held (--hold), and what is missing now may be there when it ")


@pytest.mark.parametrize(
    ("result", "lasting"),
    [
        (exited(crash("AssertionError: world size 1 is not divisible by tensor parallel size 8")), True),
        (exited(crash("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0")), True),
        (exited(crash("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='h', port=443): Max")), False),
        (exited("ERROR: cannot read the force field\n", 3), False),
        (TrialResult(layer="timeout", seconds=900.0), True),
        (TrialResult(layer="no_training", seconds=40.0, no_training="it only sleeps"), True),
        (TrialResult(layer="supervisor", error="no space left"), False),
        (TrialResult(layer="supervisor", error="would touch x", touched=("x",)), True),
    ],
)
def test_a_doubt_lasts_where_another_trial_would_end_alike(result: TrialResult, lasting: bool) -> None:
    found = verdict(result)
    assert (found.outcome, found.lasting) == (Outcome.INCONCLUSIVE, lasting), found
