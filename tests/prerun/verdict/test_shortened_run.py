"""Failures after the steps of a pre-run, in the words of real software: the job's own error, or one of its few batches."""

# ruff: noqa: E501  (messages of software are not wrapped)

from __future__ import annotations

import re

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.trial_result import Rehearsal, TrialResult
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

SITE = "/home/u/venv/lib/python3.11/site-packages"


def judge_log(text: str, source: str = "", *, gpus: int = 4, **fields: object) -> Verdict:
    """The verdict of a trial whose rehearsal ended with this output. `source`: the text of /w/train.py."""
    spec = TrialSpec(trial_dir="/t", script="/t/script", script_name="train.sbatch", chdir="/w", gpus=gpus)
    values: dict[str, object] = {
        "layer": "exit",
        "exit_code": 1,
        "steps": 3,
        "step_source": "optimizer",
        "seconds": 20.0,
        "crashed": "Traceback" in text,
        "rehearsal": Rehearsal(endings=3, next_epoch=True),
        **fields,
    }
    result = TrialResult(logs=(LogTail(name="output", text=text),), **values)  # type: ignore[arg-type]
    return judge(spec, result, diagnose_run, inspect=lambda path: None, read={"/w/train.py": source}.get)


def crash(error: str, code: str = "main()", inner: str = "") -> str:
    """A traceback whose last own line is line 3 of /w/train.py; `inner`: a file of a library that raised the error."""
    last = f'  File "{SITE}/{inner}", line 120, in call\n    return do(x)\n' if inner else ""
    return f'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n    {code}\n{last}{error}\n'


