"""SQL queries of the night report. `{mine}` restricts them to one user or account; :since and :until are Unix seconds.

Queries over a whole year read only the narrow table `runs` (store/baseline.sql). A query that needs wider tables reads
only the newest days: :recent and :detail are their beginnings.
"""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report.report_inputs import BIN_EDGES_S


def _format_bin_sql(low: int, high: int) -> str:
    """Return SQL for the number of the bin of run_s, by binary search: a CASE list took a third of the query's time."""
    if high - low == 1:
        return str(low)
    middle = (low + high) // 2
    return f"iif(run_s < {BIN_EDGES_S[middle]}, {_format_bin_sql(low, middle)}, {_format_bin_sql(middle, high)})"


_BIN = _format_bin_sql(0, len(BIN_EDGES_S))
_IN_PERIOD = "r.end_time >= :since AND r.end_time < :until AND r.excluded = 0{mine}"

_STRUCK = "(r.incident IS NOT NULL AND r.incident IN (SELECT value FROM json_each(:incidents)))"
_DEMAND = "(r.gpus > 1) + (r.gpus > 4) + (r.gpus > 8)"
_FAILED_ALONE = f"r.outcome = 2 AND NOT {_STRUCK}"


@dataclass(frozen=True)
class SumQuery:
    """A sum by key that is computed in a temporary table of the connection.

    SQLite's GROUP BY sorts, which takes three times as long as adding each row to its sum (measured on 2 million rows).
    """

    table: str
    create: str
    insert: str
    select: str
    # `select` returns one JSON list of all rows: returned one by one, each row would wait for Python's lock.
    as_json: bool = False


# The numbers of user, account, category and bin are packed into one integer of 64 bits.
CELLS = SumQuery(
    table="cells",
    create="packed INTEGER PRIMARY KEY, runs INTEGER, gpu_s INTEGER",
    insert=f"""
SELECT ((((user * :base + account) * :base + coalesce(category, 0)) * 2 + {_STRUCK}) * 4 + {_DEMAND}) * 32 + {_BIN},
    1, gpus * run_s FROM runs r WHERE {_IN_PERIOD}
ON CONFLICT (packed) DO UPDATE SET runs = runs + 1, gpu_s = gpu_s + excluded.gpu_s""",
    select="SELECT json_group_array(json_array(packed, runs, gpu_s)) FROM temp.cells",
    as_json=True,
)
# Failures since :looked, ordered by category and run_s. Bit 0: it is in the period and not part of an incident.
LASTED = SumQuery(
    table="lasted",
    create="packed INTEGER PRIMARY KEY, runs INTEGER",
    insert=f"""
SELECT (category << 32) | (min(run_s, 2147483647) << 1) | (r.end_time >= :since AND NOT {_STRUCK}), 1 FROM runs r
WHERE r.end_time >= :looked AND r.end_time < :until AND r.excluded = 0 AND r.outcome = 2{{mine}}
ON CONFLICT (packed) DO UPDATE SET runs = runs + 1""",
    select="""
SELECT json_group_array(json_array(packed >> 32, packed & 1, (packed >> 1) & 2147483647, runs)) FROM (
    SELECT * FROM temp.lasted ORDER BY packed
)""",
    as_json=True,
)
OFTEN = SumQuery(
    table="often",
    create="packed INTEGER PRIMARY KEY, runs INTEGER, gpu_s INTEGER",
    insert=f"""
SELECT (name * :base + user) * :base + category, 1, gpus * run_s FROM runs r WHERE {_IN_PERIOD} AND {_FAILED_ALONE}
ON CONFLICT (packed) DO UPDATE SET runs = runs + 1, gpu_s = gpu_s + excluded.gpu_s""",
    select="""
SELECT u.id, j.id, c.id, runs, gpu_s, j.name, u.name, c.name FROM temp.often o
JOIN job_names j ON j.id = packed / :base / :base JOIN names u ON u.id = packed / :base % :base
JOIN names c ON c.id = packed % :base
WHERE runs > 1 ORDER BY runs DESC, gpu_s DESC, u.name, j.name, c.name LIMIT :rows""",
)
# Newest first, so that the reader can stop early.
NEWEST = f"""
SELECT user, name, category, r.cluster, r.job_id, r.submit_time FROM runs r
WHERE {_IN_PERIOD} AND {_FAILED_ALONE}
ORDER BY r.end_time DESC, r.job_id DESC, r.submit_time DESC, r.cluster DESC
"""
INCIDENT_GPU_S = f"""
SELECT r.incident, sum(r.gpus * r.run_s) FROM runs r WHERE {_IN_PERIOD} AND r.incident IS NOT NULL AND r.outcome = 2
GROUP BY r.incident
"""

