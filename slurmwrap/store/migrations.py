"""The versions of the database's schema: baseline.sql, and the steps from each version to the next.

`PRAGMA user_version` is the number of steps done; `PRAGMA application_id` marks the file as slurmwrap's. When a file is
opened, all missing steps run in one transaction: it has its old version or the newest, never one between.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

APPLICATION_ID = 0x534C5752  # "SLWR"


@cache
def read_baseline() -> tuple[str, ...]:
    """Return the statements of baseline.sql."""
    return tuple(split_statements(Path(__file__).with_name("baseline.sql").read_text(encoding="utf-8")))


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script, with the comments before them. A statement ends at the end of a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.endswith(";\n") and sqlite3.complete_statement(statement):
            yield statement
            statement = ""


_RUN_TIMES = """
CREATE TABLE run_times ( -- run times of jobs that completed or were cut off; later ones are predicted from them
    cluster INTEGER NOT NULL, -- names.id of the cluster
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds: SubmitTime
    uid INTEGER NOT NULL, -- uid of the job's owner
    key TEXT NOT NULL, -- profile key without the uid; empty: not submitted with gsub
    variant TEXT NOT NULL, -- digest of batch size, model and other settings; empty: none
    length TEXT NOT NULL, -- JSON list of [name, value]: settings that say how long it trains
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    account INTEGER NOT NULL, -- names.id of the Slurm account
    partition INTEGER NOT NULL, -- names.id of the partition
    end_time INTEGER NOT NULL, -- Unix seconds
    run_s REAL NOT NULL, -- seconds from start to end
    complete INTEGER NOT NULL -- 1: it completed; 0: its time limit or a person cut it off
);
"""
_FILL_RUN_TIMES = """
INSERT OR IGNORE INTO names (name)
    SELECT cluster FROM attempts UNION SELECT account FROM attempts UNION SELECT partition FROM attempts;

-- The same choice as profiling.run_time.make_run_time_record() makes. Of several submissions with the job's id the last
-- one before the run counts, with the clocks' tolerance of user_state_files.py. "77_2" was submitted as 77.
INSERT INTO run_times
    SELECT c.id, a.job_id, a.submit_time, a.uid, coalesce(s.profile_key, ''),
        coalesce(json_extract(s.more, '$.profile_variant'), ''), '[]', a.gpus, n.id, p.id, a.end_time,
        a.end_time - a.start_time, a.state = 'COMPLETED'
    FROM attempts a
    JOIN names c ON c.name = a.cluster
    JOIN names n ON n.name = a.account
    JOIN names p ON p.name = a.partition
    LEFT JOIN submissions s ON s.cluster = a.cluster AND s.uid = a.uid AND length(s.profile_key) <= 200
        AND s.job_id = CAST(substr(a.address, 1, instr(a.address || '_', '_') - 1) AS INTEGER)
        AND s.at = (SELECT max(m.at) FROM submissions m
            WHERE m.cluster = a.cluster AND m.job_id = s.job_id AND m.at <= a.submit_time + 300)
        AND (a.restarts > 0 OR a.submit_time - s.at <= 3600)
    WHERE a.end_time - a.start_time >= 1 AND a.uid >= 0 AND coalesce(a.diagnosis_resumed, 0) = 0
    AND (a.state = 'COMPLETED' AND a.diagnosis_category = 'success'
        OR a.state IN ('TIMEOUT', 'CANCELLED', 'REQUEUED') AND a.diagnosis_category IN ('time_limit', 'cancelled'))
    AND NOT EXISTS (SELECT 1 FROM preruns r WHERE r.cluster = a.cluster AND r.prerun_job_id = a.job_id)
    AND NOT EXISTS (SELECT 1 FROM submissions r WHERE r.prerun_job_id = a.job_id AND r.cluster = a.cluster);
"""
_INDEXES_OF_RUN_TIMES = """
-- One covering index for each question. Unique, so that a run that is judged once more is stored once.
CREATE UNIQUE INDEX run_times_by_user ON run_times (
    uid, gpus, end_time, job_id, submit_time, cluster, run_s, complete);
CREATE INDEX run_times_by_key ON run_times (uid, key, end_time, cluster, submit_time, variant, length, run_s, complete)
    WHERE key <> '';