OWN_ERRORS = {
    "a name that is set nowhere": (
        crash("NameError: name 'acuracy' is not defined", "print(acuracy)"),
        "def main():\n    accuracy = 1\n    print(acuracy)\n",
    ),
    "an attribute that is set nowhere": (
        crash("AttributeError: 'Namespace' object has no attribute 'out_dir'", "save(args.out_dir)"),
        "import x\nargs = parse()\nsave(args.out_dir)\n",
    ),
    "a key that occurs nowhere else": (
        crash("KeyError: 'modle'", "model.load_state_dict(saved['modle'])"),
        "import x\nsave({'model': 1})\nmodel.load_state_dict(saved['modle'])\n",
    ),
    "a checkpoint in a directory that nobody creates": (
        crash(
            "RuntimeError: Parent directory /w/ckpt does not exist.",
            "torch.save(model, path)",
            "torch/serialization.py",
        ),
        "",
    ),
    "results in a directory that nobody creates": (
        crash(
            "FileNotFoundError: [Errno 2] No such file or directory: 'results/final.json'",
            "with open(path, 'w') as out:",
        ),
        "",
    ),
    "a test set at a wrong path": (
        crash("FileNotFoundError: [Errno 2] No such file or directory: '/data/tset/images'", "os.listdir(root)"),
        "",
    ),
    "an argument that a scheduler does not take": (
        crash("TypeError: LRScheduler.step() got an unexpected keyword argument 'metric'", "scheduler.step(metric=1)"),
        "",
    ),
    "a missing argument": (
        crash("TypeError: evaluate() missing 1 required positional argument: 'loader'", "evaluate(model)"),
        "",
    ),
    "shapes inside the model": (
        crash(
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 256x10)",
            "out = model(images)",
            "torch/nn/modules/linear.py",
        ),
        "",
    ),
    "a tensor that needs detach()": (
        crash(
            "RuntimeError: Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
            "out.numpy()",
        ),
        "",
    ),
    "a module that is imported late": (crash("ModuleNotFoundError: No module named 'onnx'", "import onnx"), ""),
    "an option that a later program does not know": (
        "usage: eval.py [-h]\neval.py: error: unrecognized arguments: --chekpoint x\n",
        "",
    ),
    "a name that only a later line sets": (
        crash(
            "UnboundLocalError: cannot access local variable 'stats' where it is not associated with a value",
            "print(stats)",
        ),
        "def main():\n    loss = 1\n    print(stats)\n    stats = evaluate()\n",
    ),
    "a name that another function sets": (
        crash("NameError: name 'epoch' is not defined", "print(epoch)"),
        "def save():\n    other = 1\n    print(epoch)\ndef main():\n    epoch = 1\n",
    ),
    "a name that an argument of that name follows": (
        crash("NameError: name 'found' is not defined", "log(metrics=found, step=1)"),
        "def main():\n    total = 1\n    log(metrics=found, step=1)\n",
    ),
    "a list that append() made None": (
        crash("AttributeError: 'NoneType' object has no attribute 'append'", "losses = losses.append(loss)"),
        "losses = []\nfor batch in loader:\n    losses = losses.append(loss)\n",
    ),
    "None instead of a call": (
        crash("TypeError: cannot unpack non-iterable NoneType object", "loss, found = None"),
        "def main():\n    loss = 1\n    loss, found = None\n",
    ),
    "a name that hides a function in one branch": (
        crash(
            "UnboundLocalError: cannot access local variable 'sample' where it is not associated with a value",
            "x = sample(x)",
        ),
        "def main(): \n  if self.split: sample = sample(y)\n  else: x = sample(x)\n",
    ),
    "a list that append() made None beside a value that begins as None": (
        crash("AttributeError: 'NoneType' object has no attribute 'append'", "values = values.append(metric)"),
        "metric, values = None, []\nmetric = compute()\nvalues = values.append(metric)\n",
    ),
    "a batch that has fewer parts": (
        crash("ValueError: not enough values to unpack (expected 3, got 2)", "for data, target, _ in loader:"),
        "",
    ),
    "a tuple that is too short": (
        crash("IndexError: tuple index out of range", "os.path.splitext(path)[10]"),
        "import os\n\nos.path.splitext(path)[10]\n",
    ),
    "a dimension that a tensor does not have": (
        crash(
            "IndexError: Dimension out of range (expected to be in range of [-2, 1], but got 4)",
            "torch.max(outputs, 4)",
        ),
        "",
    ),
    "a call without its argument": (
        crash("TypeError: len() takes exactly one argument (0 given)", "total / len()"),
        "",
    ),
    "a sum of a text and a number": (
        crash('TypeError: can only concatenate str (not "int") to str', "total += correct"),
        "",
    ),
    "an error behind an unfinished progress bar": (
        "[Epoch 1/2] [Batch 2/2] ETA: 0:00:01"
        + crash("TypeError: save() missing 1 required positional argument: 'f'", "save()"),
        "",
    ),
    "a format that the value does not have": (
        crash("ValueError: Unknown format code 'd' for object of type 'float'", "print(f'{loss:d}')"),
        "",
    ),
}
FEW_BATCHES = {
    "a division by the number of batches": (crash("ZeroDivisionError: float division by zero", "total / seen"), ""),
    "an empty list": (crash("ValueError: max() arg is an empty sequence", "best = max(scores)"), ""),
    "one class": (
        crash(
            "ValueError: Only one class present in y_true. ROC AUC score is not defined in that case.",
            "roc_auc_score(y, p)",
        ),
        "",
    ),
    "fewer predictions than labels": (
        crash(
            "ValueError: Found input variables with inconsistent numbers of samples: [1000, 16]",
            "f1_score(labels, found)",
        ),
        "",
    ),
    "predictions of another length": (
        crash("ValueError: Got 16 predictions and 10784 features.", "postprocess(predictions, features)"),
        "",
    ),
    "a name that a later batch sets": (
        crash(
            "UnboundLocalError: cannot access local variable 'average' where it is not associated with a value",
            "print(average)",
        ),
        "def main():\n    if step % 100 == 0: average = 1\n    print(average)\n",
    ),
    "a name that a loop sets": (
        crash(
            "UnboundLocalError: cannot access local variable 'average' where it is not associated with a value",
            "print(average)",
        ),
        "def main():\n    for step in steps: average = 1\n    print(average)\n",
    ),
    "an attribute that a later epoch sets": (
        crash("AttributeError: 'Trainer' object has no attribute 'best'", "print(self.best)"),
        "def better(self): self.best = 1\n\nprint(self.best)\n",
    ),
    "a value that is still None": (
        crash("TypeError: unsupported format string passed to NoneType.__format__", "print(f'{best:.3f}')"),
        "best = None\nif score > 0: best = score\nprint(f'{best:.3f}')\n",
    ),
    "an attribute that is still None": (
        crash("AttributeError: 'NoneType' object has no attribute 'items'", "for name in self.best.items():"),
        "def start(self): self.best = None\ndef better(self): self.best = {}\nfor name in self.best.items():\n    pass\n",
    ),
    "a key that a later batch adds": (
        crash("KeyError: 'val_loss'", "print(history['val_loss'])"),
        "if step % 100 == 0: history['val_loss'] = 1\n\nprint(history['val_loss'])\n",
    ),
    "a checkpoint that only some epochs write": (
        crash(
            "FileNotFoundError: [Errno 2] No such file or directory: 'out/best_model.pth'",
            "torch.load('out/best_model.pth')",
        ),
        "",
    ),
    "an assertion of the program": (crash("AssertionError", "assert seen == len(dataset)"), ""),
    "a list that is shorter": (crash("IndexError: list index out of range", "history[99]"), ""),
    "a batch that no one handles": (crash("StopIteration", "batch = next(batches)"), ""),
    "tensors of different lengths": (
        crash(
            "RuntimeError: The size of tensor a (16) must match the size of tensor b (1000) at non-singleton dimension 0",
            "p == y",
        ),
        "",
    ),
    "a command that needs results": ("cp: cannot stat 'out/best.pt': No such file or directory\n", ""),
}