# Runs whose job had an earlier run that ended in the period, and how many of them failed again with the same category.
REPEATS = f"""
WITH again AS MATERIALIZED ( -- else SQLite looks each of them up twice
    SELECT user, account, category, outcome, {_STRUCK} AS struck, (
        SELECT max(a.diagnosis_category IS (SELECT name FROM names WHERE id = r.category)
            AND a.incident NOT IN (SELECT value FROM json_each(:incidents)))
        FROM attempts a
        WHERE a.cluster = (SELECT name FROM names WHERE id = r.cluster) AND a.job_id = r.job_id
        AND a.submit_time < r.submit_time AND a.end_time >= :since AND a.end_time < :until
        AND (a.nodes <> '[]' OR NOT EXISTS (SELECT 1 FROM preruns p WHERE p.job_id = a.job_id AND p.cluster = a.cluster
            AND p.verdict_outcome = 'fail'))
    ) AS same FROM runs r WHERE {_IN_PERIOD} AND is_rerun = 1
)
SELECT user, account, category, count(*) AS repeats, sum(same AND outcome = 2 AND NOT struck) AS failed FROM again
WHERE same IS NOT NULL GROUP BY user, account, category
"""

# GPU-seconds of runs that ended from :since to :until (SPILLS returns the runs that started before), the number of runs
# with known GPU use, and the lowest and highest number of a cluster.
MOMENT = f"""
SELECT coalesce(sum(gpus * run_s) FILTER (WHERE outcome IN (1, 4)), 0),
    coalesce(sum(gpus * run_s) FILTER (WHERE outcome = 2), 0),
    coalesce(sum(gpus * run_s) FILTER (WHERE outcome = 3), 0),
    count(*) FILTER (WHERE gpus > 0 AND (gpu_permille IS NOT NULL OR gpus_unused IS NOT NULL)),
    min(r.cluster), max(r.cluster)
FROM runs r WHERE {_IN_PERIOD}
"""
SPILLS = f"""
SELECT end_time - run_s AS start, gpus, iif(outcome = 4, 1, outcome) FROM runs r
WHERE {_IN_PERIOD} AND end_time - run_s < :since AND outcome > 0
AND gpus > 0
"""

DETAIL = "SELECT address, diagnosis_advice FROM attempts WHERE cluster = ? AND job_id = ? AND submit_time = ?"

BLAMED = """
SELECT a.diagnosis_input_path, a.user, a.diagnosis_category, count(*),
    sum(a.gpus * max(0, a.end_time - coalesce(a.start_time, a.end_time)))
FROM attempts a INDEXED BY attempts_blamed_inputs
WHERE a.end_time >= :since AND a.end_time < :until AND a.diagnosis_input_path <> ''
AND a.diagnosis_category NOT IN ('success', 'cancelled', 'completed_with_error'){mine}
GROUP BY a.diagnosis_input_path, a.user, a.diagnosis_category
"""

GSUB_CALLS = "SELECT count(*) FROM submissions s WHERE s.at >= :since AND s.at < :until{mine}"

