"""Real, unmodified training scripts with gsub on a real Slurm: verdict, steps, and no file of the user is changed.

The scripts are in tests/scripts (good, expected.toml). All selected scripts are pre-run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from realslurm import USERS, Lab
from trainings import (
    WRITERS_FILE,
    Answer,
    Expected,
    OtherJob,
    Training,
    TrainingHome,
    changes,
    good_trainings,
    open_training_home,
    snapshot,
)

ALICE = USERS[0]
TRAININGS = good_trainings()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("lab_without_hooks"),
    pytest.mark.torch,
    pytest.mark.timeout(1800),
]


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one round of pre-runs."""

    context: TrainingHome
    answers: dict[str, Answer]
    before: dict[str, tuple[object, ...]]
    after: dict[str, tuple[object, ...]]
    other: OtherJob
    left: list[str]


def _params(overlay: str) -> list[object]:
    return [
        pytest.param((overlay, name), id=f"{name}-{overlay}", marks=_marks(training, overlay))
        for name, training in TRAININGS.items()
    ]


def _marks(training: Training, overlay: str) -> list[pytest.MarkDecorator]:
    slow = [] if training.quick and overlay == "auto" else [pytest.mark.slow]
    needs = [pytest.mark.frameworks] if training.needs else []
    missing = training.missing
    skip = [pytest.mark.skip(reason=f"not installed: {', '.join(missing)} (make test-slow)")] if missing else []
    return [*slow, *needs, *skip]


@pytest.fixture(scope="module")
def rounds(lab: Lab, request: pytest.FixtureRequest) -> Iterator[dict[str, Seen]]:
    """One round per overlay mode, of the trainings that this session selected."""
    chosen: dict[str, list[Training]] = {}
    for item in request.session.items:
        parameter = getattr(item, "callspec", None) and item.callspec.params.get("training")
        if item.path == request.path and parameter and not list(item.iter_markers("skip")):
            overlay, name = parameter
            chosen.setdefault(overlay, []).append(TRAININGS[name])
    seen = {overlay: _round(lab, overlay, list(dict.fromkeys(found))) for overlay, found in chosen.items()}
    yield seen
    for one in seen.values():
        one.context.close()


def _round(lab: Lab, overlay: str, trainings: list[Training]) -> Seen:
    context = open_training_home(lab, ALICE, overlay, trainings)
    other = OtherJob(context, [context.home / t.name for t in trainings])
    other.start()
    before = snapshot(context.home, overlay)
    # With the overlay as a submission that waits for the pre-run, without it only the pre-run.
    words = ("--prerun=wait", "--hold") if overlay == "auto" else ("--prerun=only", "--json")
    answers = context.gsub_all(trainings, *words)
    left = context.wait_for_processes()
    after = snapshot(context.home, overlay)
    other.end()
    return Seen(context, answers, before, after, other, left)


@pytest.mark.parametrize("training", [*_params("auto"), *_params("off")])
def test_a_training_script_gets_its_verdict_and_its_directory_is_unchanged(
    rounds: dict[str, Seen], training: tuple[str, str]
) -> None:
    overlay, name = training
    seen, wanted = rounds[overlay], TRAININGS[name]
    answer = seen.answers[name]
    expected = wanted.expected if overlay == "auto" else wanted.without_overlay
    assert answer.as_expected(expected) == expected, f"{answer.verdict}\n{answer.stdout}\n{answer.stderr}"
    assert [line for line in answer.warnings if "this line starts one process, and" not in line] == []
    assert changes(seen.before, seen.after, name, {WRITERS_FILE}) == []
    lines, in_order = seen.other.written(seen.context.home / name)
    assert lines > 2 and in_order


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(("auto", "cnn_workers"), id="auto"),
        pytest.param(("off", "two_steps"), id="off", marks=pytest.mark.slow),
    ],
)
def test_pre_runs_leave_no_process_and_no_file_in_the_home(rounds: dict[str, Seen], training: tuple[str, str]) -> None:
    seen = rounds[training[0]]
    assert seen.left == []
    assert changes(seen.before, seen.after, ".") == []
    assert [path for path in seen.after if path.split("/")[0] not in {*seen.answers, *_first_words(seen.before)}] == []


def _first_words(paths: dict[str, tuple[object, ...]]) -> set[str]:
    return {path.split("/")[0] for path in paths}


def test_expected_toml_and_the_folders_list_the_same_scripts() -> None:
    folders = {t.folder.name for t in TRAININGS.values()}
    assert folders == set(TRAININGS) and len(TRAININGS) >= 24
    assert all((t.folder / t.script).is_file() or not t.script for t in TRAININGS.values())
    assert Expected() == Expected(verdict="pass", steps=3, layer="optimizer")
