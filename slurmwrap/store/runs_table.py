"""The narrow table `runs` beside `attempts`, and the triggers that keep it: one of the steps of migrations.py.

A report of a year reads 4 million of its rows in half a second; those of attempts, with log lines and paths, are ten
times as wide. Triggers keep it, so that whoever writes or deletes attempts need not know of it.
"""

from __future__ import annotations

# A row of `runs` out of one of `attempts`, for triggers (`new`) and for what is there already (`a`).
_NAMED = "(SELECT id FROM {table} WHERE name = {row}.{column})"
_RUN = """SELECT {row}.end_time, {row}.job_id, {row}.submit_time, {cluster},
    CASE WHEN {row}.start_time IS NULL THEN 0 ELSE max(0, {row}.end_time - {row}.start_time) END,
    {row}.gpus, json_array_length({row}.nodes), {user}, {account}, {name}, {category},
    CASE WHEN {row}.diagnosis_category IS NULL THEN 0 WHEN {row}.diagnosis_category = 'success' THEN 1
        WHEN {row}.diagnosis_category = 'cancelled' THEN 3{more} ELSE 2 END,
    CASE WHEN {trial} THEN 1 WHEN {row}.nodes = '[]' AND {stopped} THEN 2 ELSE 0 END,
    {row}.restarts > 0, nullif({row}.incident, ''),
    CAST(round(1000 * json_extract({row}.measurement, '$.gpu_util')) AS INTEGER),
    json_extract({row}.measurement, '$.gpus_unused')"""
_TRIAL = """EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = {row}.cluster AND p.prerun_job_id = {row}.job_id)
        OR EXISTS (SELECT 1 FROM submissions s WHERE s.prerun_job_id = {row}.job_id AND s.cluster = {row}.cluster)"""
_STOPPED = """EXISTS (SELECT 1 FROM preruns p WHERE p.job_id = {row}.job_id AND p.cluster = {row}.cluster
        AND p.verdict_outcome = 'fail')"""
# Users, accounts and the like are few, so that four of their numbers fit into one of 64 bits; jobs' names may be many.
_RUN_NAMES = {
    "cluster": "names",
    "user": "names",
    "account": "names",
    "diagnosis_category": "names",
    "name": "job_names",
}


_WITH_ERROR = """
        WHEN {row}.diagnosis_category = 'completed_with_error' THEN 4"""


def _run_of(row: str, trial: str, stopped: str, more: str = "") -> str:
    named = {c.replace("diagnosis_", ""): _NAMED.format(table=t, row=row, column=c) for c, t in _RUN_NAMES.items()}
    return _RUN.format(row=row, trial=trial, stopped=stopped, more=more.format(row=row), **named)


def _keep_run(event: str, when: str, first: str = "", more: str = "") -> str:
    """A trigger on attempts that writes the row's run. The names are not inserted OR IGNORE: the outer statement's own
    OR REPLACE would win over it (https://sqlite.org/lang_createtrigger.html), and give a name another id."""
    names = " ".join(
        f"INSERT INTO {table} (name) SELECT new.{c} WHERE new.{c} IS NOT NULL"
        f" AND NOT EXISTS (SELECT 1 FROM {table} WHERE name = new.{c});"
        for c, table in _RUN_NAMES.items()
    )
    run = _run_of("new", _TRIAL.format(row="new"), _STOPPED.format(row="new"), more)
    changed = ("run_s", "gpus", "nodes", "user", "account", "name", "category", "outcome", "aside", "again", "incident")
    kept = [f"{c} = coalesce(excluded.{c}, {c})" for c in ("gpu_permille", "gpus_unused")]
    updates = ", ".join([*(f"{c} = excluded.{c}" for c in changed), *kept])
    return f"""CREATE TRIGGER runs_{event.split()[0].lower()} AFTER {event} ON attempts WHEN {when} BEGIN
    {first}{names}
    INSERT INTO runs {run} WHERE new.end_time IS NOT NULL
    ON CONFLICT (end_time, job_id, submit_time, cluster) DO UPDATE SET {updates};
END"""


_FORGET_RUN = """DELETE FROM runs WHERE end_time = old.end_time AND job_id = old.job_id
    AND submit_time = old.submit_time AND cluster = (SELECT id FROM names WHERE name = old.cluster)"""
_SET_ASIDE = """UPDATE runs SET aside = {how} WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = {job} AND a.end_time IS NOT NULL{only})"""
_A_TRIAL = _SET_ASIDE.format(how=1, job="new.prerun_job_id", only="")
_A_STOPPED_JOB = _SET_ASIDE.format(how=2, job="new.job_id", only=" AND a.nodes = '[]'")


