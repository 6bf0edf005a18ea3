-- The tables of slurmwrap's database: version 1 of the schema. slurmwrap/store/migrations.py lists later versions.
-- Every table and every column has a comment; docs/database.md and Datasette show it (slurmwrap/store/schema_docs.py).
-- Times are Unix seconds. `more` is JSON: fields of a record that have no column yet, so that records of a newer version
-- are stored completely.

-- `observations` and `actions` are not WITHOUT ROWID. In such a table SQLite stores up to a quarter of a page of a row
-- and moves the rest to a separate page, so that most pages would be half empty.
CREATE TABLE observations ( -- observations as hooks, gsub and pre-runs recorded them, one row per spool file
    nonce TEXT NOT NULL PRIMARY KEY, -- key: 128 random bits; those of a user are prefixed with the uid
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    context TEXT NOT NULL, -- source: prolog, epilog, epilog_slurmctld, submit, prerun or slurm
    at REAL NOT NULL, -- Unix seconds
    node TEXT NOT NULL, -- NodeName
    uid INTEGER NOT NULL, -- uid of the writer according to MUNGE; -1: the spool directory's owner
    facts TEXT NOT NULL, -- JSON: the recorded facts
    more TEXT NOT NULL DEFAULT '{}' -- JSON: fields of the record that have no column
);
CREATE INDEX observations_by_job ON observations (cluster, job_id, at);
CREATE INDEX observations_by_time ON observations (at);

CREATE TABLE seen ( -- nonces of deleted observations, so that a repeated copy is still recognized
    nonce BLOB PRIMARY KEY, -- the first 12 bytes of the SHA-256 of the nonce
    at INTEGER NOT NULL -- Unix seconds: time of the observation
) WITHOUT ROWID;

CREATE TABLE rejected_entries ( -- counts of rejected spool files, by owner and reason
    uid INTEGER NOT NULL, -- owner of the file; -1: unknown
    reason TEXT NOT NULL, -- why the files were rejected
    count INTEGER NOT NULL, -- number of files
    first_at REAL NOT NULL, -- Unix seconds: first rejected file
    last_at REAL NOT NULL, -- Unix seconds: newest rejected file
    last_name TEXT NOT NULL, -- name of the newest file
    PRIMARY KEY (uid, reason)
) WITHOUT ROWID;

