"""Completed jobs: an error at the end of the output is found, and a sound run is not reported as one with an error.

tests/data/diagnosis/completed contains output of programs that were run for this test; the texts below are handwritten.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import Diagnosis, Evidence, LogTail

DATA = Path(__file__).parents[1] / "data" / "diagnosis"
RUNS = sorted((DATA / "completed").glob("*.log"))
STEPS = "".join(f"step {number}/900 loss {3 - number / 1000:.3f}\n" for number in range(1, 30))
NAN = "".join(f"step {number}/900 loss nan\n" for number in range(30, 40))
MAIN = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 40, in <module>\n    main()\n'
CRASH = MAIN + "  File \"/home/ada/model.py\", line 7, in forward\n    x.shpae\nAttributeError: no attribute 'shpae'\n"
CAUGHT = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 31, in fetch\n    get()\nOSError: no\n'
RANKS = "".join(
    f"[rank{rank}]: {line}\n" for rank in (0, 1) for line in [*CRASH.splitlines()[:3], *CRASH.splitlines()[3:]]
)
ELASTIC = (
    "E1122 14:00:01.123 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0\n"
    'Traceback (most recent call last):\n  File "/opt/venv/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-22_14:00:01\n  exitcode  : 1 (pid: 4711)\n"
    f"{'=' * 60}\n"
)
HF = "{'loss': 0.5, 'grad_norm': nan, 'epoch': 2.9}\n"
SOUND = {
    "warnings and a deprecation at the end": STEPS + "/venv/x.py:3: FutureWarning: `torch.cuda.amp` is deprecated\n",
    "a handled retry in the middle": STEPS + "ERROR:root:fetch failed, retrying\n" + CAUGHT + STEPS + "done\n",
    "a handled retry at the end": STEPS + "WARNING: upload failed, will retry later\n" + CAUGHT + "done\n",
    "print_exc of a function at the end": STEPS + CAUGHT,
    "training goes on after an uncaught one of another program": CRASH + STEPS,
    "an uncaught one, then a program that says that it trained": STEPS + CRASH + "Training complete. Saved model.\n",
    "metrics named Error": STEPS + "Top-1 Error: 23.68\nword error rate 0.08\n" + "Error 0.081 at epoch 3\n",
    "NCCL's warning at exit": STEPS
    + "[rank0]:[W1122 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed before destruct\n",
    "wandb's last words": STEPS + "wandb: ERROR Failed to sample metric: Not Supported\nwandb: Synced 5 files\n",
    "a bar and Error in its postfix": " 99%|#| 99/100 [00:10<00:01, 9it/s, Error=0.2]\r100%|#| 100/100 [00:10<00:00]\n",
    "a worker's traceback at shutdown": STEPS
    + "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n"
    + 'Traceback (most recent call last):\n  File "/venv/torch/utils/data/dataloader.py", line 15, in __del__\n'
    + "AssertionError: can only test a child process\n",
    "a spawned worker at shutdown": STEPS
    + 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    + '  File "/usr/lib/python3.12/multiprocessing/spawn.py", line 122, in spawn_main\nEOFError\n',
    "a thread": STEPS
    + 'Exception in thread Thread-3:\nTraceback (most recent call last):\n  File "/usr/lib/python3.12/threading.py", '
    + "line 1016, in _bootstrap_inner\n    self.run()\nRuntimeError: pin memory thread exited\n",
    "NaN of a metric beside a finite loss": "".join(
        f"step {n} loss: 0.5 val_loss: nan kl_loss: nan grad_norm: nan\n" for n in range(9)
    ),
    "NaN of grad_norm in a dict": HF * 5 + "{'train_runtime': 10.0, 'train_loss': 0.5}\n",
    "NaN that was got over": STEPS + NAN + STEPS,
    "NaN in the last two lines": STEPS + NAN[: NAN.index("step 32")],
    "a loss of NaN that is not the end of a short run": "loss = nan, skipping step\nmodel saved\n",
    "a best loss of inf": "".join(f"epoch {n} loss 0.4\nbest_loss: inf\n" for n in range(9)),
    "a table of losses that are not there": "step 9 loss 0.5\n" + "loss nan\n" * 5,
    "validation without samples": STEPS + "".join(f"epoch {n} val loss: nan\n" for n in range(9)),
    "torchrun that was stopped": STEPS
    + 'Traceback (most recent call last):\n  File "/opt/venv/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 47 got signal: 15\n",
    "tear-down after the end": STEPS
    + "Training complete.\n"
    + MAIN
    + "torch.distributed.DistBackendError: NCCL error: remote process exited\n",
    "a trial of a study": STEPS + "[W 2026-11-22] Trial 3 failed\n" + CAUGHT + "Best trial: 7, value 0.1\n",
    "text about tracebacks": STEPS + "See the Traceback (most recent call last) in the docs for ValueError.\ndone\n",
    "side commands of the script": STEPS + "train.sbatch: line 9: mail: command not found\ncp: cannot stat 'x'\n",
}
ERRORS = {
    "alone": (CRASH, "traceback_from_crash"),
    "behind echo": (STEPS + CRASH + "job 81 finished at Sun Nov 22 14:00:00 UTC 2026\n", "traceback_from_crash"),
    "of all ranks, then torchrun's": (STEPS + RANKS + ELASTIC + "done\n", "traceback_from_crash"),
    "with a bar drawn once more": (STEPS + CRASH + "  5%|#| 5/100 [00:01<00:19, 5it/s]\n", "traceback_from_crash"),
    "a CUDA error with its hints": (
        STEPS + MAIN + "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be "
        "asynchronously reported\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n\n",
        "cuda_failure",
    ),
    "an option": (
        "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr 1\ndone\n",
        "semantic_error",
    ),
    "no file": (
        "python: can't open file '/home/ada/tran.py': [Errno 2] No such file or directory\nend\n",
        "incorrect_inputs",
    ),
    "syntax": (
        '  File "/home/ada/train.py", line 3\n    x = (\n        ^\nSyntaxError: \'(\' was never closed\n',
        "syntax_error",
    ),
    "NaN": (STEPS + NAN + "Training finished\n", "model_diverged"),
    "NaN in a dict": ("".join(f"{{'loss': nan, 'epoch': {n}}}\n" for n in range(4)), "model_diverged"),
    "NaN in the two lines of a short run": ("step 1/2 loss nan\nstep 2/2 loss nan\n\n", "model_diverged"),
    "NaN in the only loss, which ends the output": ("WARNING: overflow\nloss = nan, skipping step\n", "model_diverged"),
    "NaN in a bar": ("".join(f"\r {n}%|#| {n}/99 [00:0{n}<00:09, loss=nan]" for n in range(5)), "model_diverged"),
}  # fmt: skip


def diagnose_completed(*texts: str) -> Diagnosis:
    logs = tuple(LogTail(name=f"out{number}", text=text) for number, text in enumerate(texts))
    return diagnose_run(Evidence(state="COMPLETED", exit_code=0, logs=logs))


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_run_is_a_success_whatever_it_printed(name: str) -> None:
    assert diagnose_completed(SOUND[name]).category == "success"


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_at_the_end_gives_completed_with_error(name: str) -> None:
    text, category = ERRORS[name]
    found = diagnose_completed(text)
    assert (found.category, found.error, found.decision) == ("completed_with_error", category, "none")


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_recorded_output_of_real_programs_is_classified(path: Path) -> None:
    expected = "success" if path.stem.startswith("sound") else "completed_with_error"
    assert diagnose_completed(path.read_text(encoding="utf-8")).category == expected


def test_most_labelled_crashes_are_found_before_a_final_echo() -> None:
    rows = [json.loads(line) for line in (DATA / "labelled.jsonl").read_text(encoding="utf-8").splitlines()]
    crashes = [row for row in rows if row["category"] == "traceback_from_crash"]
    found = [diagnose_completed(row["log"] + "\ndone\n").category for row in crashes]
    assert found.count("completed_with_error") >= len(crashes) // 2


def test_the_advice_names_the_line_in_the_users_own_code() -> None:
    found = diagnose_completed(STEPS + CRASH)
    assert (found.advice, found.evidence[0].line, found.step) == ("Line 7 of model.py: AttributeError.", 35, 29)


@pytest.mark.parametrize(
    ("stdout", "stderr", "category"),
    [
        (STEPS, CRASH, "completed_with_error"),
        (STEPS + "Training complete.\n", CRASH, "success"),  # the order of lines in two files is unknown
        ("step 900/900 loss 0.1\n", CRASH, "success"),
        (STEPS, MAIN + "ImportError: no flash_attn\n", "success"),
        ("", MAIN + "ImportError: no flash_attn\n", "completed_with_error"),
    ],
)
def test_an_error_in_stderr_counts_only_if_stdout_does_not_contradict(stdout: str, stderr: str, category: str) -> None:
    assert diagnose_completed(stdout, stderr).category == category


def test_a_step_that_slurm_recorded_as_failed_is_a_failure() -> None:
    log = LogTail(name="out", text=STEPS + CRASH)
    found = diagnose_run(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=1, logs=(log,)))
    assert found.category == "traceback_from_crash"