# The jobs of a sweep share one pre-run, which ran once.
OUTCOMES = """
SELECT verdict_outcome, count(*) FROM preruns p WHERE p.at >= :since AND p.at < :until{mine} GROUP BY verdict_outcome
"""
PRERUN_S = """
SELECT coalesce(sum(seconds), 0) FROM (
    SELECT max(verdict_seconds) AS seconds FROM preruns p WHERE p.at >= :since AND p.at < :until{mine}
    GROUP BY cluster, prerun_job_id
)
"""
TRIALS_S = """
SELECT coalesce(sum(gpus * run_s), 0) FROM runs r WHERE end_time >= :since AND end_time < :until AND excluded = 1{mine}
"""
# The pre-run stopped a job, which then had no run. A shared verdict, or a pre-run that Slurm refused, stops no job.
_STOPPED_ONE = """(p.verdict_outcome = 'fail' AND p.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM attempts a
    WHERE a.cluster = p.cluster AND a.job_id = p.job_id AND a.submit_time <= p.at AND a.nodes <> '[]'))"""
CAUGHT = f"""
SELECT verdict_category, iif({_STOPPED_ONE}, job_id, NULL), gpus, uid, at, verdict_reason FROM preruns p
WHERE p.at >= :since AND p.at < :until AND verdict_outcome = 'fail'{{mine}} ORDER BY at, prerun_job_id, job_id
"""
# SQLite takes `cluster` from the row with the largest job id (https://sqlite.org/lang_select.html#bareagg).
TRIED = """
SELECT (SELECT s.user FROM submissions s WHERE s.cluster = p.cluster AND s.job_id = p.job_id AND s.uid = p.uid LIMIT 1),
    uid, preruns
FROM (
    SELECT uid, count(DISTINCT prerun_job_id) AS preruns, max(job_id) AS job_id, cluster
    FROM preruns p WHERE p.at >= :since AND p.at < :until{mine} GROUP BY uid
) p
"""

_FIRST_RUN = """(SELECT min(a.submit_time) FROM attempts a WHERE a.cluster = p.cluster AND a.job_id = p.job_id)"""
_SUBMITTED = """(SELECT max(s.at) FROM submissions s
    WHERE s.cluster = p.cluster AND s.job_id = p.job_id AND s.at <= p.at)"""
# Only jobs that started within a minute of the release: others waited for a dependency or a later --begin.
DELAYED = f"""
SELECT count(*), coalesce(sum(wait_s IS NOT NULL), 0), coalesce(sum(gpus * wait_s), 0), coalesce(sum(wait_s), 0) FROM (
    SELECT p.gpus, CASE WHEN p.released = 1 THEN (
        SELECT max(0, p.at - {_SUBMITTED}) FROM attempts a
        WHERE a.cluster = p.cluster AND a.job_id = p.job_id AND a.submit_time = {_FIRST_RUN}
        AND a.start_time >= p.at - 60 AND a.start_time <= p.at + 60
    ) END AS wait_s
    FROM preruns p WHERE p.at >= :detail AND p.at < :until AND verdict_outcome <> 'fail'{{mine}}
)
"""
PASSED = f"""
SELECT p.verdict_seconds, a.diagnosis_category, a.end_time - coalesce(a.start_time, a.end_time)
FROM preruns p JOIN attempts a
    ON a.cluster = p.cluster AND a.job_id = p.job_id AND a.submit_time = {_FIRST_RUN}
WHERE p.at >= :detail AND p.at < :until AND verdict_outcome = 'pass' AND a.diagnosis_category IS NOT NULL
AND a.end_time IS NOT NULL{{mine}}
"""

# Later submissions of the same program, forced or without a pre-run, with a successful run.
_RAN_WELL = """
    SELECT 1 FROM submissions s JOIN submissions t
        ON t.script_sha256 = s.script_sha256 AND t.fingerprint = s.fingerprint
        AND t.uid = s.uid AND t.at > p.at AND (json_extract(t.more, '$.forced[0]') IS NOT NULL OR t.prerun_mode = 'off')
    JOIN attempts a ON a.cluster = t.cluster AND a.job_id = t.job_id AND a.diagnosis_category = 'success'
    WHERE s.cluster = p.cluster AND s.job_id = p.job_id AND s.fingerprint <> ''
"""
REFUSED = f"""
SELECT count(*), coalesce(sum(EXISTS ({_RAN_WELL})), 0)
FROM preruns p WHERE p.at >= :since AND p.at < :until AND {_STOPPED_ONE}{{mine}}
"""

