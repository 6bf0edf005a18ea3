-- The tables of slurmwrap's database: version 1 of the schema. slurmwrap/store/migrations.py lists what came later.
-- Every table and every column has a comment; docs/database.md and Datasette show it (slurmwrap/store/schema_docs.py).
-- Times are Unix seconds. `more` is JSON: fields of a record that have no column yet, so that a record that a newer
-- version wrote is kept whole.

-- `observations` and `actions` have row ids: WITHOUT ROWID, SQLite keeps a quarter of a page of a row and puts the rest
-- on a page of its own, and most pages of a file would be half empty.
CREATE TABLE observations ( -- one file of the spool, as a hook, gsub or a pre-run wrote it
    nonce TEXT NOT NULL PRIMARY KEY, -- 128 random bits; a user's begins with their uid
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    context TEXT NOT NULL, -- prolog, epilog, epilog_slurmctld, submit, prerun or slurm
    at REAL NOT NULL, -- Unix seconds
    node TEXT NOT NULL, -- NodeName
    uid INTEGER NOT NULL, -- of the writer, by MUNGE; -1: the directory's owner
    facts TEXT NOT NULL, -- JSON
    more TEXT NOT NULL DEFAULT '{}' -- JSON: fields of the record that have no column
);
CREATE INDEX observations_by_job ON observations (cluster, job_id, at);
CREATE INDEX observations_by_time ON observations (at);

CREATE TABLE seen ( -- nonces of removed observations, so that a copy of one is still recognized
    nonce BLOB PRIMARY KEY, -- the first 12 bytes of its SHA-256
    at INTEGER NOT NULL -- Unix seconds: of the observation
) WITHOUT ROWID;

CREATE TABLE rejected_entries ( -- counts of rejected spool files
    uid INTEGER NOT NULL, -- owner of the file; -1: unknown
    reason TEXT NOT NULL, -- why it was rejected
    count INTEGER NOT NULL, -- how many
    first_at REAL NOT NULL, -- Unix seconds
    last_at REAL NOT NULL, -- Unix seconds
    last_name TEXT NOT NULL, -- name of the newest file
    PRIMARY KEY (uid, reason)
) WITHOUT ROWID;

