"""Training scripts with one bug each, submitted with gsub on a real Slurm: which stage stops them.

The bugs are defined in tests/scripts/mutants/bugs.toml. `python tests/slurm/mutant_table.py` prints them as a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutant_table import KINDS, table
from realslurm import USERS, Lab
from trainings import Answer, mutants, open_training_home

ALICE = USERS[0]
MUTANTS = mutants()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("lab_without_hooks"),
    pytest.mark.torch,
    pytest.mark.timeout(1800),
]


def _params() -> list[object]:
    found = []
    for name, mutant in MUTANTS.items():
        missing = mutant.training.missing
        marks = [] if mutant.quick else [pytest.mark.slow]
        marks += [pytest.mark.frameworks] if mutant.training.needs else []
        marks += [pytest.mark.skip(reason=f"not installed: {', '.join(missing)} (make test-slow)")] if missing else []
        found.append(pytest.param(name, id=name, marks=marks))
    return found


@pytest.fixture(scope="module")
def answers(lab: Lab, request: pytest.FixtureRequest) -> Iterator[dict[str, Answer]]:
    """The answers of gsub to the mutants that this session selected. All are pre-run at the same time."""
    items = [i for i in request.session.items if i.path == request.path and not list(i.iter_markers("skip"))]
    names = [
        i.callspec.params["mutant"] for i in items if "mutant" in getattr(getattr(i, "callspec", None), "params", {})
    ]
    chosen = [MUTANTS[name].training for name in dict.fromkeys(names)]
    context = open_training_home(lab, ALICE, "auto", chosen)
    yield context.gsub_all(chosen, "--prerun=only", "--json")
    context.close()


@pytest.mark.parametrize("mutant", _params())
def test_each_bug_is_stopped_by_the_stage_in_the_table(answers: dict[str, Answer], mutant: str) -> None:
    answer, wanted = answers[mutant], MUTANTS[mutant]
    assert (answer.stopped_by, answer.result.verdict if answer.stopped_by == "none" else "") == (
        wanted.stage,
        wanted.verdict,
    ), f"{answer.verdict}\n{answer.stdout}\n{answer.stderr}"
    assert bool(answer.warnings) >= wanted.warned, answer.stderr


def test_the_documentation_contains_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs/prerun-reference.md").read_text(encoding="utf-8")
    assert table(MUTANTS).strip() in text, "python tests/slurm/mutant_table.py"


def test_the_table_has_bugs_of_every_kind() -> None:
    stages = Counter(m.stage for m in MUTANTS.values())
    assert len(MUTANTS) >= 40 and min(stages[s] for s in ("static", "trial", "none")) >= 5
    assert {m.kind for m in MUTANTS.values()} == set(KINDS)
    assert all(m.verdict in (("pass", "inconclusive") if m.stage == "none" else ("",)) for m in MUTANTS.values())