# GPU-seconds as one JSON list per group: a year has 150,000 such runs in a hundred groups.
AGAIN = """
SELECT a.diagnosis_category AS before, n.diagnosis_category AS category,
    json_group_array(coalesce(n.gpus * max(0, n.end_time - n.start_time), 0)) AS gpu_s
FROM (
    SELECT DISTINCT cluster, job_id, submit_time FROM actions x
    WHERE x.intended_at >= :since AND x.intended_at < :until AND verb IN ('requeue', 'requeuehold') AND mode = 'act'
    AND rule <> 'move' AND done_at IS NOT NULL AND error = ''
) x JOIN attempts a ON a.cluster = x.cluster AND a.job_id = x.job_id AND a.submit_time = x.submit_time{mine}
LEFT JOIN attempts n ON n.cluster = x.cluster AND n.job_id = x.job_id AND n.submit_time = (
    SELECT min(submit_time) FROM attempts m
    WHERE m.cluster = x.cluster AND m.job_id = x.job_id AND m.submit_time > x.submit_time
) GROUP BY a.diagnosis_category, n.diagnosis_category
"""
STEPS = """
SELECT rule, mode, refused, done, count(*) AS targets FROM (
    SELECT rule, mode, max(error <> '') AS refused, min(done_at IS NOT NULL) AS done FROM actions x
    WHERE x.intended_at >= :since AND x.intended_at < :until{mine}
    GROUP BY rule, mode, cluster, job_id, submit_time, target
) GROUP BY rule, mode, refused, done
"""

_RUNS_OF = """(
    SELECT {what} FROM attempts a WHERE a.cluster = s.cluster AND (a.job_id = s.job_id
        OR a.address <> CAST(a.job_id AS TEXT) AND a.address >= s.job_id || '_' AND a.address < s.job_id || '`')
    AND a.end_time IS NOT NULL{which}
)"""
_FAILED = " AND a.diagnosis_category NOT IN ('success', 'cancelled')"
_WASTE = _RUNS_OF.format(what="sum(a.gpus * max(0, a.end_time - a.start_time))", which=_FAILED)
DRAWN = f"""
SELECT s.holdout_group, s.held_out, coalesce({_WASTE}, 0) AS waste,
    coalesce((SELECT max(p.verdict_seconds) FROM preruns p WHERE p.cluster = s.cluster
        AND p.prerun_job_id = s.prerun_job_id AND p.job_id = s.job_id
        AND p.job_id = (SELECT min(q.job_id) FROM preruns q WHERE q.cluster = p.cluster
            AND q.prerun_job_id = p.prerun_job_id)), 0) AS trial
FROM submissions s WHERE s.at >= :since AND s.at < :until AND s.holdout_group <> ''
AND {_RUNS_OF.format(what="count(*)", which="")} > 0{{mine}}
ORDER BY s.at DESC LIMIT 100000
"""