CREATE TABLE attempts ( -- one run of a job; SubmitTime changes on requeue
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds, as all times
    address TEXT NOT NULL, -- the address that scontrol takes: "81" or "77_2"
    restarts INTEGER NOT NULL, -- how often Slurm requeued it before
    name TEXT NOT NULL, -- job name
    user TEXT NOT NULL, -- login name of the job's owner
    uid INTEGER NOT NULL, -- of the job's owner; -1: unknown
    account TEXT NOT NULL, -- Slurm account
    partition TEXT NOT NULL, -- partition, or several with commas between
    state TEXT NOT NULL, -- final Slurm state; "" while it runs
    reason TEXT NOT NULL, -- Slurm's Reason
    exit_code INTEGER, -- of the batch script
    signal INTEGER, -- the signal that ended the batch script
    derived_exit_code INTEGER, -- highest exit code of its steps
    nodes TEXT NOT NULL, -- JSON list of NodeNames
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    cpus INTEGER NOT NULL, -- CPUs of the whole job
    eligible_time INTEGER, -- Unix seconds; NULL in a slim row: the same as submit_time
    start_time INTEGER, -- Unix seconds; NULL: it never started
    end_time INTEGER, -- Unix seconds; NULL: it has not ended
    time_limit_s INTEGER, -- seconds
    std_out TEXT NOT NULL, -- path; empty once slim
    std_err TEXT NOT NULL, -- path; empty once slim
    measurement TEXT, -- JSON: what the Epilogs measured, MiB and seconds; NULL once slim
    diagnosis_category TEXT, -- NULL: not judged yet
    diagnosis_domain TEXT, -- U user program, AE engine, IF infrastructure, RS resource scheduler
    diagnosis_decision TEXT, -- the default decision of the taxonomy
    diagnosis_confidence REAL, -- 0 to 1
    diagnosis_signature TEXT, -- id of the signature that decided
    diagnosis_evidence TEXT, -- JSON list of source, line, text
    diagnosis_advice TEXT, -- one sentence to the researcher
    diagnosis_node TEXT, -- the node that is blamed; empty: none
    diagnosis_conclusive INTEGER, -- 1: the fault takes the node out by itself
    diagnosis_input_path TEXT, -- the file that is blamed; from the job's output
    decision TEXT NOT NULL, -- after retry budget and consent
    decision_reason TEXT NOT NULL, -- one sentence
    reconciled INTEGER NOT NULL, -- 1: every intended action is done or given up
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    incident TEXT NOT NULL DEFAULT '', -- incidents.incident_id; empty: none
    mem_mib_per_node INTEGER, -- MiB, as asked for
    mem_mib_per_cpu INTEGER, -- MiB, as asked for
    retry_at REAL, -- Unix seconds: when the next run may start
    diagnosis_step INTEGER, -- furthest training step seen; from the job's output
    diagnosis_checkpoint_step INTEGER, -- step of its newest checkpoint; from the job's output
    diagnosis_resumed INTEGER, -- 1: it resumed from a checkpoint; from the job's output
    slim INTEGER NOT NULL DEFAULT 0, -- 1: its details were removed after [retention] detail_d
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID;
CREATE INDEX attempts_by_end ON attempts (end_time);
CREATE INDEX attempts_to_do ON attempts (submit_time) WHERE reconciled = 0;
CREATE INDEX attempts_by_incident ON attempts (incident) WHERE incident <> '';
CREATE INDEX attempts_node_failures ON attempts (end_time) WHERE diagnosis_category = 'node_failure';
CREATE INDEX attempts_blamed_inputs ON attempts (end_time, diagnosis_input_path)
    WHERE diagnosis_input_path <> '';
CREATE INDEX attempts_of_arrays ON attempts (address) WHERE address <> CAST(job_id AS TEXT);
-- All that the exposure of nodes is computed from, so that the wide rows need not be read.
CREATE INDEX attempts_exposure ON attempts (end_time, start_time, nodes) WHERE slim = 0;

CREATE TABLE runs ( -- one ended row of attempts in 45 bytes, kept by triggers: the report of a year reads these
    end_time INTEGER NOT NULL, -- Unix seconds
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds; changes on requeue
    cluster INTEGER NOT NULL, -- names.id, as user, account and category
    run_s INTEGER NOT NULL, -- seconds from start to end; 0: it never started
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    nodes INTEGER NOT NULL, -- how many
    user INTEGER NOT NULL, -- names.id of the owner's login name
    account INTEGER NOT NULL, -- names.id of the Slurm account
    name INTEGER NOT NULL, -- job_names.id
    category INTEGER, -- names.id; NULL: not judged
    outcome INTEGER NOT NULL, -- 0 not judged, 1 completed, 2 failed, 3 cancelled, 4 completed with an error in its output
    excluded INTEGER NOT NULL, -- 1: a pre-run's own job; 2: stopped by its pre-run, it never ran
    is_rerun INTEGER NOT NULL, -- 1: not the job's first run
    incident TEXT, -- incidents.incident_id
    gpu_permille INTEGER, -- GPU use by NVML's accounting; these two stay when attempts.measurement goes
    gpus_unused INTEGER, -- GPUs on which no process was ever seen
    PRIMARY KEY (end_time, job_id, submit_time, cluster)
) WITHOUT ROWID;

CREATE TABLE names ( -- users, accounts, clusters and categories with the numbers that `runs` holds
    id INTEGER PRIMARY KEY, -- number, rising
    name NOT NULL UNIQUE -- the user, account, cluster or category
);

CREATE TABLE job_names ( -- job names with the numbers that `runs` holds
    id INTEGER PRIMARY KEY, -- number, rising
    name NOT NULL UNIQUE -- the job name
);

CREATE TABLE actions ( -- changes of Slurm; the intention is stored before the change
    action_id INTEGER PRIMARY KEY, -- number, rising
    cluster TEXT, -- NULL, as the next two: not about one run
    job_id INTEGER, -- raw job id
    submit_time INTEGER, -- Unix seconds; changes on requeue
    rule TEXT NOT NULL, -- of [rules] in the configuration
    mode TEXT NOT NULL, -- observe, advise or act
    verb TEXT NOT NULL, -- scontrol's or scancel's
    target TEXT NOT NULL, -- job address or node
    key TEXT NOT NULL, -- the key that scontrol updates
    value TEXT NOT NULL, -- its new value
    reason TEXT NOT NULL, -- one sentence
    intended_at REAL NOT NULL, -- Unix seconds; written before Slurm is asked
    done_at REAL, -- Unix seconds; NULL: not done
    error TEXT NOT NULL, -- "": it worked
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    FOREIGN KEY (cluster, job_id, submit_time) REFERENCES attempts (cluster, job_id, submit_time)
);
CREATE INDEX actions_to_do ON actions (action_id) WHERE done_at IS NULL;
CREATE INDEX actions_by_time ON actions (intended_at);
CREATE INDEX actions_of_attempt ON actions (cluster, job_id, submit_time);

CREATE TABLE incidents ( -- one infrastructure cause that made several jobs fail within minutes
    incident_id TEXT PRIMARY KEY, -- of category, scope and beginning
    category TEXT NOT NULL, -- of the taxonomy
    scope TEXT NOT NULL, -- "path /scratch", "switch leaf0", "host hub.example" or "cluster"
    began REAL NOT NULL, -- Unix seconds, end of the first failed run
    last REAL NOT NULL, -- Unix seconds, end of the newest failed run that is trusted
    over_at REAL, -- Unix seconds; NULL: still open
    jobs TEXT NOT NULL, -- JSON list of job ids as sbatch printed them
    uids TEXT NOT NULL, -- JSON list
    nodes TEXT NOT NULL, -- JSON list: where they failed
    reach TEXT NOT NULL, -- JSON list: nodes below the switch
    quiet_s REAL NOT NULL, -- it is over when no run failed of it for this time, seconds
    spread_s REAL NOT NULL, -- its retries start spread over this time after its end, seconds
    max_s REAL NOT NULL, -- its longest duration, seconds
    more TEXT NOT NULL DEFAULT '{}' -- JSON: fields of the record that have no column
) WITHOUT ROWID;
CREATE INDEX incidents_by_end ON incidents (over_at);

CREATE TABLE strikes ( -- counts against nodes; kernel, NVML and Slurm evidence only
    strike_id INTEGER PRIMARY KEY, -- number, rising
    node TEXT NOT NULL, -- NodeName
    cause TEXT NOT NULL, -- category
    conclusive INTEGER NOT NULL, -- 1: the fault takes the node out by itself
    text TEXT NOT NULL, -- the line, cut
    at REAL NOT NULL, -- Unix seconds
    job_id INTEGER NOT NULL, -- raw job id
    uid INTEGER NOT NULL, -- of the job's owner; -1: unknown
    cluster TEXT, -- cluster of the run whose diagnosis gave the strike; NULL: another source
    submit_time INTEGER, -- SubmitTime of that run
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    incident TEXT NOT NULL DEFAULT '', -- incidents.incident_id: the strike no longer counts
    cleared_at REAL, -- Unix seconds: an administrator declared it void
    cleared_by TEXT NOT NULL DEFAULT '' -- login name of the person
);
CREATE INDEX strikes_by_time ON strikes (at);
CREATE INDEX strikes_by_attempt ON strikes (cluster, job_id, submit_time);

CREATE TABLE gpu_faults ( -- kernel lines about GPUs that an Epilog read
    node TEXT NOT NULL, -- NodeName
    at REAL NOT NULL, -- Unix seconds
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    uid INTEGER NOT NULL, -- of the job
    text TEXT NOT NULL -- the line, cut
);
CREATE INDEX gpu_faults_by_time ON gpu_faults (at);

CREATE TABLE removals ( -- times that a node was out of service, from Slurm's node states
    node TEXT NOT NULL, -- NodeName
    began REAL NOT NULL, -- Unix seconds
    reason TEXT NOT NULL, -- Slurm's Reason of the node
    ours INTEGER NOT NULL, -- 1: a drain by slurmwrap
    ended REAL, -- Unix seconds; NULL: it is still out
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (node, began)
) WITHOUT ROWID;
CREATE INDEX removals_open ON removals (node) WHERE ended IS NULL;

CREATE TABLE repairs ( -- repairs and other marks that administrators set on nodes; rows are never deleted
    node TEXT NOT NULL, -- NodeName
    at REAL NOT NULL, -- Unix seconds
    who TEXT NOT NULL, -- login name of the person
    kind TEXT NOT NULL, -- repaired, lifted (a drain by slurmwrap), cleared
    note TEXT NOT NULL, -- the note that this person gave
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (node, at, kind)
) WITHOUT ROWID;

CREATE TABLE blocked_inputs ( -- files that made jobs fail
    digest TEXT NOT NULL, -- of the file's size and its first and last MiB
    uid INTEGER NOT NULL, -- uid of the user whose jobs it blocks; -1: all users
    path TEXT NOT NULL, -- absolute path
    reason TEXT NOT NULL, -- why, in a sentence
    at REAL NOT NULL, -- Unix seconds
    job_id INTEGER NOT NULL, -- job that failed because of it
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (digest, uid)
) WITHOUT ROWID;

CREATE TABLE submissions ( -- one call of gsub, as its user reports it
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    at REAL NOT NULL, -- Unix seconds, the submit host's clock
    uid INTEGER NOT NULL, -- of the job's owner; -1: unknown
    user TEXT NOT NULL, -- login name of the job's owner
    name TEXT NOT NULL, -- job name
    script_path TEXT NOT NULL, -- empty once slim
    script_sha256 TEXT NOT NULL, -- of the script; 16 characters once slim
    work_dir TEXT NOT NULL, -- empty once slim
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    nodes INTEGER NOT NULL, -- number of nodes
    retry INTEGER NOT NULL, -- 1: its user agreed to retries
    profile_key TEXT NOT NULL, -- profiles.key, without the uid
    prerun_mode TEXT NOT NULL, -- as in the configuration
    prerun_job_id INTEGER, -- job id of its pre-run
    fingerprint TEXT NOT NULL, -- of script, arguments, code and environment; 16 characters once slim
    inputs TEXT NOT NULL, -- JSON list of paths
    output_appends INTEGER NOT NULL, -- 1: a retry may write to the same output file
    plan TEXT NOT NULL, -- JSON: the first PlacementPlan; {} once slim
    changes TEXT NOT NULL, -- JSON list: what the rewrite changed, with reasons; [] once slim
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    holdout_group TEXT NOT NULL DEFAULT '', -- the randomized hold-out group that it was assigned to; empty: none
    held_out INTEGER NOT NULL DEFAULT 0, -- 1: by that draw it has no pre-run
    slim INTEGER NOT NULL DEFAULT 0, -- 1: its details were removed after [retention] detail_d
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID;
CREATE INDEX submissions_by_time ON submissions (at);
CREATE INDEX submissions_by_script ON submissions (script_sha256, fingerprint);
CREATE INDEX submissions_in_holdout ON submissions (at) WHERE holdout_group <> '';
CREATE INDEX submissions_by_prerun ON submissions (prerun_job_id) WHERE prerun_job_id IS NOT NULL;
CREATE INDEX submissions_detailed ON submissions (at) WHERE slim = 0;

CREATE TABLE preruns ( -- one ended pre-run, as its user reports it
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    prerun_job_id INTEGER NOT NULL, -- job id of the pre-run itself
    at REAL NOT NULL, -- Unix seconds
    job_id INTEGER, -- the real job
    uid INTEGER NOT NULL, -- of the job's owner; -1: unknown
    verdict_outcome TEXT NOT NULL, -- pass, fail or inconclusive
    verdict_layer TEXT NOT NULL, -- what decided: static, step, exit, timeout or supervisor
    verdict_reason TEXT NOT NULL, -- one sentence
    verdict_steps INTEGER NOT NULL, -- optimizer steps that ran
    verdict_seconds REAL NOT NULL, -- how long it ran
    verdict_category TEXT NOT NULL, -- of the taxonomy; empty: none
    verdict_findings TEXT NOT NULL, -- JSON list
    verdict_evidence TEXT NOT NULL, -- JSON list of source, line, text
    verdict_measurement TEXT, -- JSON
    verdict_input_path TEXT NOT NULL, -- the file that is blamed
    verdict_input_fault TEXT NOT NULL, -- error of slurmwrap's own read of that file
    fingerprint TEXT NOT NULL, -- of script, arguments, code and environment; 16 characters once slim
    profile_key TEXT NOT NULL, -- profiles.key, without the uid
    gpus INTEGER NOT NULL, -- of the real job
    plan TEXT NOT NULL, -- JSON: the second PlacementPlan
    changes TEXT NOT NULL, -- JSON list: what was applied to the waiting job
    released INTEGER NOT NULL, -- 1: StartTime=now was accepted
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    slim INTEGER NOT NULL DEFAULT 0, -- 1: its details were removed after [retention] detail_d
    PRIMARY KEY (cluster, prerun_job_id, at)
) WITHOUT ROWID;
CREATE INDEX preruns_by_job ON preruns (job_id);
CREATE INDEX preruns_by_fingerprint ON preruns (fingerprint);
CREATE INDEX preruns_by_time ON preruns (at, verdict_outcome, verdict_seconds, uid, job_id);
CREATE INDEX preruns_detailed ON preruns (at) WHERE slim = 0;
CREATE INDEX preruns_failed ON preruns (at) WHERE verdict_outcome = 'fail';

CREATE TABLE profiles ( -- what a job needs per GPU
    key TEXT PRIMARY KEY, -- key of the profile
    cpus_per_gpu REAL, -- least CPUs within 5 % of the best throughput
    mem_mib_per_gpu INTEGER, -- MiB
    steps_per_s REAL, -- per GPU
    gpu_type TEXT NOT NULL, -- GRES type; empty: unknown
    gpus_per_node INTEGER NOT NULL, -- GPUs per node it was measured with
    runs INTEGER NOT NULL, -- complete runs that went into it
    preruns INTEGER NOT NULL, -- pre-runs that went into it
    confidence REAL NOT NULL, -- 0 to 1
    source TEXT NOT NULL, -- where it was measured
    measured_at REAL NOT NULL, -- Unix seconds, the newest
    more TEXT NOT NULL DEFAULT '{}' -- JSON: fields of the record that have no column
) WITHOUT ROWID;

CREATE TABLE measurements ( -- the measurements that profiles are made of
    key TEXT NOT NULL, -- key of the profile
    at REAL NOT NULL, -- Unix seconds
    source TEXT NOT NULL, -- prerun or epilog
    measurement TEXT NOT NULL, -- JSON
    PRIMARY KEY (key, at, source, measurement)
) WITHOUT ROWID;

CREATE TABLE delays ( -- how long a run waited after it became eligible, by cause
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds, as all times; changes on requeue
    address TEXT NOT NULL, -- as sbatch prints it: 81, or 77_2 for an array task
    user TEXT NOT NULL, -- login name of the job's owner
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    eligible_at REAL NOT NULL, -- Unix seconds
    seen_at REAL NOT NULL, -- Unix seconds; the wait up to then is counted
    fair_share_s REAL NOT NULL, -- priority, limits, or too few free GPUs
    fragmentation_s REAL NOT NULL, -- enough free GPUs, but scattered
    unknown_s REAL NOT NULL, -- time without a pass of the reconciler
    waits_for TEXT NOT NULL, -- at the last pass: "fair share" or "fragmentation"
    over INTEGER NOT NULL, -- 1: the run started, or Slurm no longer has it
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID;
CREATE INDEX delays_open ON delays (cluster) WHERE over = 0;
CREATE INDEX delays_by_time ON delays (seen_at);
CREATE INDEX delays_detailed ON delays (seen_at) WHERE over = 1 AND address <> '';

CREATE TABLE budget_resets ( -- failures of a job before this time no longer count against its retry budget
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    at REAL NOT NULL, -- Unix seconds
    who TEXT NOT NULL, -- login name of the person
    note TEXT NOT NULL, -- the note that this person gave
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID;

CREATE TABLE totals ( -- counts since the file was made, kept by triggers; pruning does not lower them
    metric TEXT NOT NULL, -- as in `slurmwrap metrics`, without its prefix and suffix
    a TEXT NOT NULL, -- value of its first label
    b TEXT NOT NULL, -- value of its second label
    value REAL NOT NULL, -- the count, or sum
    PRIMARY KEY (metric, a, b)
) WITHOUT ROWID;

CREATE TABLE pruned ( -- the progress of each kind of pruning
    what TEXT PRIMARY KEY, -- kind of row, as `slurmwrap db prune` names it
    before REAL NOT NULL, -- Unix seconds: no older row is left
    at REAL NOT NULL, -- Unix seconds
    rows INTEGER NOT NULL -- number of rows changed or removed so far
) WITHOUT ROWID;

CREATE TABLE migrations ( -- when this file was brought to each version
    version INTEGER PRIMARY KEY, -- of the schema
    at REAL NOT NULL -- Unix seconds
);

CREATE VIEW failures AS -- what failed, newest first, without the columns that programs need
    SELECT
        datetime(end_time, 'unixepoch') AS ended_utc, -- date and time, UTC
        cluster, -- ClusterName of slurm.conf
        address, -- as sbatch prints it: 81, or 77_2 for an array task
        user, -- login name of the job's owner
        name, -- job name
        state, -- final Slurm state
        diagnosis_category AS category, -- of the taxonomy
        round(gpus * (end_time - start_time) / 3600.0, 2) AS gpu_hours, -- GPUs times the time from start to end
        decision, -- after retry budget and consent
        decision_reason, -- one sentence
        diagnosis_advice AS advice -- one sentence to the researcher
    FROM attempts
    WHERE diagnosis_category IS NOT NULL AND diagnosis_category NOT IN ('success', 'cancelled')
    ORDER BY end_time DESC;

-- `runs` holds what a report of a year reads: 4 million of its rows take half a second, those of `attempts` are ten times
-- as wide. Triggers maintain it, so that a statement on `attempts` need not know of it. Names are not inserted with
-- OR IGNORE: the OR REPLACE of the outer statement would override it (https://sqlite.org/lang_createtrigger.html) and
-- give a name another id.
CREATE TRIGGER runs_delete AFTER DELETE ON attempts WHEN old.end_time IS NOT NULL BEGIN
    DELETE FROM runs WHERE end_time = old.end_time AND job_id = old.job_id
    AND submit_time = old.submit_time AND cluster = (SELECT id FROM names WHERE name = old.cluster);
END;

CREATE TRIGGER runs_of_preruns AFTER INSERT ON preruns BEGIN
    UPDATE runs SET excluded = 1 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.prerun_job_id AND a.end_time IS NOT NULL);
END;

CREATE TRIGGER runs_of_stopped_jobs AFTER INSERT ON preruns
WHEN new.verdict_outcome = 'fail' AND new.job_id IS NOT NULL BEGIN
    UPDATE runs SET excluded = 2 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.job_id AND a.end_time IS NOT NULL AND a.nodes = '[]');
END;

CREATE TRIGGER runs_of_submitted_preruns AFTER INSERT ON submissions WHEN new.prerun_job_id IS NOT NULL
BEGIN
    UPDATE runs SET excluded = 1 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.prerun_job_id AND a.end_time IS NOT NULL);
END;

CREATE TRIGGER runs_of_late_preruns AFTER UPDATE OF prerun_job_id ON submissions
WHEN new.prerun_job_id IS NOT NULL BEGIN
    UPDATE runs SET excluded = 1 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.prerun_job_id AND a.end_time IS NOT NULL);
END;

-- `totals` counts each run once, when it is judged.
CREATE TRIGGER totals_run AFTER INSERT ON attempts WHEN new.diagnosis_category IS NOT NULL BEGIN
    INSERT INTO totals SELECT 'attempts', new.diagnosis_category, new.decision, 1 WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'gpu_seconds', new.diagnosis_category, '', new.gpus * max(0, coalesce(new.end_time - new.start_time, 0))
    WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'reruns', CASE new.diagnosis_category WHEN 'success' THEN 'completed' WHEN 'cancelled' THEN 'cancelled'
    ELSE 'failed' END, '', 1 WHERE new.diagnosis_category IS NOT NULL AND new.restarts > 0
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER totals_judged AFTER UPDATE OF diagnosis_category ON attempts
WHEN old.diagnosis_category IS NULL AND new.diagnosis_category IS NOT NULL BEGIN
    INSERT INTO totals SELECT 'attempts', new.diagnosis_category, new.decision, 1 WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'gpu_seconds', new.diagnosis_category, '', new.gpus * max(0, coalesce(new.end_time - new.start_time, 0))
    WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'reruns', CASE new.diagnosis_category WHEN 'success' THEN 'completed' WHEN 'cancelled' THEN 'cancelled'
    ELSE 'failed' END, '', 1 WHERE new.diagnosis_category IS NOT NULL AND new.restarts > 0
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER totals_prerun AFTER INSERT ON preruns BEGIN
    INSERT INTO totals SELECT 'preruns', new.verdict_outcome, '', 1 WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'prerun_gpu_seconds', '', '', new.verdict_seconds WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'prerun_stopped_gpus', '', '', new.gpus WHERE new.verdict_outcome = 'fail' AND new.job_id IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER totals_intended AFTER INSERT ON actions BEGIN
    INSERT INTO totals SELECT 'actions_intended', new.rule, new.mode, 1 WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'actions_done', new.rule, CASE new.error WHEN '' THEN 'done' ELSE 'refused' END, 1
    WHERE new.done_at IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER totals_done AFTER UPDATE OF done_at ON actions WHEN old.done_at IS NULL AND new.done_at IS NOT NULL BEGIN
    INSERT INTO totals SELECT 'actions_done', new.rule, CASE new.error WHEN '' THEN 'done' ELSE 'refused' END, 1
    WHERE new.done_at IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER totals_observed AFTER INSERT ON observations BEGIN
    INSERT INTO totals SELECT 'observations', new.context, '', 1 WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER totals_refused AFTER INSERT ON rejected_entries BEGIN
    INSERT INTO totals SELECT 'observations_refused', '', '', new.count WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER totals_refused_again AFTER UPDATE OF count ON rejected_entries WHEN new.count > old.count BEGIN
    INSERT INTO totals SELECT 'observations_refused', '', '', new.count - old.count WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;

CREATE TRIGGER runs_insert AFTER INSERT ON attempts WHEN new.end_time IS NOT NULL BEGIN
    INSERT INTO names (name) SELECT new.cluster WHERE new.cluster IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.cluster);
    INSERT INTO names (name) SELECT new.user WHERE new.user IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.user);
    INSERT INTO names (name) SELECT new.account WHERE new.account IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.account);
    INSERT INTO names (name) SELECT new.diagnosis_category WHERE new.diagnosis_category IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.diagnosis_category);
    INSERT INTO job_names (name) SELECT new.name WHERE new.name IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM job_names WHERE name = new.name);
    INSERT INTO runs SELECT new.end_time, new.job_id, new.submit_time, (SELECT id FROM names WHERE name = new.cluster),
    CASE WHEN new.start_time IS NULL THEN 0 ELSE max(0, new.end_time - new.start_time) END,
    new.gpus, json_array_length(new.nodes),
    (SELECT id FROM names WHERE name = new.user),
    (SELECT id FROM names WHERE name = new.account),
    (SELECT id FROM job_names WHERE name = new.name),
    (SELECT id FROM names WHERE name = new.diagnosis_category),
    CASE WHEN new.diagnosis_category IS NULL THEN 0 WHEN new.diagnosis_category = 'success' THEN 1
        WHEN new.diagnosis_category = 'cancelled' THEN 3
        WHEN new.diagnosis_category = 'completed_with_error' THEN 4 ELSE 2 END,
    CASE WHEN EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = new.cluster AND p.prerun_job_id = new.job_id)
        OR EXISTS (SELECT 1 FROM submissions s WHERE s.prerun_job_id = new.job_id AND s.cluster = new.cluster) THEN 1
        WHEN new.nodes = '[]' AND EXISTS (SELECT 1 FROM preruns p WHERE p.job_id = new.job_id AND p.cluster = new.cluster
        AND p.verdict_outcome = 'fail') THEN 2 ELSE 0 END,
    new.restarts > 0, nullif(new.incident, ''),
    CAST(round(1000 * json_extract(new.measurement, '$.gpu_util')) AS INTEGER),
    json_extract(new.measurement, '$.gpus_unused')
    WHERE new.end_time IS NOT NULL
    ON CONFLICT (end_time, job_id, submit_time, cluster) DO UPDATE SET
        run_s = excluded.run_s,
        gpus = excluded.gpus,
        nodes = excluded.nodes,
        user = excluded.user,
        account = excluded.account,
        name = excluded.name,
        category = excluded.category,
        outcome = excluded.outcome,
        excluded = excluded.excluded,
        is_rerun = excluded.is_rerun,
        incident = excluded.incident,
        gpu_permille = coalesce(excluded.gpu_permille, gpu_permille),
        gpus_unused = coalesce(excluded.gpus_unused, gpus_unused);
