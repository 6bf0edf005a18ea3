"""The synthetic site: its rows have the form that the real code writes, and its rates are published ones."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from synthetic_year import fill, texts

from slurmwrap.sim.failures import published_rates
from slurmwrap.store import record_rows
from slurmwrap.store.database import Database
from slurmwrap.store.db_maintenance import check

NOW = 1_795_000_000.0
DAYS, PER_DAY = 35, 50
TOP = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic database without pruning."""
    path = tmp_path_factory.mktemp("year") / "site.db"
    fill(path, days=DAYS, jobs_per_day=PER_DAY, until=NOW, observed_d=2, pruned=False)
    return path


def rows(path: Path, sql: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


def test_each_row_equals_what_the_store_writes_for_its_record(site_db: Path) -> None:
    """Reading and writing a row changes nothing: it has no column or field of `more` that the code does not write."""
    for table in record_rows.TABLES:
        for row in rows(site_db, f"SELECT * FROM {table.name}")[::3]:
            written = record_rows.row_from_record(table, record_rows.record_from_row(table, row))
            assert {name: row[name] for name in written} == written, table.name


def test_the_database_is_valid_and_has_every_kind_of_row(site_db: Path) -> None:
    found = check(site_db)
    assert found.faults == ()
    counts = {one.name: one.rows for one in found.tables}
    empty = {name for name, count in counts.items() if not count}
    assert empty <= {
        *("profiles", "measurements", "rejected_entries", "budget_resets", "pruned", "seen"),
        *("gpu_faults", "incidents"),
        # Seen while jobs run.
        *("early_findings", "gpu_use", "loss_curves"),
    }


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data(tmp_path: Path) -> None:
    told = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        fill(tmp_path / name, days=8, jobs_per_day=20, seed=seed, until=NOW)
        told.append(rows(tmp_path / name, "SELECT * FROM attempts ORDER BY job_id, submit_time"))
    assert told[0] == told[1]
    assert told[0] != told[2]


def test_failure_rates_and_causes_of_jobs_are_the_published_ones(site_db: Path) -> None:
    """Philly: 17.9 % of the jobs fail at least once for a cause of table 7, 13.5 % are killed; a job that fails is
    submitted 2.3 times. Tolerance: four standard errors of the generated jobs."""
    sql = "SELECT diagnosis_category AS c FROM attempts WHERE restarts = 0 AND end_time IS NOT NULL"
    firsts = rows(site_db, f"{sql} AND name NOT LIKE 'prerun-%'")
    count = Counter(row["c"] for row in firsts)
    total = sum(count.values())
    assert abs(total - DAYS * PER_DAY * 0.85) < 0.12 * DAYS * PER_DAY
    own = {cause.category for cause in published_rates.PHILLY}
    failed = sum(count[category] for category in own)
    expected = (
        published_rates.FAILING_JOBS * 2.3 / (1 + published_rates.FAILING_JOBS * 1.3)
    )  # failing trials by all calls
    assert abs(failed / total - expected) < 0.10
    assert count.most_common(3)[0][0] == "success"
    table = sorted(published_rates.PHILLY, key=lambda cause: cause.trials, reverse=True)
    assert {table[0].category, table[1].category} <= {c for c, _ in count.most_common(5)}


def test_node_failure_rates_are_the_published_ones_and_most_hit_lemon_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes.db"
    fill(path, days=100, jobs_per_day=10, until=NOW)  # 16 nodes
    struck = [row["node"] for row in rows(path, "SELECT node FROM removals")]
    expected = 100 * 16 * published_rates.NODE_FAILURES_PER_DAY
    assert abs(len(struck) - expected) < 4 * expected**0.5
    assert Counter(struck).most_common(1)[0][1] > len(struck) / 3


def test_each_sample_text_is_diagnosed_as_its_category() -> None:
    wrong = {one: found for one in texts.CATEGORIES if (found := texts.diagnosis_of(one).category) != one}
    assert wrong == {}


def test_the_command_reports_what_it_generated(tmp_path: Path) -> None:
    out = tmp_path / "site.db"
    options = ["--days", "8", "--jobs-per-day", "10", "--out", str(out)]
    words = [sys.executable, str(TOP / "bench" / "synthetic_year"), *options]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert told[0].startswith("day 7 of 8: ")
    assert told[-1].startswith(f"{out}: ")
    with Database.open(out, readonly=True) as store:
        attempts = store.attempts()
    assert len(attempts) > 40
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 2
    assert "is there already" in again.stderr
