"""The database's tables, as a numbered list of steps forward. A step that was released is never changed.

`PRAGMA user_version` counts the steps done; `PRAGMA application_id` says that the file is ours. All steps of one
opening run in one transaction: the file is at its old version or at the newest, never between. docs/database.md
describes the result.
"""

from __future__ import annotations

from slurmwrap.store.running_totals import TOTALS
from slurmwrap.store.runs_table import REPORT, WITH_ERROR

APPLICATION_ID = 0x534C5752  # "SLWR"

# JSON: fields of a record that have no column yet, so that a record of a newer version is kept whole.
_KEPT_WHOLE = "more TEXT NOT NULL DEFAULT '{}'"

_TABLES = (
    f"""CREATE TABLE observations ( -- one file of the spool, as a hook, gsub or a pre-run wrote it
    nonce TEXT PRIMARY KEY,
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL, -- raw job id
    context TEXT NOT NULL, -- prolog, epilog, epilog_slurmctld, submit, prerun or slurm
    at REAL NOT NULL, -- Unix seconds
    node TEXT NOT NULL,
    uid INTEGER NOT NULL, -- of the writer, by MUNGE; -1: the directory's owner
    facts TEXT NOT NULL, -- JSON
    {_KEPT_WHOLE}
) WITHOUT ROWID""",
    "CREATE INDEX observations_by_job ON observations (cluster, job_id, at)",
    """CREATE TABLE set_aside ( -- spool files that were not believed, counted
    uid INTEGER NOT NULL, -- whose file; -1: unknown
    reason TEXT NOT NULL,
    count INTEGER NOT NULL,
    first_at REAL NOT NULL,
    last_at REAL NOT NULL,
    last_name TEXT NOT NULL,
    PRIMARY KEY (uid, reason)
) WITHOUT ROWID""",
    f"""CREATE TABLE attempts ( -- one run of a job; SubmitTime changes on requeue
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds, as all times
    address TEXT NOT NULL, -- what scontrol is given: "81" or "77_2"
    restarts INTEGER NOT NULL,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    state TEXT NOT NULL, -- final Slurm state; "" while it runs
    reason TEXT NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    derived_exit_code INTEGER,
    nodes TEXT NOT NULL, -- JSON list
    gpus INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    eligible_time INTEGER,
    start_time INTEGER,
    end_time INTEGER,
    time_limit_s INTEGER,
    std_out TEXT NOT NULL,
    std_err TEXT NOT NULL,
    measurement TEXT, -- JSON
    diagnosis_category TEXT, -- NULL: not judged yet
    diagnosis_domain TEXT,
    diagnosis_decision TEXT, -- the taxonomy's
    diagnosis_confidence REAL,
    diagnosis_signature TEXT,
    diagnosis_evidence TEXT, -- JSON list of source, line, text
    diagnosis_advice TEXT,
    diagnosis_node TEXT,
    diagnosis_conclusive INTEGER,
    diagnosis_input_path TEXT,
    decision TEXT NOT NULL, -- after ledger and consent
    decision_reason TEXT NOT NULL,
    reconciled INTEGER NOT NULL, -- 1: every intended action is done or given up
    {_KEPT_WHOLE},
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID""",
    "CREATE INDEX attempts_by_end ON attempts (end_time)",
    "CREATE INDEX attempts_by_user ON attempts (user, submit_time)",
    "CREATE INDEX attempts_by_address ON attempts (address)",
    "CREATE INDEX attempts_to_do ON attempts (submit_time) WHERE reconciled = 0",
    f"""CREATE TABLE actions ( -- changes of Slurm: intended first, then done
    action_id INTEGER PRIMARY KEY,
    cluster TEXT, -- NULL, with the next two: not about one attempt
    job_id INTEGER,
    submit_time INTEGER,
    rule TEXT NOT NULL,
    mode TEXT NOT NULL, -- observe, advise or act
    verb TEXT NOT NULL, -- scontrol's or scancel's
    target TEXT NOT NULL, -- job address or node
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    because TEXT NOT NULL,
    intended_at REAL NOT NULL,
    done_at REAL, -- NULL: not done
    error TEXT NOT NULL, -- "": it worked
    {_KEPT_WHOLE},
    FOREIGN KEY (cluster, job_id, submit_time) REFERENCES attempts (cluster, job_id, submit_time)
)""",
    "CREATE UNIQUE INDEX actions_once ON actions (cluster, job_id, submit_time, rule, verb, target, key, value)",
    "CREATE INDEX actions_to_do ON actions (action_id) WHERE done_at IS NULL",
    f"""CREATE TABLE strikes ( -- counts against nodes; kernel, NVML and Slurm evidence only
    strike_id INTEGER PRIMARY KEY,
    node TEXT NOT NULL,
    cause TEXT NOT NULL, -- category
    conclusive INTEGER NOT NULL,
    text TEXT NOT NULL,
    at REAL NOT NULL,
    job_id INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    cluster TEXT, -- of the attempt whose diagnosis gave the strike; NULL: another source
    submit_time INTEGER,
    {_KEPT_WHOLE}
)""",
    "CREATE INDEX strikes_by_time ON strikes (at)",
    "CREATE INDEX strikes_by_attempt ON strikes (cluster, job_id, submit_time)",
    f"""CREATE TABLE blocked_inputs ( -- files that made jobs fail
    digest TEXT NOT NULL, -- of the file's size and its first and last MiB
    uid INTEGER NOT NULL, -- whom it binds; -1: everyone
    path TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL,
    job_id INTEGER NOT NULL,
    {_KEPT_WHOLE},
    PRIMARY KEY (digest, uid)
) WITHOUT ROWID""",
    f"""CREATE TABLE submissions ( -- one call of gsub, as its user reports it
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    at REAL NOT NULL,
    uid INTEGER NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    script_path TEXT NOT NULL,
    script_sha256 TEXT NOT NULL,
    work_dir TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    retry INTEGER NOT NULL,
    profile_key TEXT NOT NULL,
    prerun_mode TEXT NOT NULL,
    prerun_job_id INTEGER,
    fingerprint TEXT NOT NULL, -- of script, arguments, code and environment
    inputs TEXT NOT NULL, -- JSON list of paths
    output_appends INTEGER NOT NULL,
    plan TEXT NOT NULL, -- JSON: the first PlacementPlan
    changes TEXT NOT NULL, -- JSON list: what the rewrite changed, with reasons
    {_KEPT_WHOLE},
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID""",
    "CREATE INDEX submissions_by_time ON submissions (at)",
    "CREATE INDEX submissions_by_script ON submissions (script_sha256)",
    f"""CREATE TABLE preruns ( -- one ended pre-run, as its user reports it
    cluster TEXT NOT NULL,
    prerun_job_id INTEGER NOT NULL,
    at REAL NOT NULL,
    job_id INTEGER, -- the real job
    uid INTEGER NOT NULL,
    verdict_outcome TEXT NOT NULL, -- pass, fail or inconclusive
    verdict_layer TEXT NOT NULL, -- what decided: static, step, exit, timeout or supervisor
    verdict_reason TEXT NOT NULL,
    verdict_steps INTEGER NOT NULL,
    verdict_seconds REAL NOT NULL,
    verdict_category TEXT NOT NULL,
    verdict_findings TEXT NOT NULL, -- JSON list
    verdict_evidence TEXT NOT NULL, -- JSON list of source, line, text
    verdict_measurement TEXT, -- JSON
    verdict_input_path TEXT NOT NULL,
    verdict_input_fault TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    profile_key TEXT NOT NULL,
    gpus INTEGER NOT NULL, -- of the real job
    plan TEXT NOT NULL, -- JSON: the second PlacementPlan
    changes TEXT NOT NULL, -- JSON list: what was applied to the waiting job
    released INTEGER NOT NULL, -- 1: StartTime=now was accepted
    {_KEPT_WHOLE},
    PRIMARY KEY (cluster, prerun_job_id, at)
) WITHOUT ROWID""",
    "CREATE INDEX preruns_by_job ON preruns (job_id)",
    "CREATE INDEX preruns_by_fingerprint ON preruns (fingerprint)",
    f"""CREATE TABLE profiles ( -- what a job needs per GPU
    key TEXT PRIMARY KEY,
    cpus_per_gpu REAL,
    mem_mib_per_gpu INTEGER, -- MiB
    steps_per_s REAL,
    gpu_type TEXT NOT NULL,
    gpus_per_node INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    preruns INTEGER NOT NULL,
    confidence REAL NOT NULL,
    source TEXT NOT NULL,
    measured_at REAL NOT NULL,
    {_KEPT_WHOLE}
) WITHOUT ROWID""",
    """CREATE TABLE measurements ( -- what went into profiles
    key TEXT NOT NULL,
    at REAL NOT NULL,
    source TEXT NOT NULL, -- prerun or epilog
    measurement TEXT NOT NULL, -- JSON
    PRIMARY KEY (key, at, source, measurement)
) WITHOUT ROWID""",
)

