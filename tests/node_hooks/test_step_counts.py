"""The step counter's files of a real run: which user and run they belong to, and what an Epilog reports of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hook_site import USER, Site, only

from slurmwrap.inject.slurmwrap_losses import HEADER, ROW
from slurmwrap.node_hooks import step_counts

LINE = "%10d %-10s %16.6f %16.6f %10d %1d\n"
NOW = time.time()


def write_count(
    directory: Path, name: str, count: int, *, first: float = 10.0, last: float = 20.0, at: float = NOW
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(LINE % (count, "optimizer", first, last, 0, 0))
    os.utime(path, (at, at))
    return path


def read_count(
    directory: Path, job_id: int = 41, since: float = NOW - 60, restart: int | None = None
) -> dict[str, object]:
    return step_counts.counted(os.fsencode(directory), 41, os.geteuid(), NOW - 60, restart)


def test_the_highest_count_of_all_processes_is_the_jobs_count(tmp_path: Path) -> None:
    write_count(tmp_path, "41.0.n1.700", 21)
    write_count(tmp_path, "41.0.n2.900", 20)
    assert read_count(tmp_path) == {
        "count": 21, "source": "optimizer", "per_s": 2.0, "processes": 2, "first_at": NOW - 10, "last_at": NOW,
    }  # fmt: skip


def test_the_newest_run_is_read_unless_a_restart_count_is_given(tmp_path: Path) -> None:
    write_count(tmp_path, "41.0.n1.700", 50)
    write_count(tmp_path, "41.1.n1.700", 7)
    assert [read_count(tmp_path, restart=run).get("count") for run in (None, 0, 1, 2)] == [7, 50, 7, None]


def test_a_file_last_written_before_the_run_began_is_ignored(tmp_path: Path) -> None:
    write_count(tmp_path, "41.0.n1.700", 50, at=NOW - 3600)
    assert read_count(tmp_path) == {}


@pytest.mark.parametrize(
    "name", ["411.0.n1.700", "41.0.n1.700.model", "41", "journal", "41.0.n1", "x41.0.n1.7", "41.0.a b.7"]
)
def test_files_with_other_names_are_ignored(tmp_path: Path, name: str) -> None:
    write_count(tmp_path, name, 50)
    assert read_count(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    ["", "12", "x optimizer 1 2 0 0\n", "-4 optimizer 1 2 0 0\n", "4 optimizer 2 1 0 0\n", "4 optimizer nan nan 0 0\n",
     "9999999999999 optimizer 1 2 0 0\n", "4 optimizer inf inf 0 0\n", "\u0664 optimizer 1 2 0 0\n",
     "4 \x1b]0;x 1 2 0 0\n", "4 an_endlessly_long_source 1 2 0 0\n"],
)  # fmt: skip
def test_invalid_content_is_no_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "41.0.n1.700").write_text(text)
    assert read_count(tmp_path) == {}


def test_links_fifos_directories_and_files_of_other_users_are_ignored(tmp_path: Path) -> None:
    real = write_count(tmp_path / "elsewhere", "41.0.n1.700", 50)
    (tmp_path / "41.0.n1.1").symlink_to(real)
    os.mkfifo(tmp_path / "41.0.n1.2")
    (tmp_path / "41.0.n1.3").mkdir()
    if os.geteuid() == 0:
        os.chown(write_count(tmp_path, "41.0.n1.4", 60), USER, USER)
    assert read_count(tmp_path) == {}


@pytest.mark.parametrize("last", ["5e-324", "1e-300", "1e-9"])
def test_an_impossible_rate_is_left_out_and_the_count_is_kept(tmp_path: Path, last: str) -> None:
    write_count(tmp_path, "41.0.n1.700", 1)
    (tmp_path / "41.0.n1.700").write_text(f"999999999999 optimizer 0 {last} 0 0\n")
    assert (read_count(tmp_path)["count"], read_count(tmp_path)["per_s"]) == (999999999999, None)


def test_one_step_has_no_rate(tmp_path: Path) -> None:
    write_count(tmp_path, "41.0.n1.700", 1, first=10.0, last=10.0)
    assert (read_count(tmp_path)["count"], read_count(tmp_path)["per_s"]) == (1, None)


def test_the_step_directory_is_found_among_those_changed_since_the_start(tmp_path: Path) -> None:
    write_count(tmp_path / "older", "41.0.n1.700", 99, at=NOW - 7200)
    os.utime(tmp_path / "older", (NOW - 7200, NOW - 7200))
    write_count(tmp_path / "other", "42.0.n1.700", 50)
    write_count(tmp_path / "mine", "41.0.n1.700", 3)
    (tmp_path / "a-file").touch()
    found = step_counts.below(os.fsencode(tmp_path), 41, os.geteuid(), NOW - 60)
    assert (found["count"], found["processes"]) == (3, 1)


@pytest.mark.parametrize("since", [None, NOW], ids=["no_start", "a_start"])
def test_without_a_directory_nothing_is_counted(tmp_path: Path, since: float | None) -> None:
    assert step_counts.below(None, 41, os.geteuid(), since) == {}
    assert step_counts.below(os.fsencode(tmp_path / "none"), 41, os.geteuid(), since) == {}


def test_the_epilog_of_a_job_without_counted_steps_has_no_fact_steps(site: Site) -> None:
    site.prolog()
    site.arrived()
    site.epilog()
    assert "steps" not in only(site.arrived()).facts


# --- losses -----------------------------------------------------------------------------------------------------------

ROWS = [(10, 100.0, 2.5), (20, 160.0, 1.5), (30, 200.0, 1.25)]


def write_losses(
    directory: Path, name: str, rows: list[tuple[int, float, float]], *, bad: int = 0, at: float = NOW, text: str = ""
) -> Path:
    """A file of losses as the counter writes it, 5 s after the last row."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.loss"
    taken = rows[-1][0] if rows else bad
    header = HEADER % (10, taken, bad, bad, rows[-1][1] + 5 if rows else 0, len(rows))
    path.write_text(text or header + "".join(ROW % row for row in rows))
    os.utime(path, (at, at))
    return path