END;

CREATE TRIGGER runs_update AFTER UPDATE OF end_time, start_time, gpus, nodes, user, account, name, restarts, measurement,
    diagnosis_category, incident ON attempts WHEN new.end_time IS NOT NULL OR old.end_time IS NOT NULL BEGIN
    DELETE FROM runs WHERE end_time = old.end_time AND job_id = old.job_id
    AND submit_time = old.submit_time AND cluster = (SELECT id FROM names WHERE name = old.cluster) AND old.end_time IS NOT new.end_time;
    INSERT INTO names (name) SELECT new.cluster WHERE new.cluster IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.cluster);
    INSERT INTO names (name) SELECT new.user WHERE new.user IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.user);
    INSERT INTO names (name) SELECT new.account WHERE new.account IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.account);
    INSERT INTO names (name) SELECT new.diagnosis_category WHERE new.diagnosis_category IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.diagnosis_category);
    INSERT INTO job_names (name) SELECT new.name WHERE new.name IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM job_names WHERE name = new.name);
    INSERT INTO runs SELECT new.end_time, new.job_id, new.submit_time, (SELECT id FROM names WHERE name = new.cluster),
    CASE WHEN new.start_time IS NULL THEN 0 ELSE max(0, new.end_time - new.start_time) END,
    new.gpus, json_array_length(new.nodes),
    (SELECT id FROM names WHERE name = new.user),
    (SELECT id FROM names WHERE name = new.account),
    (SELECT id FROM job_names WHERE name = new.name),
    (SELECT id FROM names WHERE name = new.diagnosis_category),
    CASE WHEN new.diagnosis_category IS NULL THEN 0 WHEN new.diagnosis_category = 'success' THEN 1
        WHEN new.diagnosis_category = 'cancelled' THEN 3
        WHEN new.diagnosis_category = 'completed_with_error' THEN 4 ELSE 2 END,
    CASE WHEN EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = new.cluster AND p.prerun_job_id = new.job_id)
        OR EXISTS (SELECT 1 FROM submissions s WHERE s.prerun_job_id = new.job_id AND s.cluster = new.cluster) THEN 1
        WHEN new.nodes = '[]' AND EXISTS (SELECT 1 FROM preruns p WHERE p.job_id = new.job_id AND p.cluster = new.cluster
        AND p.verdict_outcome = 'fail') THEN 2 ELSE 0 END,
    new.restarts > 0, nullif(new.incident, ''),
    CAST(round(1000 * json_extract(new.measurement, '$.gpu_util')) AS INTEGER),
    json_extract(new.measurement, '$.gpus_unused')
    WHERE new.end_time IS NOT NULL
    ON CONFLICT (end_time, job_id, submit_time, cluster) DO UPDATE SET
        run_s = excluded.run_s,
        gpus = excluded.gpus,
        nodes = excluded.nodes,
        user = excluded.user,
        account = excluded.account,
        name = excluded.name,
        category = excluded.category,
        outcome = excluded.outcome,
        excluded = excluded.excluded,
        is_rerun = excluded.is_rerun,
        incident = excluded.incident,
        gpu_permille = coalesce(excluded.gpu_permille, gpu_permille),
        gpus_unused = coalesce(excluded.gpus_unused, gpus_unused);
END;