@pytest.mark.parametrize("name", OWN_ERRORS)
def test_an_error_that_no_count_can_cause_stops_the_job(name: str) -> None:
    text, source = OWN_ERRORS[name]
    verdict = judge_log(text, source)
    assert verdict.outcome is Outcome.FAIL, verdict.reason
    assert "(after 3 optimizer steps)" in verdict.reason


@pytest.mark.parametrize("name", FEW_BATCHES)
def test_an_error_that_few_batches_may_cause_is_inconclusive(name: str) -> None:
    text, source = FEW_BATCHES[name]
    verdict = judge_log(text, source)
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.reason
    assert verdict.lasting
    assert verdict.reason.startswith("3 optimizer steps ran; what failed after them may not fail in the job, because ")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"exit_code": 0}, "3 optimizer steps ran on one GPU, then the script ran to its end with shortened epochs"),
        (
            {"layer": "step", "exit_code": None, "rehearsal": Rehearsal(endings=2, stopped_by="time")},
            "3 optimizer steps ran on one GPU, then an epoch ended early before its time was up",
        ),
        (
            {"layer": "step", "exit_code": None, "rehearsal": Rehearsal(stopped_by="loop")},
            "3 optimizer steps ran on one GPU, then a loop could not be ended before its epoch ended",
        ),
        (
            {"layer": "supervisor", "exit_code": None, "error": "would touch /w/a", "touched": ("/w/a",)},
            "3 optimizer steps ran on one GPU; the shortened rest was given up: would touch /w/a",
        ),
        (
            {"exit_code": 0, "rehearsal": Rehearsal(endings=2, resumed=True)},
            "3 optimizer steps ran on one GPU, then the script ran to its end with shortened epochs; started again, it resumed",
        ),
    ],
)
def test_a_rehearsal_that_did_not_fail_is_a_pass(fields: dict[str, object], reason: str) -> None:
    verdict = judge_log("epoch 0 done\n", **fields)
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, reason)


def test_a_refused_connection_and_a_killed_process_are_inconclusive() -> None:
    refused = crash(
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.example.org', port=443)", "push()"
    )
    found = judge_log(refused, rehearsal=Rehearsal(refused=("192.0.2.1",)))
    assert (found.outcome, "192.0.2.1" in found.reason) == (Outcome.INCONCLUSIVE, True)
    killed = judge_log("epoch 0\n", exit_code=None, signal=9)
    assert killed.outcome is Outcome.INCONCLUSIVE


def test_later_failures_of_the_script_do_not_hide_the_first_one() -> None:
    first = crash("NameError: name 'epoch_idx' is not defined", "save(epoch_idx)")
    later = crash("FileNotFoundError: [Errno 2] No such file or directory: 'checkpoint.pth.tar'", "torch.load(path)")
    verdict = judge_log(first + later, "def main():\n    epoch = 1\n    save(epoch_idx)\n")
    assert (verdict.outcome, "epoch_idx" in verdict.reason) == (Outcome.FAIL, True)
    chained = f"{later}\nDuring handling of the above exception, another exception occurred:\n\n{first}"
    assert judge_log(chained).outcome is Outcome.INCONCLUSIVE


def test_a_checkpoint_that_was_written_elsewhere_is_the_programs_own_error() -> None:
    text, _ = FEW_BATCHES["a checkpoint that only some epochs write"]
    found = judge_log(text, rehearsal=Rehearsal(written=("/w/runs/best_model.pth",)))
    assert found.outcome is Outcome.FAIL


def test_the_same_errors_within_the_steps_are_judged_as_before() -> None:
    text, source = FEW_BATCHES["a division by the number of batches"]
    verdict = judge_log(text, source, gpus=1, rehearsal=None)
    assert verdict.outcome is Outcome.FAIL
    assert not re.search("after 3", verdict.reason)