# Only a week, because retention then deletes changes and variants of successful runs. A change with equal old and new
# value is only a remark.
PACED = """
SELECT s.uid, s.script_sha256, coalesce(json_extract(s.more, '$.profile_variant'), '') AS variant, a.gpus, a.nodes,
    a.gpus * (a.end_time - a.start_time) AS gpu_s, json_extract(a.measurement, '$.steps_per_s') AS steps_per_s,
    a.end_time, a.end_time >= :since AND EXISTS (
        SELECT 1 FROM json_each(s.changes) c
        WHERE json_extract(c.value, '$.option') IN ('nodes', 'nodelist', 'switches', 'segment', 'prefer', 'constraint')
        AND json_extract(c.value, '$.old') IS NOT json_extract(c.value, '$.new')
    ) AS placed
FROM submissions s JOIN attempts a ON a.cluster = s.cluster AND a.job_id = s.job_id AND a.submit_time >= s.at - 60
WHERE s.at >= :week AND s.at < :until AND s.slim = 0 AND s.gpus > 1 AND s.script_sha256 <> ''
AND a.gpus > 1 AND a.nodes <> '[]' AND a.start_time IS NOT NULL AND a.end_time < :until
AND json_extract(a.measurement, '$.steps_per_s') > 0{mine}
"""
TUNED = """
SELECT a.gpus * (a.end_time - a.start_time) AS gpu_s, a.cpus, a.gpus, json_array_length(a.nodes) AS nodes,
    json_extract(s.more, '$.shape') AS shape, json_extract(q.more, '$.cpu_curve') AS curve
FROM submissions s JOIN profiles q ON q.key IN (s.profile_key, s.uid || ':' || s.profile_key)
JOIN attempts a ON a.cluster = s.cluster AND a.job_id = s.job_id
WHERE s.at >= :detail - 604800 AND s.at < :until AND s.profile_key <> '' AND a.gpus > 0 AND a.start_time IS NOT NULL
AND a.end_time >= :detail AND a.end_time < :until AND json_array_length(q.more, '$.cpu_curve') > 1
AND json_extract(s.more, '$.shape') IS NOT NULL{mine}
"""

# gpu_permille is the mean over the GPUs that were used by a process.
IDLE = f"""
SELECT r.cluster, r.job_id, r.submit_time, r.user, j.name, r.gpus, coalesce(r.gpus_unused, 0) AS unused,
    r.gpu_permille, r.run_s
FROM runs r JOIN job_names j ON j.id = r.name
WHERE {_IN_PERIOD} AND r.gpus > 0 AND run_s >= :least AND (gpus_unused > 0 OR
    gpu_permille * (r.gpus - coalesce(gpus_unused, 0)) < :low * 1000 * r.gpus)
"""