CREATE INDEX run_times_by_account ON run_times (account, gpus, end_time, cluster, submit_time, run_s, complete);
CREATE INDEX run_times_by_partition ON run_times (partition, gpus, end_time, cluster, submit_time, run_s, complete);
-- For the retention.
CREATE INDEX run_times_by_end ON run_times (end_time);
"""


def add_run_times() -> tuple[str, ...]:
    """Return the statements that add the table `run_times` and fill it from the stored runs."""
    return tuple(split_statements(_RUN_TIMES + _FILL_RUN_TIMES + _INDEXES_OF_RUN_TIMES))


def fill_run_times() -> tuple[str, ...]:
    """Return the statements that fill the table `run_times` from the stored runs, in a file in which it is empty."""
    return tuple(split_statements(_FILL_RUN_TIMES))


_RUNNING_JOBS = """
CREATE TABLE early_findings ( -- what the rule `early` found about jobs while they ran
    cluster TEXT NOT NULL, -- cluster of the job
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds: SubmitTime of the run
    kind TEXT NOT NULL, -- diverged, partly_dead, stuck, idle or will_not_finish
    at REAL NOT NULL, -- Unix seconds: when it was found
    n INTEGER NOT NULL, -- how many times the evidence was seen: lines, ranks, seconds without a step, GPUs
    evidence TEXT NOT NULL, -- the deciding line or figures
    uid INTEGER NOT NULL, -- uid of the job's owner
    address TEXT NOT NULL, -- job as users name it: 77_2
    mode TEXT NOT NULL, -- mode of the rule when it was found: observe, advise or act
    action TEXT NOT NULL, -- what was done: cancel, signal or requeue; empty: nothing
    notified INTEGER NOT NULL, -- 1: a message about it, or about another task of its array, was sent
    gone_at REAL, -- Unix seconds: when the evidence was gone although the job still ran
    more TEXT NOT NULL, -- JSON object: fields without a column of their own
    PRIMARY KEY (cluster, job_id, submit_time, kind)
) WITHOUT ROWID;

CREATE INDEX early_findings_by_time ON early_findings (at);

-- Not WITHOUT ROWID: each of its long rows would then take a page of its own.
CREATE TABLE gpu_use ( -- samples of the GPUs of a job, one row for each GPU
    cluster TEXT NOT NULL, -- cluster of the job
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds: SubmitTime of the run
    node TEXT NOT NULL, -- node of the GPU
    gpu INTEGER NOT NULL, -- device minor, as Slurm numbers it; -1: CPUs (100 % each) and memory on the node
    mig TEXT NOT NULL, -- UUID of the MIG instance; empty: a whole GPU
    began REAL NOT NULL, -- Unix seconds: start of the first sample
    interval_s REAL NOT NULL, -- seconds of one sample
    use_pct TEXT NOT NULL, -- JSON list: mean use of the GPU in percent; -1: unknown
    mem_mib TEXT NOT NULL, -- JSON list: most GPU memory in use, in MiB; -1: unknown
    processes TEXT NOT NULL, -- JSON list: most processes that compute on the GPU; -1: unknown
    mem_total_mib INTEGER NOT NULL, -- memory of the GPU in MiB; 0: unknown
    energy_j REAL, -- energy of the GPU in joules since the first sample; empty: not counted
    more TEXT NOT NULL, -- JSON object: fields without a column of their own
    PRIMARY KEY (cluster, job_id, submit_time, node, gpu, mig)
);

CREATE INDEX gpu_use_by_begin ON gpu_use (began);

CREATE TABLE loss_curves ( -- loss curves of runs, at most 256 points each
    cluster TEXT NOT NULL, -- cluster of the job
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds: SubmitTime of the run
    end_time INTEGER, -- Unix seconds: end of the run; empty while it runs
    uid INTEGER NOT NULL, -- uid of the job's owner
    source TEXT NOT NULL, -- format that was read: transformers, keras, counter, ...
    points TEXT NOT NULL, -- JSON list of [seconds since the start, step, epoch, loss, validation loss]
    lowest REAL, -- lowest smoothed loss; empty: too few points
    time_share REAL, -- share of the run's time until the loss came within 0.1 % of its lowest value
    epoch_share REAL, -- share of the run's epochs until the lowest loss
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID;

CREATE INDEX loss_curves_by_end ON loss_curves (end_time);
"""


def add_running_jobs() -> tuple[str, ...]:
    """Return the statements that add the tables of what is seen of jobs while they run (model/running_job.py)."""
    return tuple(split_statements(_RUNNING_JOBS))


# Tables and columns that schema 1 named otherwise before 24 November 2026: (old, new).
_OLD_TABLES = (("set_aside", "rejected_entries"), ("ledger_resets", "budget_resets"))
_OLD_COLUMNS = (
    ("runs", "aside", "excluded"),
    ("runs", "again", "is_rerun"),
    ("actions", "because", "reason"),
    ("submissions", "lot", "holdout_group"),
)
OLD_NAMES_MARK = "set_aside"


def rename_old_names(triggers: Iterable[str]) -> tuple[str, ...]:
    """Return the statements that give a database of schema 1 with the old names (OLD_NAMES_MARK) its present names.

    `triggers`: the names of its triggers. Indexes and triggers are made again, as baseline.sql has them.
    """
    return (
        *(f'DROP TRIGGER "{name}"' for name in triggers),
        "DROP INDEX submissions_in_lot",
        *(f"ALTER TABLE {old} RENAME TO {new}" for old, new in _OLD_TABLES),
        *(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}" for table, old, new in _OLD_COLUMNS),
        *(one for one in read_baseline() if re.search("(?m)^CREATE (TRIGGER|INDEX submissions_in_holdout) ", one)),
    )


# Step N (from 1) migrates a database from version N-1 to version N. A released step is never changed: append a new
# function that returns the statements.
MIGRATIONS: tuple[Callable[[], tuple[str, ...]], ...] = (read_baseline, add_run_times, add_running_jobs)
VERSION = len(MIGRATIONS)
