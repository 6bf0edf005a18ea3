"""The files that the injected step counter writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.inject.slurmwrap_counter import RECORD
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import step_detection


def test_the_record_of_the_step_counter_is_read(tmp_path: Path) -> None:
    (tmp_path / "12").write_text(RECORD % (3, "optimizer", 10.25, 11.25, 512, True))
    found = step_detection.read_steps(str(tmp_path))
    assert found == StepReading(count=3, source="optimizer", first=10.25, last=11.25, gpu_mem_mib=512, parked=True)
    assert found.per_s == 2.0


def test_of_several_processes_the_parked_one_is_used(tmp_path: Path) -> None:
    (tmp_path / "1").write_text(RECORD % (9, "optimizer", 1, 2, 0, False))
    (tmp_path / "2").write_text(RECORD % (3, "optimizer", 1, 2, 0, True))
    (tmp_path / "journal").write_text("start 1\n")
    assert step_detection.read_steps(str(tmp_path)).count == 3


@pytest.mark.parametrize("text", ["", "3", "a b c d e f", "\0" * 69])
def test_an_invalid_record_gives_no_steps(tmp_path: Path, text: str) -> None:
    (tmp_path / "1").write_text(text)
    assert step_detection.read_steps(str(tmp_path)) == StepReading()
    assert step_detection.read_steps(str(tmp_path / "none")) == StepReading()


def test_the_last_python_process_decides_whether_the_program_crashed(tmp_path: Path) -> None:
    assert not step_detection.has_last_python_crashed(str(tmp_path))
    (tmp_path / "journal").write_text("start 1\ncrash 1\n")
    assert step_detection.has_last_python_crashed(str(tmp_path))
    (tmp_path / "journal").write_text("start 1\ncrash 1\nstart 2\n")
    assert not step_detection.has_last_python_crashed(str(tmp_path))


def test_a_better_step_source_takes_precedence_over_a_larger_number(tmp_path: Path) -> None:
    (tmp_path / "1").write_text(RECORD % (900, "dataloader", 1, 2, 0, False))
    (tmp_path / "2").write_text(RECORD % (2, "optimizer", 1, 2, 0, False))
    found = step_detection.read_steps(str(tmp_path))
    assert (found.source, found.steps, found.exact) == ("optimizer", 2, True)
    (tmp_path / "2").unlink()
    found = step_detection.read_steps(str(tmp_path))
    assert (found.source, found.count, found.steps, found.exact) == ("dataloader", 900, 0, False)


def test_the_model_size_of_the_counting_process_is_read(tmp_path: Path) -> None:
    for name, count, model in (("1", 5, "bad"), ("2", 9, f"{3 << 20} {1 << 20} 8")):
        (tmp_path / name).write_text(RECORD % (count, "optimizer", 1, 2, 0, False))
        (tmp_path / f"{name}.model").write_text(model)
    found = step_detection.read_steps(str(tmp_path))
    assert (found.model_mib, found.largest_tensor_mib, found.world) == (3.0, 1.0, 8)
    (tmp_path / "2").unlink()
    assert step_detection.read_steps(str(tmp_path)).model_mib is None