ASKED = """
SELECT user, name, count(*) AS runs, avg(cpus) AS cpus_asked,
    sum(used * run_s) / sum(run_s) FILTER (WHERE used IS NOT NULL) AS cpus_used,
    avg(asked_mib), max(peak_mib),
    coalesce(sum(max(0, cpus - used) * nodes * run_s) / 3600.0, 0),
    coalesce(sum(max(0, asked_mib - peak_mib) * nodes * run_s) / 3600.0 / 1024, 0)
FROM (
    SELECT user, name, nodes, run_s, cpus, json_extract(measurement, '$.cpus_used') AS used,
        coalesce(nullif(mem_mib_per_node, 0), mem_mib_per_cpu * cpus) AS asked_mib,
        json_extract(measurement, '$.mem_peak_mib') AS peak_mib
    FROM (
        SELECT a.user, a.name, a.measurement, a.mem_mib_per_node, a.mem_mib_per_cpu,
            max(1, json_array_length(a.nodes)) AS nodes, a.end_time - a.start_time AS run_s,
            1.0 * a.cpus / max(1, json_array_length(a.nodes)) AS cpus
        FROM attempts a WHERE a.end_time >= :recent AND a.end_time < :until AND a.start_time < a.end_time
        AND a.measurement IS NOT NULL AND a.diagnosis_category = 'success'{mine}
    )
) WHERE run_s >= :least AND (used IS NOT NULL OR peak_mib IS NOT NULL) GROUP BY user, name
"""
# Completed runs with GPUs and their time limits; one JSON list for each user's job name and account.
TIME_LIMITS = f"""
SELECT r.user, r.account, j.name, json_group_array(json_array(a.time_limit_s, r.run_s, r.gpus))
FROM runs r JOIN job_names j ON j.id = r.name JOIN attempts a
    ON a.cluster = (SELECT name FROM names WHERE id = r.cluster) AND a.job_id = r.job_id
    AND a.submit_time = r.submit_time
WHERE r.end_time >= :recent AND {_IN_PERIOD} AND r.outcome = 1 AND r.gpus > 0 AND r.run_s > 0 AND a.time_limit_s > 0
GROUP BY r.user, r.account, r.name
"""
# Trainings that passed or were cancelled, and when each came near its lowest loss; one JSON list for each user's job
# name.
TRAINED = """
SELECT a.user, a.name,
    json_group_array(json_array(1.0 * a.gpus * (a.end_time - a.start_time), c.time_share, c.epoch_share))
FROM loss_curves c JOIN attempts a ON a.cluster = c.cluster AND a.job_id = c.job_id AND a.submit_time = c.submit_time
WHERE c.end_time >= :since AND c.end_time < :until AND c.time_share IS NOT NULL AND a.gpus > 0
    AND a.end_time > a.start_time AND a.diagnosis_category IN ('success', 'cancelled'){mine}
GROUP BY a.user, a.name
"""
# Runs of gsub's jobs and array tasks that completed, with the run time that was expected at submission. The last task
# of an array has its job id; the others are found by their address: "`" comes after "_".
PREDICTED = """
WITH sent AS (
    SELECT s.cluster, s.job_id, s.at, s.uid, json_extract(s.more, '$.expected_source') AS source,
        CAST(json_extract(s.more, '$.expected_p50_s') AS REAL) AS p50_s,
        CAST(json_extract(s.more, '$.expected_p90_s') AS REAL) AS p90_s
    FROM submissions s
    WHERE s.at >= :recent AND s.at < :until AND s.slim = 0 AND json_extract(s.more, '$.expected_p90_s') > 0{mine}
)
SELECT t.source, t.p50_s, t.p90_s, a.end_time - a.start_time
FROM sent t JOIN attempts a ON a.cluster = t.cluster AND a.job_id = t.job_id WHERE {ended}
UNION ALL
SELECT t.source, t.p50_s, t.p90_s, a.end_time - a.start_time
FROM sent t CROSS JOIN attempts a INDEXED BY attempts_of_arrays ON a.cluster = t.cluster AND a.job_id <> t.job_id
    AND a.address <> CAST(a.job_id AS TEXT) AND a.address >= t.job_id || '_' AND a.address < t.job_id || '`'
WHERE {ended}
""".replace(
    "{ended}",
    """a.submit_time >= t.at - 60 AND a.uid = t.uid AND a.end_time >= :since AND a.end_time < :until
    AND a.end_time > a.start_time AND a.state = 'COMPLETED' AND a.diagnosis_category = 'success'
    AND coalesce(a.diagnosis_resumed, 0) = 0""",
)
FOUND_EARLY = """
SELECT f.kind, f.action, f.at, f.gone_at, f.address, a.user, a.name, a.gpus, a.state,
    coalesce(a.diagnosis_category, ''), a.end_time, f.evidence
FROM early_findings f JOIN attempts a USING (cluster, job_id, submit_time)
WHERE f.at >= :detail AND f.at >= :since AND f.at < :until{mine} ORDER BY f.at DESC LIMIT 10000
"""
SPREAD = f"""
SELECT a.nodes, r.gpus * r.run_s, r.outcome = 2 FROM runs r JOIN attempts a
    ON a.cluster = (SELECT name FROM names WHERE id = r.cluster) AND a.job_id = r.job_id
    AND a.submit_time = r.submit_time
WHERE r.end_time >= :detail AND {_IN_PERIOD} AND r.nodes > 1
"""
# All runs with GPUs of the newest days, running ones too: the GPU use of those that ended in the period, in permille of
# all their GPUs, and who ran next to them.
GPU_RUNS = """
SELECT a.cluster, a.nodes, a.gpus, a.partition, a.start_time, coalesce(a.end_time, :until),
    iif(r.run_s >= :least AND r.excluded = 0 AND r.end_time < :until, iif(r.gpus_unused >= r.gpus, 0,
        r.gpu_permille * (r.gpus - coalesce(r.gpus_unused, 0)) / r.gpus), NULL)
FROM attempts a LEFT JOIN runs r ON r.end_time = a.end_time AND r.job_id = a.job_id
    AND r.submit_time = a.submit_time AND r.cluster = (SELECT id FROM names WHERE name = a.cluster)
WHERE (a.end_time IS NULL OR a.end_time >= :detail) AND a.start_time < :until AND a.gpus > 0 AND a.nodes <> '[]'{mine}
"""
# Runs with GPUs that were there from :before to :until: ended (in one JSON list, because single rows would wait for
# Python's lock), running, and waiting ones of gsub. For each: cluster, user, job_id, submit_time, end, seconds with
# GPUs, GPUs, whether it is over, whether it failed or was cancelled, whether it is not the job's first.
STAYING = """
SELECT json_group_array(json_array(r.cluster, r.user, r.job_id, r.submit_time, r.end_time, r.run_s, r.gpus, 1,
    r.outcome IN (2, 3), r.is_rerun)) FROM runs r
WHERE r.end_time >= :before AND r.end_time < :until + 604800 AND r.submit_time < :until AND r.gpus > 0
    AND r.excluded = 0{mine}
"""
STAYING_NOW = """
SELECT a.cluster, a.user, a.job_id, a.submit_time, :until, max(0, :until - coalesce(a.start_time, :until)), a.gpus, 0,
    0, a.restarts > 0
FROM attempts a WHERE a.end_time IS NULL AND a.submit_time < :until AND a.gpus > 0{mine}
"""
STAYING_WAITING = """
SELECT d.cluster, d.user, d.job_id, d.submit_time, d.seen_at, 0, d.gpus, 0, 0, 0
FROM delays d WHERE d.over = 0 AND d.seen_at >= :before AND d.submit_time < :until AND d.gpus > 0
    AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = d.cluster AND a.job_id = d.job_id
        AND a.submit_time = d.submit_time){mine}
"""
LARGE = f"""
SELECT (SELECT name FROM names WHERE id = r.cluster), job_id FROM runs r WHERE {_IN_PERIOD} AND gpus > 8
GROUP BY cluster, job_id ORDER BY sum(gpus * run_s) DESC LIMIT 20
"""
DELAYS = """
SELECT d.cluster, d.job_id, d.submit_time, d.address, d.user, d.gpus, d.eligible_at, d.seen_at, d.fair_share_s,
    d.fragmentation_s, d.unknown_s, d.over
FROM delays d WHERE d.seen_at >= :since AND d.eligible_at < :until{mine}
"""
CLUSTERS = f"SELECT DISTINCT r.cluster FROM runs r WHERE {_IN_PERIOD}"
PRERUN_CLUSTERS = "SELECT DISTINCT p.cluster FROM preruns p WHERE p.at >= :since AND p.at < :until{mine}"
CURVES = "SELECT 1 FROM profiles WHERE json_array_length(more, '$.cpu_curve') > 1 LIMIT 1"
COUNTING = """
SELECT DISTINCT a.cluster, a.job_id FROM attempts a WHERE a.end_time >= :recent AND a.end_time < :until
AND json_extract(a.measurement, '$.steps') > 0{mine} ORDER BY a.end_time DESC LIMIT 3000
"""