def _kept(more: str = "") -> tuple[str, str]:
    """The triggers for new and for changed rows of attempts. `more`: further outcomes."""
    changed = (
        "UPDATE OF end_time, start_time, gpus, nodes, user, account, name, restarts, measurement, diagnosis_category,\n"
        "    incident"
    )
    when = "new.end_time IS NOT NULL OR old.end_time IS NOT NULL"
    first = f"{_FORGET_RUN} AND old.end_time IS NOT new.end_time;\n    "
    return _keep_run("INSERT", "new.end_time IS NOT NULL", more=more), _keep_run(changed, when, first, more)


# Outcome 4: completed, and its output ends with an error.
WITH_ERROR: tuple[str, ...] = (
    "DROP TRIGGER runs_insert",
    "DROP TRIGGER runs_update",
    *_kept(_WITH_ERROR),
    """UPDATE runs SET outcome = 4
    WHERE category = (SELECT id FROM names WHERE name = 'completed_with_error') AND outcome = 2""",
)

REPORT: tuple[str, ...] = (
    """CREATE TABLE names ( -- users, accounts, clusters and categories, which `runs` has numbers for
    id INTEGER PRIMARY KEY,
    name NOT NULL UNIQUE
)""",
    """CREATE TABLE job_names ( -- as names
    id INTEGER PRIMARY KEY,
    name NOT NULL UNIQUE
)""",
    """CREATE TABLE runs ( -- one ended row of attempts in 45 bytes, kept by triggers: the report of a year reads these
    end_time INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    submit_time INTEGER NOT NULL,
    cluster INTEGER NOT NULL, -- names.id, as user, account and category
    run_s INTEGER NOT NULL,
    gpus INTEGER NOT NULL,
    nodes INTEGER NOT NULL, -- how many
    user INTEGER NOT NULL,
    account INTEGER NOT NULL,
    name INTEGER NOT NULL, -- job_names.id
    category INTEGER, -- NULL: not judged
    outcome INTEGER NOT NULL, -- 0 not judged, 1 completed, 2 failed, 3 cancelled
    aside INTEGER NOT NULL, -- 1: a pre-run's own job; 2: stopped by its pre-run, it never ran
    again INTEGER NOT NULL, -- 1: not the job's first run
    incident TEXT, -- incidents.incident_id
    gpu_permille INTEGER, -- GPU use by NVML's accounting; these two stay when attempts.measurement goes
    gpus_unused INTEGER, -- GPUs on which no process was ever seen
    PRIMARY KEY (end_time, job_id, submit_time, cluster)
) WITHOUT ROWID""",
    "CREATE INDEX preruns_by_time ON preruns (at, verdict_outcome, verdict_seconds, uid, job_id)",
    "CREATE INDEX actions_by_time ON actions (intended_at)",
    """CREATE INDEX attempts_blamed_inputs ON attempts (end_time, diagnosis_input_path)
    WHERE diagnosis_input_path <> ''""",
    # `lot`: which draw; held_out: the draw left its pre-run out
    "ALTER TABLE submissions ADD COLUMN lot TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE submissions ADD COLUMN held_out INTEGER NOT NULL DEFAULT 0",
    "DROP INDEX submissions_by_script",
    "CREATE INDEX submissions_by_script ON submissions (script_sha256, fingerprint)",
    "CREATE INDEX submissions_in_lot ON submissions (at) WHERE lot <> ''",
    "CREATE INDEX submissions_by_prerun ON submissions (prerun_job_id) WHERE prerun_job_id IS NOT NULL",
    *(
        f"INSERT OR IGNORE INTO {table} (name) SELECT DISTINCT {c} FROM attempts WHERE {c} IS NOT NULL"
        for c, table in _RUN_NAMES.items()
    ),
    "INSERT INTO runs "
    + _run_of("a", _TRIAL.format(row="a"), _STOPPED.format(row="a"))
    + " FROM attempts a WHERE a.end_time IS NOT NULL",
    *_kept(),
    f"CREATE TRIGGER runs_delete AFTER DELETE ON attempts WHEN old.end_time IS NOT NULL BEGIN\n    {_FORGET_RUN};\nEND",
    f"CREATE TRIGGER runs_of_trials AFTER INSERT ON preruns BEGIN\n    {_A_TRIAL};\nEND",
    f"""CREATE TRIGGER runs_of_stopped AFTER INSERT ON preruns
WHEN new.verdict_outcome = 'fail' AND new.job_id IS NOT NULL BEGIN\n    {_A_STOPPED_JOB};\nEND""",
    f"""CREATE TRIGGER runs_of_submitted_trials AFTER INSERT ON submissions WHEN new.prerun_job_id IS NOT NULL
BEGIN\n    {_A_TRIAL};\nEND""",
    f"""CREATE TRIGGER runs_of_trials_told_later AFTER UPDATE OF prerun_job_id ON submissions
WHEN new.prerun_job_id IS NOT NULL BEGIN\n    {_A_TRIAL};\nEND""",
)