def read_losses(directory: Path, restart: int = 0) -> dict[str, object]:
    return step_counts.losses(os.fsencode(directory), 41, os.geteuid(), NOW - 60, restart)


def test_losses_have_the_times_of_the_file_server(tmp_path: Path) -> None:
    write_losses(tmp_path, "41.0.n1.700", ROWS, bad=2)
    found = read_losses(tmp_path)
    assert (found["taken"], found["bad"], found["bad_at_end"]) == (30, 2, 2)
    times = [NOW - 105, NOW - 45, NOW - 5]
    assert found["points"] == [
        [step, pytest.approx(at, abs=0.01), loss] for (step, _, loss), at in zip(ROWS, times, strict=True)
    ]


def test_losses_are_those_of_the_process_with_the_most_steps_of_this_run(tmp_path: Path) -> None:
    write_losses(tmp_path, "41.0.n1.700", ROWS[:2])
    write_losses(tmp_path, "41.0.n2.700", ROWS)
    write_losses(tmp_path, "41.1.n1.700", [(99, 1.0, 9.0)])
    write_losses(tmp_path, "42.0.n1.700", [(999, 1.0, 9.0)])
    write_losses(tmp_path, "41.0.n3.700", [(500, 1.0, 9.0)], at=NOW - 3600)
    write_count(tmp_path, "41.0.n1.700", 5)
    assert len(read_losses(tmp_path)["points"]) == 3  # type: ignore[arg-type]
    assert len(read_losses(tmp_path, restart=1)["points"]) == 1  # type: ignore[arg-type]
    assert read_losses(tmp_path, restart=2) == {} == read_losses(tmp_path / "absent")
    assert read_count(tmp_path)["count"] == 5


def test_a_run_whose_losses_are_all_nan_has_no_points(tmp_path: Path) -> None:
    write_losses(tmp_path, "41.0.n1.700", [], bad=7)
    assert read_losses(tmp_path) == {"points": [], "taken": 7, "bad": 7, "bad_at_end": 7}


HEAD = "           1            3            0            0         9.000000      2\n"


@pytest.mark.parametrize(
    "text",
    ["\n", "1 2 3\n", HEAD + "1 2.0 nan\n2 3.0 1.0\n", HEAD + "1 2.0 inf\n", HEAD + "2 2.0 1.0\n1 3.0 1.0\n",
     HEAD + "1 3.0 1.0\n2 2.0 1.0\n", HEAD + "1 2.0\n", HEAD + "x 2.0 1.0\n", HEAD + "0 2.0 1.0\n",
     HEAD + "1 nan 1.0\n", HEAD.replace("  2\n", "999\n"), HEAD.replace("    3 ", "   -3 "),
     HEAD.replace(" 0 ", " 9 "), HEAD + "\u0661 2.0 1.0\n", "1 2 0 0 nan 0\n", "9" * 20000],
)  # fmt: skip
def test_invalid_losses_are_none(tmp_path: Path, text: str) -> None:
    write_losses(tmp_path, "41.0.n1.700", ROWS, text=text)
    assert read_losses(tmp_path) == {}


def test_losses_of_links_fifos_and_other_users_are_ignored(tmp_path: Path) -> None:
    real = write_losses(tmp_path / "elsewhere", "41.0.n1.700", ROWS)
    (tmp_path / "41.0.n1.1.loss").symlink_to(real)
    os.mkfifo(tmp_path / "41.0.n1.2.loss")
    (tmp_path / "41.0.n1.3.loss").mkdir()
    if os.geteuid() == 0:
        os.chown(write_losses(tmp_path, "41.0.n1.4", ROWS), USER, USER)
    assert read_losses(tmp_path) == {}
