"""Signs of training in a program whose steps are not counted."""

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


def print_steps(spec: TrialSpec, steps: int) -> None:
    with Path(spec.output).open("a") as output:
        output.write("".join(f"step {n} loss 0.5\n" for n in range(1, steps + 1)))


def text_reading(count: int) -> StepReading:
    return StepReading(count=count, source="text")


def test_counted_steps_take_precedence_over_printed_steps(spec: TrialSpec) -> None:
    detector, counted = StepDetector(spec), StepReading(count=3, source="optimizer")
    print_steps(spec, 40)
    detector.look(0.0, (), NOTHING)
    assert (detector.shown(counted), detector.shown(NOTHING)) == (counted, text_reading(40))


def test_output_is_not_read_if_steps_are_counted(spec: TrialSpec) -> None:
    detector = StepDetector(spec)
    print_steps(spec, 40)
    detector.look(0.0, (), StepReading(count=1, source="optimizer"))
    assert detector.text == NOTHING


def test_printed_steps_take_precedence_over_few_backward_passes_only(spec: TrialSpec) -> None:
    detector, few, many = StepDetector(spec), *(StepReading(count=n, source="backward") for n in (5, 500))
    print_steps(spec, 4)
    detector.look(0.0, (), NOTHING)
    assert (detector.shown(few), detector.shown(many)) == (text_reading(4), many)


def test_printed_steps_end_a_trial_when_its_time_is_up(spec: TrialSpec) -> None:
    detector = StepDetector(spec)
    print_steps(spec, 2)
    detector.look(0.0, (), NOTHING)
    assert not detector.decided(NOTHING, 1.0, last=True)
    print_steps(spec, 4)
    detector.look(1.0, (), NOTHING)
    assert detector.decided(NOTHING, 1.0, last=True)


def test_many_printed_steps_end_a_trial_early(spec: TrialSpec) -> None:
    detector = StepDetector(spec)
    print_steps(spec, MANY)
    detector.look(5.0, (), NOTHING)
    assert not detector.decided(NOTHING, 4.0 + TEXT_S, last=False)
    assert detector.decided(NOTHING, 5.0 + TEXT_S, last=False)


def test_printed_steps_do_not_end_a_trial_early_if_torch_may_still_step(spec: TrialSpec) -> None:
    detector = StepDetector(spec)
    print_steps(spec, MANY)
    detector.look(0.0, (), NOTHING)
    assert not detector.decided(StepReading(count=1, source="dataloader"), 2 * TEXT_S, last=False)
    Path(spec.step_dir, "torch").touch()
    assert not detector.decided(NOTHING, 2 * TEXT_S, last=False)


def test_a_busy_gpu_is_reported_but_never_enough(spec: TrialSpec) -> None:
    detector = StepDetector(spec)
    detector.look(0.0, (7,), NOTHING)
    busy = [GpuSample(at=float(n), sm=1.0, pids=(7,)) for n in range(50)]
    assert detector.shown(NOTHING, busy) == StepReading(count=50, source="gpu", first=0.0, last=49.0)
    assert not is_enough(detector.shown(NOTHING, busy), 3)


def test_only_the_end_of_a_large_output_is_read(spec: TrialSpec) -> None:
    detector = StepDetector(spec)
    Path(spec.output).write_bytes(b"x" * (10 << 20) + b"\n")
    print_steps(spec, 5)
    detector.look(0.0, (), NOTHING)
    assert detector.text == text_reading(5)


def test_no_output_gives_no_steps(spec: TrialSpec) -> None:
    detector = StepDetector(spec)
    detector.look(0.0, (), NOTHING)
    assert (detector.text, detector.shown(NOTHING), detector.decided(NOTHING, 1e9, last=True)) == (
        NOTHING,
        NOTHING,
        False,
    )


@pytest.mark.parametrize(
    ("source", "count", "answer"),
    [
        *(("optimizer", 3, True), ("optimizer", 2, False), ("explicit", 3, True), ("text", 3, True), ("", 0, False)),
        *(("backward", 99, False), ("backward", 100, True), ("dataloader", 100, True), ("gpu", 1000, False)),
    ],
)
def test_the_number_of_steps_that_is_enough_depends_on_their_source(source: str, count: int, answer: bool) -> None:
    assert is_enough(StepReading(count=count, source=source), 3) is answer
