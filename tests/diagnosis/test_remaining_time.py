"""How much time a run still needed when it reached its time limit, from the end of its output."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.log_progress import ShownProgress, find_remaining, find_shown_progress
from slurmwrap.diagnosis.log_rows import read_log
from slurmwrap.model.evidence import Evidence, LogTail

OUTER = "Epochs:  30%|###| 3/10 [1:00:00<2:20:00, 1200s/it]\n"


@pytest.mark.parametrize(
    ("text", "run_s", "left"),
    [
        ("  6%|# | 308/5000 [01:03<16:18,  4.80it/s]\n", 60, 978),
        ("Epoch 3/10:  45%|#| 450/1000 [00:10<00:12, 44it/s]\n", 100, 12 + 7 * 22),
        (OUTER + "  45%|###| 450/1000 [00:10<00:12, 44it/s]\n", 3610, 8400),
        ("step 100/1000 loss 1\n", 60, 540),
        ("Epoch 3/10 loss 1\n", 60, 240),
        ("eta: 14:44:45  loss: 0.4\n", 60, 53085),
        ("eta: 1 day, 4:00:00\n", 60, 100800),
        ("step 5 loss 0.1\n", 60, None),
        ("Downloading: 10%|#| 1/10 [00:10<01:30, 1it/s]\n", 60, None),
        ("  6%|# | 308/5000 [01:03<?, ?it/s]\n", 60, None),
        ("step 100/1000 loss 1\n", None, None),
        ("", 60, None),
        # Bars of one epoch each, and nothing that says how many there are.
        ("Epoch 3:  45%|#| 450/1000 [00:10<00:12, 44it/s]\n", 14, None),
        ("  45%|#| 450/1000 [00:10<00:12, 44it/s]\n", 100, None),
    ],
)
def test_the_remaining_time_is_read_from_progress_lines(text: str, run_s: float | None, left: float | None) -> None:
    assert find_remaining([read_log(LogTail(name="out", text=text))], run_s) == left


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("  6%|# | 308/5000 [01:03<16:18,  4.80it/s]\n", ShownProgress(done=308, total=5000, left_s=978)),
        (
            "Epoch 3/10:  45%|#| 450/1000 [00:10<00:12, 44it/s]\n",
            ShownProgress(done=2, total=10, unit="epoch", left_s=12 + 7 * 22),
        ),
        (OUTER, ShownProgress(done=3, total=10, unit="epoch", left_s=8400)),
        ("step 100/1000 loss 1\n", ShownProgress(done=100, total=1000, left_s=540)),
        ("eta: 1:00:00 step 100/1000\n", ShownProgress(done=100, total=1000, left_s=3600)),
        ("eta: 1:00:00\n", ShownProgress(left_s=3600)),
        ("Epoch 1/10 loss 1\n", None),
    ],
)
def test_the_completed_part_is_read_too(text: str, shown: ShownProgress | None) -> None:
    assert find_shown_progress([read_log(LogTail(name="out", text=text))], 60) == shown


def test_the_completed_share_of_a_resumed_run_gives_no_remaining_time() -> None:
    log = read_log(LogTail(name="out", text="step 100/1000 loss 1\n"))
    assert find_remaining([log], 60, resumed=True) is None


def test_only_a_run_that_reached_its_time_limit_has_a_remaining_time() -> None:
    log = LogTail(name="out", text="  6%|# | 308/5000 [01:03<16:18,  4.80it/s]\n")
    found = {
        state: diagnose_run(Evidence(state=state, run_s=66, logs=(log,))).remaining_s for state in ("TIMEOUT", "FAILED")
    }
    assert found == {"TIMEOUT": 978.0, "FAILED": None}