_FOR_PEOPLE = (
    """CREATE VIEW failures AS -- what failed, newest first, without the columns that programs need
    SELECT datetime(end_time, 'unixepoch') AS ended_utc, cluster, address, user, name, state,
        diagnosis_category AS category, round(gpus * (end_time - start_time) / 3600.0, 2) AS gpu_hours,
        decision, decision_reason, diagnosis_advice AS advice
    FROM attempts
    WHERE diagnosis_category IS NOT NULL AND diagnosis_category NOT IN ('success', 'cancelled')
    ORDER BY end_time DESC""",
    """CREATE TABLE migrations ( -- when this file was brought to each version
    version INTEGER PRIMARY KEY,
    at REAL NOT NULL
)""",
)

_INCIDENTS = (
    f"""CREATE TABLE incidents ( -- one infrastructure cause that struck several jobs within minutes
    incident_id TEXT PRIMARY KEY, -- of category, scope and beginning
    category TEXT NOT NULL,
    scope TEXT NOT NULL, -- "path /scratch", "switch leaf0", "host hub.example" or "cluster"
    began REAL NOT NULL, -- Unix seconds, end of the first failed run
    last REAL NOT NULL, -- end of the newest one that is believed
    over_at REAL, -- NULL: still open
    jobs TEXT NOT NULL, -- JSON list of job ids as sbatch printed them
    uids TEXT NOT NULL, -- JSON list
    nodes TEXT NOT NULL, -- JSON list: where they failed
    reach TEXT NOT NULL, -- JSON list: nodes below the switch
    quiet_s REAL NOT NULL,
    spread_s REAL NOT NULL,
    max_s REAL NOT NULL,
    {_KEPT_WHOLE}
) WITHOUT ROWID""",
    "CREATE INDEX incidents_by_end ON incidents (over_at)",
    "ALTER TABLE strikes ADD COLUMN incident TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE attempts ADD COLUMN incident TEXT NOT NULL DEFAULT ''",
    """UPDATE attempts SET incident = coalesce(json_extract(more, '$.incident'), ''),
        more = json_remove(more, '$.incident') WHERE json_extract(more, '$.incident') IS NOT NULL""",
    "CREATE INDEX attempts_by_incident ON attempts (incident) WHERE incident <> ''",
)