CREATE TABLE attempts ( -- runs of jobs; a requeue begins a new run with a new SubmitTime
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds: SubmitTime
    address TEXT NOT NULL, -- the address that scontrol takes: "81" or "77_2"
    restarts INTEGER NOT NULL, -- how often Slurm had requeued the job before this run
    name TEXT NOT NULL, -- job name
    user TEXT NOT NULL, -- login name of the job's owner
    uid INTEGER NOT NULL, -- uid of the job's owner; -1: unknown
    account TEXT NOT NULL, -- Slurm account
    partition TEXT NOT NULL, -- partition, or several separated by commas
    state TEXT NOT NULL, -- final job state of Slurm; "" while it runs
    reason TEXT NOT NULL, -- Slurm's Reason
    exit_code INTEGER, -- exit code of the batch script
    signal INTEGER, -- the signal that ended the batch script
    derived_exit_code INTEGER, -- highest exit code of the job's steps
    nodes TEXT NOT NULL, -- JSON list of NodeNames
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    cpus INTEGER NOT NULL, -- CPUs of the whole job
    eligible_time INTEGER, -- Unix seconds; NULL once slim if it equals submit_time
    start_time INTEGER, -- Unix seconds; NULL: it never started
    end_time INTEGER, -- Unix seconds; NULL: it has not ended
    time_limit_s INTEGER, -- time limit in seconds
    std_out TEXT NOT NULL, -- path of stdout; empty once slim
    std_err TEXT NOT NULL, -- path of stderr; empty once slim
    measurement TEXT, -- JSON: measurements of the Epilogs, in MiB and seconds; NULL once slim
    diagnosis_category TEXT, -- category of the taxonomy; NULL: not diagnosed yet
    diagnosis_domain TEXT, -- domain: U user program, AE engine, IF infrastructure, RS resource scheduler
    diagnosis_decision TEXT, -- the default decision of the taxonomy
    diagnosis_confidence REAL, -- confidence from 0 to 1
    diagnosis_signature TEXT, -- id of the signature that decided the category
    diagnosis_evidence TEXT, -- JSON list of cited lines: source, line, text
    diagnosis_advice TEXT, -- one sentence of advice to the researcher
    diagnosis_node TEXT, -- the node that caused the failure; empty: none
    diagnosis_conclusive INTEGER, -- 1: the fault alone is enough to drain the node
    diagnosis_input_path TEXT, -- the input file that caused the failure, from the job's output
    decision TEXT NOT NULL, -- the decision after retry budget and consent
    decision_reason TEXT NOT NULL, -- reason of the decision, one sentence
    reconciled INTEGER NOT NULL, -- 1: every intended action is done or was given up
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    incident TEXT NOT NULL DEFAULT '', -- incidents.incident_id; empty: none
    mem_mib_per_node INTEGER, -- requested memory per node, MiB
    mem_mib_per_cpu INTEGER, -- requested memory per CPU, MiB
    retry_at REAL, -- Unix seconds: when the next run may start
    diagnosis_step INTEGER, -- furthest training step that was seen in the job's output
    diagnosis_checkpoint_step INTEGER, -- step of the newest checkpoint, from the job's output
    diagnosis_resumed INTEGER, -- 1: the run resumed from a checkpoint, according to the job's output
    slim INTEGER NOT NULL DEFAULT 0, -- 1: details were deleted after [retention] detail_d
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID;
CREATE INDEX attempts_by_end ON attempts (end_time);
CREATE INDEX attempts_to_do ON attempts (submit_time) WHERE reconciled = 0;
CREATE INDEX attempts_by_incident ON attempts (incident) WHERE incident <> '';
CREATE INDEX attempts_node_failures ON attempts (end_time) WHERE diagnosis_category = 'node_failure';
CREATE INDEX attempts_blamed_inputs ON attempts (end_time, diagnosis_input_path)
    WHERE diagnosis_input_path <> '';
CREATE INDEX attempts_of_arrays ON attempts (address) WHERE address <> CAST(job_id AS TEXT);
-- A covering index for the exposure of nodes, so that the wide rows need not be read.
CREATE INDEX attempts_exposure ON attempts (end_time, start_time, nodes) WHERE slim = 0;

CREATE TABLE runs ( -- ended rows of `attempts` in 45 bytes each, maintained by triggers, for reports over a year
    end_time INTEGER NOT NULL, -- Unix seconds
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds: SubmitTime
    cluster INTEGER NOT NULL, -- names.id of the cluster
    run_s INTEGER NOT NULL, -- seconds from start to end; 0: it never started
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    nodes INTEGER NOT NULL, -- number of nodes
    user INTEGER NOT NULL, -- names.id of the owner's login name
    account INTEGER NOT NULL, -- names.id of the Slurm account
    name INTEGER NOT NULL, -- job_names.id of the job name
    category INTEGER, -- names.id of the category; NULL: not diagnosed
    outcome INTEGER NOT NULL, -- 0 not diagnosed, 1 completed, 2 failed, 3 cancelled, 4 completed with an error in the output
    excluded INTEGER NOT NULL, -- 1: a pre-run's own job; 2: stopped by its pre-run, it never ran; 0: neither
    is_rerun INTEGER NOT NULL, -- 1: not the job's first run
    incident TEXT, -- incidents.incident_id; NULL: none
    gpu_permille INTEGER, -- GPU use in permille from NVML's accounting; kept when attempts.measurement is deleted
    gpus_unused INTEGER, -- GPUs on which no process was ever seen; kept in the same way
    PRIMARY KEY (end_time, job_id, submit_time, cluster)
) WITHOUT ROWID;

CREATE TABLE names ( -- users, accounts, clusters and categories, with the numbers that `runs` refers to
    id INTEGER PRIMARY KEY, -- ascending number
    name NOT NULL UNIQUE -- the user, account, cluster or category
);

CREATE TABLE job_names ( -- job names, with the numbers that `runs` refers to
    id INTEGER PRIMARY KEY, -- ascending number
    name NOT NULL UNIQUE -- the job name
);

CREATE TABLE actions ( -- changes in Slurm, each stored before it is requested
    action_id INTEGER PRIMARY KEY, -- ascending number
    cluster TEXT, -- ClusterName; NULL, as the next two, if the action is not about a run
    job_id INTEGER, -- raw job id
    submit_time INTEGER, -- Unix seconds: SubmitTime
    rule TEXT NOT NULL, -- rule of [rules] in the configuration
    mode TEXT NOT NULL, -- mode of the rule: observe, advise or act
    verb TEXT NOT NULL, -- command of scontrol or scancel
    target TEXT NOT NULL, -- job address or NodeName
    key TEXT NOT NULL, -- the key that scontrol updates
    value TEXT NOT NULL, -- the new value of the key
    reason TEXT NOT NULL, -- reason of the action, one sentence
    intended_at REAL NOT NULL, -- Unix seconds; stored before Slurm is called
    done_at REAL, -- Unix seconds; NULL: not done
    error TEXT NOT NULL, -- error message of Slurm; "": none
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    FOREIGN KEY (cluster, job_id, submit_time) REFERENCES attempts (cluster, job_id, submit_time)
);
CREATE INDEX actions_to_do ON actions (action_id) WHERE done_at IS NULL;
CREATE INDEX actions_by_time ON actions (intended_at);
CREATE INDEX actions_of_attempt ON actions (cluster, job_id, submit_time);

CREATE TABLE incidents ( -- one infrastructure cause that made several jobs fail within minutes
    incident_id TEXT PRIMARY KEY, -- made of category, scope and beginning
    category TEXT NOT NULL, -- category of the taxonomy
    scope TEXT NOT NULL, -- what is affected: "path /scratch", "switch leaf0", "host hub.example" or "cluster"
    began REAL NOT NULL, -- Unix seconds: end of the first failed run
    last REAL NOT NULL, -- Unix seconds: end of the newest failed run that counts
    over_at REAL, -- Unix seconds; NULL: still open
    jobs TEXT NOT NULL, -- JSON list of job ids as sbatch printed them
    uids TEXT NOT NULL, -- JSON list of the uids of their owners
    nodes TEXT NOT NULL, -- JSON list of the nodes on which they failed
    reach TEXT NOT NULL, -- JSON list of the nodes below the switch
    quiet_s REAL NOT NULL, -- the incident ends after this many seconds without a further failure
    spread_s REAL NOT NULL, -- retries are spread over this many seconds after its end
    max_s REAL NOT NULL, -- maximum duration in seconds
    more TEXT NOT NULL DEFAULT '{}' -- JSON: fields of the record that have no column
) WITHOUT ROWID;
CREATE INDEX incidents_by_end ON incidents (over_at);

CREATE TABLE strikes ( -- strikes against nodes, from evidence of the kernel, NVML and Slurm only
    strike_id INTEGER PRIMARY KEY, -- ascending number
    node TEXT NOT NULL, -- NodeName
    cause TEXT NOT NULL, -- category of the fault
    conclusive INTEGER NOT NULL, -- 1: the fault alone is enough to drain the node
    text TEXT NOT NULL, -- the line that reported the fault, cut
    at REAL NOT NULL, -- Unix seconds
    job_id INTEGER NOT NULL, -- raw job id
    uid INTEGER NOT NULL, -- uid of the job's owner; -1: unknown
    cluster TEXT, -- cluster of the run whose diagnosis gave the strike; NULL: another source
    submit_time INTEGER, -- SubmitTime of that run
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    incident TEXT NOT NULL DEFAULT '', -- incidents.incident_id of an incident that voids the strike; empty: none
    cleared_at REAL, -- Unix seconds: when an administrator voided it; NULL: not voided
    cleared_by TEXT NOT NULL DEFAULT '' -- login name of that administrator
);
CREATE INDEX strikes_by_time ON strikes (at);
CREATE INDEX strikes_by_attempt ON strikes (cluster, job_id, submit_time);

CREATE TABLE gpu_faults ( -- kernel log lines about GPUs, as the Epilogs read them
    node TEXT NOT NULL, -- NodeName
    at REAL NOT NULL, -- Unix seconds
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    uid INTEGER NOT NULL, -- uid of the job's owner
    text TEXT NOT NULL -- the kernel log line, cut
);
CREATE INDEX gpu_faults_by_time ON gpu_faults (at);

CREATE TABLE removals ( -- periods in which a node was out of service, from Slurm's node states
    node TEXT NOT NULL, -- NodeName
    began REAL NOT NULL, -- Unix seconds
    reason TEXT NOT NULL, -- the node's Reason in Slurm
    ours INTEGER NOT NULL, -- 1: drained by slurmwrap
    ended REAL, -- Unix seconds; NULL: still out of service
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (node, began)
) WITHOUT ROWID;
CREATE INDEX removals_open ON removals (node) WHERE ended IS NULL;

CREATE TABLE repairs ( -- repairs and other marks that administrators set on nodes; deleted after [retention] keep_d
    node TEXT NOT NULL, -- NodeName
    at REAL NOT NULL, -- Unix seconds
    who TEXT NOT NULL, -- login name of the administrator
    kind TEXT NOT NULL, -- repaired, lifted (a drain of slurmwrap was undone) or cleared
    note TEXT NOT NULL, -- the administrator's note
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (node, at, kind)
) WITHOUT ROWID;

CREATE TABLE blocked_inputs ( -- files that made jobs fail
    digest TEXT NOT NULL, -- digest of the file's size and its first and last MiB
    uid INTEGER NOT NULL, -- uid of the user whose jobs are refused; -1: all users
    path TEXT NOT NULL, -- absolute path
    reason TEXT NOT NULL, -- why it is blocked, one sentence
    at REAL NOT NULL, -- Unix seconds
    job_id INTEGER NOT NULL, -- job that failed because of the file
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (digest, uid)
) WITHOUT ROWID;

CREATE TABLE submissions ( -- calls of gsub, as their users' gsub reports them
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    at REAL NOT NULL, -- Unix seconds by the submit host's clock
    uid INTEGER NOT NULL, -- uid of the job's owner; -1: unknown
    user TEXT NOT NULL, -- login name of the job's owner
    name TEXT NOT NULL, -- job name
    script_path TEXT NOT NULL, -- path of the script; empty once slim
    script_sha256 TEXT NOT NULL, -- SHA-256 of the script; 16 characters once slim
    work_dir TEXT NOT NULL, -- working directory; empty once slim
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    nodes INTEGER NOT NULL, -- number of nodes
    retry INTEGER NOT NULL, -- 1: the user agreed to retries
    profile_key TEXT NOT NULL, -- profiles.key without the uid
    prerun_mode TEXT NOT NULL, -- prerun.mode of the configuration
    prerun_job_id INTEGER, -- job id of its pre-run; NULL: none
    fingerprint TEXT NOT NULL, -- digest of script, arguments, code and environment; 16 characters once slim
    inputs TEXT NOT NULL, -- JSON list of the paths of input files
    output_appends INTEGER NOT NULL, -- 1: a retry may write to the same output file
    plan TEXT NOT NULL, -- JSON: the placement plan at submission; {} once slim
    changes TEXT NOT NULL, -- JSON list of the options that gsub changed, with reasons; [] once slim
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    holdout_group TEXT NOT NULL DEFAULT '', -- hold-out group in which the job was drawn; empty: none
    held_out INTEGER NOT NULL DEFAULT 0, -- 1: the draw decided that the job has no pre-run
    slim INTEGER NOT NULL DEFAULT 0, -- 1: details were deleted after [retention] detail_d
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID;
CREATE INDEX submissions_by_time ON submissions (at);
CREATE INDEX submissions_by_script ON submissions (script_sha256, fingerprint);
CREATE INDEX submissions_in_holdout ON submissions (at) WHERE holdout_group <> '';
CREATE INDEX submissions_by_prerun ON submissions (prerun_job_id) WHERE prerun_job_id IS NOT NULL;
CREATE INDEX submissions_detailed ON submissions (at) WHERE slim = 0;

CREATE TABLE preruns ( -- ended pre-runs, as their users' pre-runs report them
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    prerun_job_id INTEGER NOT NULL, -- job id of the pre-run itself
    at REAL NOT NULL, -- Unix seconds
    job_id INTEGER, -- job id of the real job
    uid INTEGER NOT NULL, -- uid of the job's owner; -1: unknown
    verdict_outcome TEXT NOT NULL, -- pass, fail or inconclusive
    verdict_layer TEXT NOT NULL, -- layer that decided: static, step, exit, timeout, supervisor, no_training or no_activity
    verdict_reason TEXT NOT NULL, -- reason of the verdict, one sentence
    verdict_steps INTEGER NOT NULL, -- optimizer steps that ran
    verdict_seconds REAL NOT NULL, -- how long the pre-run ran, in seconds
    verdict_category TEXT NOT NULL, -- category of the taxonomy; empty: none
    verdict_findings TEXT NOT NULL, -- JSON list of findings of the static checks
    verdict_evidence TEXT NOT NULL, -- JSON list of cited lines: source, line, text
    verdict_measurement TEXT, -- JSON: measurements of the pre-run
    verdict_input_path TEXT NOT NULL, -- the input file that caused the failure; empty: none
    verdict_input_fault TEXT NOT NULL, -- error when slurmwrap itself read that file
    fingerprint TEXT NOT NULL, -- digest of script, arguments, code and environment; 16 characters once slim
    profile_key TEXT NOT NULL, -- profiles.key without the uid
    gpus INTEGER NOT NULL, -- GPUs of the real job
    plan TEXT NOT NULL, -- JSON: the placement plan after the pre-run
    changes TEXT NOT NULL, -- JSON list of the changes applied to the waiting job
    released INTEGER NOT NULL, -- 1: Slurm accepted StartTime=now for the waiting job
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    slim INTEGER NOT NULL DEFAULT 0, -- 1: details were deleted after [retention] detail_d
    PRIMARY KEY (cluster, prerun_job_id, at)
) WITHOUT ROWID;
CREATE INDEX preruns_by_job ON preruns (job_id);
CREATE INDEX preruns_by_fingerprint ON preruns (fingerprint);
CREATE INDEX preruns_by_time ON preruns (at, verdict_outcome, verdict_seconds, uid, job_id);
CREATE INDEX preruns_detailed ON preruns (at) WHERE slim = 0;
CREATE INDEX preruns_failed ON preruns (at) WHERE verdict_outcome = 'fail';

CREATE TABLE profiles ( -- resource profiles: what a job needs per GPU
    key TEXT PRIMARY KEY, -- profile key
    cpus_per_gpu REAL, -- fewest CPUs per GPU within 5 % of the best throughput
    mem_mib_per_gpu INTEGER, -- memory per GPU, MiB
    steps_per_s REAL, -- steps per second and GPU
    gpu_type TEXT NOT NULL, -- GRES type; empty: unknown
    gpus_per_node INTEGER NOT NULL, -- GPUs per node in the measurement
    runs INTEGER NOT NULL, -- number of complete runs that contributed
    preruns INTEGER NOT NULL, -- number of pre-runs that contributed
    confidence REAL NOT NULL, -- confidence from 0 to 1
    source TEXT NOT NULL, -- where it was measured
    measured_at REAL NOT NULL, -- Unix seconds: the newest measurement
    more TEXT NOT NULL DEFAULT '{}' -- JSON: fields of the record that have no column
) WITHOUT ROWID;

CREATE TABLE measurements ( -- the single measurements from which profiles are computed
    key TEXT NOT NULL, -- profile key
    at REAL NOT NULL, -- Unix seconds
    source TEXT NOT NULL, -- source: prerun or epilog
    measurement TEXT NOT NULL, -- JSON: the measurement
    PRIMARY KEY (key, at, source, measurement)
) WITHOUT ROWID;

CREATE TABLE delays ( -- how long runs waited after they became eligible, by cause
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    submit_time INTEGER NOT NULL, -- Unix seconds: SubmitTime
    address TEXT NOT NULL, -- job address as sbatch prints it: 81, or 77_2 for an array task
    user TEXT NOT NULL, -- login name of the job's owner
    gpus INTEGER NOT NULL, -- GPUs of the whole job
    eligible_at REAL NOT NULL, -- Unix seconds
    seen_at REAL NOT NULL, -- Unix seconds: last examination, up to which the wait is counted
    fair_share_s REAL NOT NULL, -- seconds of waiting for priority or limits, or because too few GPUs were free
    fragmentation_s REAL NOT NULL, -- seconds of waiting although enough GPUs were free, because they were scattered
    unknown_s REAL NOT NULL, -- seconds without a pass of the reconciler
    waits_for TEXT NOT NULL, -- cause at the last pass: "fair share" or "fragmentation"
    over INTEGER NOT NULL, -- 1: the run has started, or Slurm has forgotten it
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID;
CREATE INDEX delays_open ON delays (cluster) WHERE over = 0;
CREATE INDEX delays_by_time ON delays (seen_at);
CREATE INDEX delays_detailed ON delays (seen_at) WHERE over = 1 AND address <> '';

CREATE TABLE budget_resets ( -- resets of retry budgets: earlier failures of the job no longer count
    cluster TEXT NOT NULL, -- ClusterName of slurm.conf
    job_id INTEGER NOT NULL, -- raw job id
    at REAL NOT NULL, -- Unix seconds: failures up to this time no longer count
    who TEXT NOT NULL, -- login name of the administrator or user
    note TEXT NOT NULL, -- their note
    more TEXT NOT NULL DEFAULT '{}', -- JSON: fields of the record that have no column
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID;

CREATE TABLE totals ( -- counts since the file was created, maintained by triggers; pruning does not lower them
    metric TEXT NOT NULL, -- name as in `slurmwrap metrics`, without prefix and suffix
    a TEXT NOT NULL, -- value of the first label
    b TEXT NOT NULL, -- value of the second label
    value REAL NOT NULL, -- the count or sum
    PRIMARY KEY (metric, a, b)
) WITHOUT ROWID;

CREATE TABLE pruned ( -- the progress of each kind of pruning
    what TEXT PRIMARY KEY, -- kind of row, as `slurmwrap db prune` names it
    before REAL NOT NULL, -- Unix seconds: no older row is left
    at REAL NOT NULL, -- Unix seconds: the last pruning
    rows INTEGER NOT NULL -- number of rows changed or deleted so far
) WITHOUT ROWID;

CREATE TABLE migrations ( -- when this file was migrated to each version of the schema
    version INTEGER PRIMARY KEY, -- version of the schema
    at REAL NOT NULL -- Unix seconds
);

CREATE VIEW failures AS -- failed runs, newest first, with the columns that people read
    SELECT
        datetime(end_time, 'unixepoch') AS ended_utc, -- end of the run, date and time in UTC
        cluster, -- ClusterName of slurm.conf
        address, -- job address as sbatch prints it: 81, or 77_2 for an array task
        user, -- login name of the job's owner
        name, -- job name
        state, -- final job state of Slurm
        diagnosis_category AS category, -- category of the taxonomy
        round(gpus * (end_time - start_time) / 3600.0, 2) AS gpu_hours, -- number of GPUs times hours from start to end
        decision, -- the decision after retry budget and consent
        decision_reason, -- reason of the decision, one sentence
        diagnosis_advice AS advice -- one sentence of advice to the researcher
    FROM attempts
    WHERE diagnosis_category IS NOT NULL AND diagnosis_category NOT IN ('success', 'cancelled')
    ORDER BY end_time DESC;

-- `runs` contains the columns that the report of a year reads: 4 million rows take half a second, while rows of
-- `attempts` are ten times as wide. Triggers maintain it, so that statements on `attempts` need not update it. Names are
-- not inserted with OR IGNORE: the OR REPLACE of the outer statement would override it
-- (https://sqlite.org/lang_createtrigger.html) and give a name another id.
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

-- `totals` counts each run once, when it gets its diagnosis.
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
