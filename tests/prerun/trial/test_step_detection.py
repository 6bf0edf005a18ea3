"""Signs of training where no step is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial.gpu_sampler import GpuSample
from slurmwrap.prerun.trial.step_detection import TEXT_S, TEXT_TIMES, StepDetector, is_enough
from slurmwrap.prerun.trial.trial_spec import TrialSpec

NOTHING = StepReading()
MANY = TEXT_TIMES * 3


@pytest.fixture
def spec(tmp_path: Path) -> TrialSpec:
    (tmp_path / "steps").mkdir()
    return TrialSpec(trial_dir=str(tmp_path), script="/x", steps=3)


def printed(spec: TrialSpec, steps: int) -> None:
    with Path(spec.output).open("a") as output:
        output.write("".join(f"step {n} loss 0.5\n" for n in range(1, steps + 1)))


def text(count: int) -> StepReading:
    return StepReading(count=count, source="text")


def test_what_was_counted_goes_before_what_was_printed(spec: TrialSpec) -> None:
    signs, counted = StepDetector(spec), StepReading(count=3, source="optimizer")
    printed(spec, 40)
    signs.look(0.0, (), NOTHING)
    assert (signs.shown(counted), signs.shown(NOTHING)) == (counted, text(40))


def test_nothing_is_read_where_steps_are_counted(spec: TrialSpec) -> None:
    signs = StepDetector(spec)
    printed(spec, 40)
    signs.look(0.0, (), StepReading(count=1, source="optimizer"))
    assert signs.text == NOTHING


def test_a_few_backward_passes_give_way_to_printed_steps_and_many_do_not(spec: TrialSpec) -> None:
    signs, few, many = StepDetector(spec), *(StepReading(count=n, source="backward") for n in (5, 500))
    printed(spec, 4)
    signs.look(0.0, (), NOTHING)
    assert (signs.shown(few), signs.shown(many)) == (text(4), many)


def test_printed_steps_end_a_trial_when_its_time_is_up(spec: TrialSpec) -> None:
    signs = StepDetector(spec)
    printed(spec, 2)
    signs.look(0.0, (), NOTHING)
    assert not signs.decided(NOTHING, 1.0, last=True)
    printed(spec, 4)
    signs.look(1.0, (), NOTHING)
    assert signs.decided(NOTHING, 1.0, last=True)


def test_many_printed_steps_end_it_earlier_after_a_while(spec: TrialSpec) -> None:
    signs = StepDetector(spec)
    printed(spec, MANY)
    signs.look(5.0, (), NOTHING)
    assert not signs.decided(NOTHING, 4.0 + TEXT_S, last=False)
    assert signs.decided(NOTHING, 5.0 + TEXT_S, last=False)


def test_printed_steps_end_nothing_early_where_torch_may_still_step(spec: TrialSpec) -> None:
    signs = StepDetector(spec)
    printed(spec, MANY)
    signs.look(0.0, (), NOTHING)
    assert not signs.decided(StepReading(count=1, source="dataloader"), 2 * TEXT_S, last=False)
    Path(spec.step_dir, "torch").touch()
    assert not signs.decided(NOTHING, 2 * TEXT_S, last=False)


def test_a_busy_gpu_is_shown_and_never_enough(spec: TrialSpec) -> None:
    signs = StepDetector(spec)
    signs.look(0.0, (7,), NOTHING)
    busy = [GpuSample(at=float(n), sm=1.0, pids=(7,)) for n in range(50)]
    assert signs.shown(NOTHING, busy) == StepReading(count=50, source="gpu", first=0.0, last=49.0)
    assert not is_enough(signs.shown(NOTHING, busy), 3)


def test_of_a_flood_of_output_the_end_is_read(spec: TrialSpec) -> None:
    signs = StepDetector(spec)
    Path(spec.output).write_bytes(b"x" * (10 << 20) + b"\n")
    printed(spec, 5)
    signs.look(0.0, (), NOTHING)
    assert signs.text == text(5)


def test_no_output_shows_nothing(spec: TrialSpec) -> None:
    signs = StepDetector(spec)
    signs.look(0.0, (), NOTHING)
    assert (signs.text, signs.shown(NOTHING), signs.decided(NOTHING, 1e9, last=True)) == (NOTHING, NOTHING, False)


@pytest.mark.parametrize(
    ("source", "count", "answer"),
    [
        *(("optimizer", 3, True), ("optimizer", 2, False), ("explicit", 3, True), ("text", 3, True), ("", 0, False)),
        *(("backward", 99, False), ("backward", 100, True), ("dataloader", 100, True), ("gpu", 1000, False)),
    ],
)
def test_enough_depends_on_what_was_counted(source: str, count: int, answer: bool) -> None:
    assert is_enough(StepReading(count=count, source=source), 3) is answer