_NODE_HISTORY = (
    "ALTER TABLE strikes ADD COLUMN cleared_at REAL",
    "ALTER TABLE strikes ADD COLUMN cleared_by TEXT NOT NULL DEFAULT ''",
    """CREATE TABLE gpu_faults ( -- kernel lines about GPUs that an Epilog read
    node TEXT NOT NULL,
    at REAL NOT NULL,
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    uid INTEGER NOT NULL, -- of the job
    text TEXT NOT NULL
)""",
    "CREATE INDEX gpu_faults_by_time ON gpu_faults (at)",
    """INSERT INTO gpu_faults
    SELECT node, at, cluster, job_id, coalesce(json_extract(facts, '$.uid'), -1), json_extract(line.value, '$.text')
    FROM observations, json_each(facts, '$.kernel') AS line
    WHERE context = 'epilog' AND line.type = 'object' AND instr(json_extract(line.value, '$.text'), 'Xid') > 0""",
    f"""CREATE TABLE removals ( -- times that a node was out of service, as Slurm was seen to say
    node TEXT NOT NULL,
    began REAL NOT NULL,
    reason TEXT NOT NULL,
    ours INTEGER NOT NULL, -- 1: a drain of ours
    ended REAL, -- NULL: it is still out
    {_KEPT_WHOLE},
    PRIMARY KEY (node, began)
) WITHOUT ROWID""",
    "CREATE INDEX removals_open ON removals (node) WHERE ended IS NULL",
    f"""CREATE TABLE repairs ( -- marks that people left on nodes; nothing is ever deleted
    node TEXT NOT NULL,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    kind TEXT NOT NULL, -- repaired, lifted (a drain of ours), cleared
    note TEXT NOT NULL,
    {_KEPT_WHOLE},
    PRIMARY KEY (node, at, kind)
) WITHOUT ROWID""",
    # All that the exposure of nodes is made of, so that the wide rows need not be read.
    """CREATE INDEX attempts_exposure ON attempts (end_time, start_time, nodes)
    WHERE start_time IS NOT NULL AND end_time IS NOT NULL""",
    "CREATE INDEX attempts_node_failures ON attempts (end_time) WHERE diagnosis_category = 'node_failure'",
)

