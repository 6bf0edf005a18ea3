"""store/table_reader.py: full-text search in the stored failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.store.database import Database
from slurmwrap.store.table_reader import MARKS, search_failures

DIAGNOSIS = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="cuda.oom")


def make_run(number: int, *texts: str, diagnosis: Diagnosis | None = DIAGNOSIS, reason: str = "") -> JobRun:
    lines = tuple(Citation(source="slurm.out", line=1, text=text) for text in texts)
    return JobRun(
        attempt=RunKey(cluster="lab", job_id=number, submit_time=number),
        address=str(number),
        user="ada",
        end_time=1_000 + number,
        diagnosis=diagnosis and replace(diagnosis, evidence=lines),
        decision_reason=reason,
    )


RUNS = (
    make_run(1, "CUDA out of memory. Tried to allocate 2.00 GiB"),
    make_run(2, "memory of rank 0 ran out", 'File "train.py", line 3'),
    make_run(
        3, "the loader was waiting", diagnosis=replace(DIAGNOSIS, category="network_error", advice="Ask hub.example")
    ),
    make_run(4, "epoch 1", "step \udcff and \x1b red\x00", diagnosis=replace(DIAGNOSIS, node="gpu0007")),
    make_run(5, "waited", reason="its input /data/shard-12.tar is blocked"),
    make_run(6, "CUDA out of memory", diagnosis=replace(DIAGNOSIS, category="success")),
    make_run(7, "CUDA out of memory", diagnosis=replace(DIAGNOSIS, category="cancelled")),
    make_run(8, diagnosis=None),
)  # fmt: skip


@pytest.fixture(scope="module")
def site_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "site.db"
    with Database.open(path) as database:
        for one in RUNS:
            database.save_attempt(one)
    return path


def find_jobs(site_database: Path, words: Sequence[str]) -> list[str]:
    return [one.job for one in search_failures(site_database, words, 50)[0]]


def test_words_are_found_in_every_field_of_a_failure(site_database: Path) -> None:
    cases: dict[tuple[str, ...], set[str]] = {
        ("cuda", "allocating"): {"1"},
        ("tried to allocate",): {"1"},
        ("allocate", "tried"): {"1"},
        ("allocate tried",): set(),
        ("waits",): {"3", "5"},
        ("network",): {"3"},
        ("hub.example",): {"3"},
        ("gpu0007",): {"4"},
        ("red",): {"4"},
        ("shard-12.tar",): {"5"},
        ("gpu_oom", "epoch"): {"4"},
        ('"train.py"', "line"): {"2"},
        ("waits", "OR", "red"): set(),
        ("evidence:red",): set(),
    }
    assert {words: set(find_jobs(site_database, words)) for words in cases} == cases


def test_the_most_relevant_failure_comes_first_and_the_total_is_returned(site_database: Path) -> None:
    found, total = search_failures(site_database, ["rank"], 1)
    assert ([one.job for one in found], total) == (["2"], 1)
    found, total = search_failures(site_database, ["cuda"], 2)
    assert (found[0].job, len(found), total) == ("1", 2, 5)  # the others match only by their signature
    opening, closing = MARKS
    assert found[0].snippet == f"{opening}CUDA{closing} out of memory. Tried to allocate 2.00 GiB"


def test_equally_relevant_failures_are_listed_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "user.db"
    with Database.open(path) as database:
        for number in (3, 1, 2):
            database.save_attempt(make_run(number, "NCCL timeout"))
    assert find_jobs(path, ["nccl"]) == ["3", "2", "1"]


def test_a_search_in_an_empty_database_finds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "user.db"
    with Database.open(path):
        pass
    assert search_failures(path, ["memory"], 5) == ((), 0)


def test_progress_is_reported_from_0_to_1(site_database: Path) -> None:
    progress: list[float] = []
    search_failures(site_database, ["memory"], 5, progress.append)
    assert progress == [0.0, 1.0]
