"""What new output of a running job shows: losses, ranks that ended, waits."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.running_output import OutputSigns, read_loss, read_signs
from slurmwrap.model.evidence import LogTail

TRACEBACK = """[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 88, in <module>
[rank3]: KeyError: 'image'
"""
STEPS = "".join(f"step {number} loss 2.5\n" for number in range(5))


def signs(*texts: str) -> OutputSigns:
    return read_signs(LogTail(name=f"{number}.out", text=text) for number, text in enumerate(texts))


@pytest.mark.parametrize(
    ("row", "finite"),
    [
        ("{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-5, 'epoch': 0.1}", False),
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-5, 'epoch': 0.1}", False),
        ("{'loss': 0.0, 'grad_norm': 0.1, 'learning_rate': 1e-5, 'epoch': 0.1}", True),
        ("{'eval_loss': nan, 'eval_runtime': 3.2}", None),
        (" iteration 100/ 5000 | lm loss: 6.3E+00 | loss scale: 65536.0 | grad norm: inf | nan iterations: 0 |", True),
        (" iteration 100/ 5000 | lm loss: nan | loss scale: 1.0 | grad norm: nan |", False),
        ("      3/100      4.51G        nan        nan        nan        142        640: 45%|####| 3/4", False),
        ("      3/100      4.51G      1.123        nan        0.9        142        640: 45%|####| 3/4", None),
        ("Epoch 3/10 - loss: 0.5 - accuracy: 0.1 - val_loss: nan", True),
        ("step 10: train loss nan, val loss nan", False),
        ("Validation loss: nan", None),
        ("    valid: 100%|##########| 1/1 [00:00<00:00, 12.79it/s, loss=nan, metrics={'acc': 0.0}]", None),
        ("    epoch 1: 100%|##########| 4/4 [00:00<00:00,  9.40it/s, loss=nan, metrics={'acc': 0.1833}]", False),
        ("Train: 5 [ 100/1251 (  8%)]  Loss: nan (6.91)  Time: 0.3s", False),
        ("epoch 001:  100 / 1000 loss=inf, nll_loss=nan, ppl=nan, loss_scale=128", False),
        ("iter: 20  total_loss: 2.3  loss_mask: nan  loss_box_reg: 0.3", True),
        ("loss_mask: nan, loss_box: 0.3", None),
        ('{"step": 100, "loss": NaN}', False),
        ("epoch 3 it 1200 d_loss nan g_loss nan gp nan", False),
        ("iter  4200 | gen nan | disc nan | lr 2.0e-04", False),
        ("| fire hydrant   | nan | 0.000 |", None),
        ("loss_scale: inf", None),
    ],
)
def test_whether_the_training_loss_of_a_row_is_finite(row: str, finite: bool | None) -> None:
    assert read_loss(row) is finite


def test_rows_of_several_ranks_count_once_and_a_finite_loss_ends_the_count() -> None:
    step = "".join(f"{rank}: [rank {rank}] step 7 loss nan\n" for rank in range(8))
    assert signs(step).nan == 1
    found = signs("step 1 loss nan\nstep 2 loss 2.5\nstep 3 loss nan\nval_loss: nan\nstep 4 loss inf\n")
    assert (found.nan, found.finite, found.nan_row) == (2, True, "step 4 loss inf")


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        (TRACEBACK, ("3",)),
        ("srun: error: n2: task 5: Exited with exit code 1\n", ("5",)),
        ("srun: error: n2: tasks 0-2,7: Killed\n", ("0", "1", "2", "7")),
        ("srun: error: n2: task 5: Exited with exit code 0\n", ()),
        (TRACEBACK + "step 9 loss 2.5\n", ("3",)),  # it may be another rank's last row
        (TRACEBACK + STEPS.replace("step ", "step 1"), ()),
        ("Exception ignored in: <function x>\n" + TRACEBACK.replace("[rank3]: ", ""), ()),
    ],
)
def test_ranks_that_ended_with_an_error(text: str, ended: tuple[str, ...]) -> None:
    assert signs(STEPS + text).ended == ended


def test_what_the_job_does_after_a_rank_ended() -> None:
    found = signs(STEPS + TRACEBACK + "INFO agent: 2/3 attempts left; will restart worker group\nstaging the data\n")
    assert (found.restarted, found.after, found.went_on) == (True, 1, 0)


@pytest.mark.parametrize(
    ("last", "waits"),
    [
        ("Saving checkpoint to /out", True),
        ("waiting for a license", True),
        ("Training finished", True),
        ("step 9 loss 2.5", False),
        ("step 9 loss 2.5 (saved best)", False),
    ],
)
def test_a_last_row_that_says_what_the_job_waits_for(last: str, waits: bool) -> None:
    assert bool(signs(f"{STEPS}{last}\n").waits) is waits


def test_no_output_shows_nothing() -> None:
    assert signs() == OutputSigns() and signs("").rows == 0