_DELAYS = (
    f"""CREATE TABLE delays ( -- how long a run waited after it became eligible, and for what
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds, as all times; changes on requeue
    address TEXT NOT NULL,
    user TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    eligible_at REAL NOT NULL,
    seen_at REAL NOT NULL, -- all up to here is counted
    fair_share_s REAL NOT NULL, -- priority, limits, or too few free GPUs
    fragmentation_s REAL NOT NULL, -- enough free GPUs, but scattered
    unknown_s REAL NOT NULL, -- nobody looked
    waits_for TEXT NOT NULL, -- at the last look: "fair share" or "fragmentation"
    over INTEGER NOT NULL, -- 1: it started, or is gone
    {_KEPT_WHOLE},
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID""",
    "CREATE INDEX delays_open ON delays (cluster) WHERE over = 0",
    "CREATE INDEX delays_by_time ON delays (seen_at)",
    "CREATE INDEX delays_by_job ON delays (job_id)",
)

_ASKED_AND_REACHED = "mem_mib_per_node mem_mib_per_cpu retry_at diagnosis_step diagnosis_checkpoint_step"

# What lets a year of runs stay in 2 GB (docs/database.md, "How long it is kept"). The columns are what a report and
# the ledger ask of a run that has lost its details; `slim` says that it has.
_RETENTION = (
    *(
        f"ALTER TABLE attempts ADD COLUMN {column}"
        for column in (
            "mem_mib_per_node INTEGER",  # as asked for
            "mem_mib_per_cpu INTEGER",
            "retry_at REAL",  # when the next run may start
            "diagnosis_step INTEGER",  # the user's word, as the next two
            "diagnosis_checkpoint_step INTEGER",
            "diagnosis_resumed INTEGER",
            "slim INTEGER NOT NULL DEFAULT 0",  # 1: its log lines, paths and measurement were removed
        )
    ),
    *(f"ALTER TABLE {table} ADD COLUMN slim INTEGER NOT NULL DEFAULT 0" for table in ("submissions", "preruns")),
    *(
        f"""UPDATE attempts SET {column} = json_extract(more, '$.{column}'), more = json_remove(more, '$.{column}')
        WHERE json_type(more, '$.{column}') IS NOT NULL"""
        for column in (*_ASKED_AND_REACHED.split(), "diagnosis_resumed")
    ),
    # WITHOUT ROWID keeps a quarter of a page of a row and puts the rest on a page of its own: most of a file was such
    # half empty pages. Only the two that hold JSON in most rows are made anew.
    """CREATE TABLE observations_with_rowid ( -- one file of the spool, as a hook, gsub or a pre-run wrote it
    nonce TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL, -- raw job id
    context TEXT NOT NULL, -- prolog, epilog, epilog_slurmctld, submit, prerun or slurm
    at REAL NOT NULL, -- Unix seconds
    node TEXT NOT NULL,
    uid INTEGER NOT NULL, -- of the writer, by MUNGE; -1: the directory's owner
    facts TEXT NOT NULL, -- JSON
    more TEXT NOT NULL DEFAULT '{}'
)""",
    "INSERT INTO observations_with_rowid SELECT * FROM observations",
    "DROP TABLE observations",
    "ALTER TABLE observations_with_rowid RENAME TO observations",
    "CREATE INDEX observations_by_job ON observations (cluster, job_id, at)",
    "CREATE INDEX observations_by_time ON observations (at)",
    """CREATE TABLE seen ( -- observations that were removed, so that a copy of one is still known
    nonce BLOB PRIMARY KEY, -- the first 12 bytes of its SHA-256
    at INTEGER NOT NULL
) WITHOUT ROWID""",
    """CREATE TABLE pruned ( -- how far each kind of pruning came
    what TEXT PRIMARY KEY,
    before REAL NOT NULL, -- Unix seconds: nothing older is left
    at REAL NOT NULL, -- when
    rows INTEGER NOT NULL -- changed or removed, ever
) WITHOUT ROWID""",
    # What a list of jobs is never asked for without a time, or is found by the key.
    *(f"DROP INDEX {index}" for index in ("attempts_by_user", "attempts_by_address", "attempts_exposure")),
    "DROP INDEX delays_by_job",
    # Wider than the rows it served. That nothing is intended twice is seen to in the transaction that writes it.
    "DROP INDEX actions_once",
    "CREATE INDEX actions_of_attempt ON actions (cluster, job_id, submit_time)",
    "CREATE INDEX delays_detailed ON delays (seen_at) WHERE over = 1 AND address <> ''",
    "CREATE INDEX attempts_of_arrays ON attempts (address) WHERE address <> CAST(job_id AS TEXT)",
    # All that the exposure of nodes is made of, so that the wide rows need not be read.
    "CREATE INDEX attempts_exposure ON attempts (end_time, start_time, nodes) WHERE slim = 0",
    "CREATE INDEX submissions_detailed ON submissions (at) WHERE slim = 0",
    "CREATE INDEX preruns_detailed ON preruns (at) WHERE slim = 0",
    *TOTALS,
)

_RESETS = (
    f"""CREATE TABLE ledger_resets ( -- what a job failed of up to then counts no more against its retries
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL, -- raw job id
    at REAL NOT NULL, -- Unix seconds
    who TEXT NOT NULL,
    note TEXT NOT NULL,
    {_KEPT_WHOLE},
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID""",
    "CREATE INDEX preruns_failed ON preruns (at) WHERE verdict_outcome = 'fail'",
)

# Step N (from 1) brings a database from version N-1 to version N.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    *(_TABLES, _FOR_PEOPLE, _INCIDENTS, _NODE_HISTORY, _DELAYS),
    *(REPORT, _RETENTION, _RESETS, WITH_ERROR),
)
VERSION = len(MIGRATIONS)