# Queries for whole records, read with Session._read.
DRAINS = "SELECT * FROM actions x WHERE x.intended_at >= :since AND x.intended_at < :until AND verb = 'drain'{mine}"
MOVES = "SELECT * FROM actions x WHERE x.intended_at >= :since AND x.intended_at < :until AND verb = 'move'{mine}"
# Jobs that passed others by the rule `order` alone, and how many they passed.
OVERTAKEN = """
SELECT count(*), total(json_extract(a.more, '$.passed')) FROM attempts a
WHERE a.end_time >= :since AND a.end_time < :until AND a.more LIKE '%"passed":%'
AND json_extract(a.more, '$.passed') > 0{mine}
"""
SPOKEN = """
SELECT * FROM (
    SELECT x.*, row_number() OVER (PARTITION BY rule ORDER BY intended_at DESC) AS number FROM actions x
    WHERE x.intended_at >= :recent AND x.intended_at < :until AND submit_time IS NOT NULL
    AND (rule IN ('retry', 'retry_elsewhere', 'resize', 'block_input', 'drain', 'order', 'limit')
        OR rule = 'move' AND verb = 'move'){mine}
) WHERE number <= :sample ORDER BY action_id
"""
STOPPED = """
SELECT * FROM attempts a WHERE a.end_time >= :recent AND a.end_time < :until AND decision = 'stop'
AND diagnosis_decision = 'stop'{mine}
AND NOT EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = a.cluster AND p.prerun_job_id = a.job_id)
ORDER BY end_time DESC LIMIT :sample
"""
HARDWARE = """
SELECT a.* FROM runs r JOIN attempts a ON a.job_id = r.job_id AND a.submit_time = r.submit_time
    AND a.cluster = (SELECT name FROM names WHERE id = r.cluster)
WHERE r.end_time >= :recent AND r.excluded = 0 AND r.category IN (
    SELECT id FROM names WHERE name IN ('gpu_hardware', 'gpu_ecc_error', 'node_failure', 'cuda_init_failed')
){mine} ORDER BY r.end_time DESC LIMIT 2000
"""
_JOBS_GIVEN = (
    "(SELECT json_extract(value, '$[0]') AS cluster, json_extract(value, '$[1]') AS job_id FROM json_each(?)) b"
)
OF_JOBS = f"""
SELECT a.* FROM {_JOBS_GIVEN} JOIN attempts a ON a.cluster = b.cluster AND a.job_id = b.job_id
ORDER BY a.submit_time, a.cluster, a.job_id
"""
# Runs of jobs by address: of a job (its id), or of array tasks (the first and the last address).
OF_ADDRESSES = """
WITH wanted AS (
    SELECT json_extract(value, '$[0]') AS cluster, json_extract(value, '$[1]') AS job_id,
        json_extract(value, '$[2]') AS low, json_extract(value, '$[3]') AS high FROM json_each(?)
)
SELECT a.* FROM wanted w JOIN attempts a ON a.cluster = w.cluster AND a.job_id = w.job_id WHERE w.low = ''
UNION
SELECT a.* FROM wanted w CROSS JOIN attempts a INDEXED BY attempts_of_arrays ON a.address <> CAST(a.job_id AS TEXT)
    AND a.address >= w.low AND a.address <= w.high AND a.cluster = w.cluster WHERE w.low <> ''
"""
SAME = f"""
SELECT DISTINCT t.* FROM {_JOBS_GIVEN} JOIN submissions s ON s.cluster = b.cluster AND s.job_id = b.job_id
JOIN submissions t ON t.script_sha256 = s.script_sha256 AND t.fingerprint = s.fingerprint AND t.uid = s.uid
    AND t.at >= s.at
ORDER BY t.at LIMIT 5000
"""
WELL = """
SELECT * FROM attempts WHERE end_time > ? AND start_time >= ? AND diagnosis_category = 'success' AND nodes LIKE ?
ORDER BY end_time LIMIT 6
"""
NAME_OF = "SELECT user FROM submissions WHERE cluster = ? AND job_id = ? AND uid = ?"
RAN_AS = "SELECT user FROM attempts WHERE cluster = ? AND job_id = ? AND uid = ?"
CLUSTERS_EVER = """
SELECT name AS cluster FROM names n WHERE EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = n.name)
"""
UID_OF = """
SELECT a.uid FROM runs r JOIN attempts a ON a.job_id = r.job_id AND a.submit_time = r.submit_time
    AND a.cluster = (SELECT name FROM names WHERE id = r.cluster)
WHERE r.user = ? ORDER BY r.end_time DESC LIMIT 1
"""
