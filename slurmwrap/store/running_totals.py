"""Running totals in the database: counters for monitoring that never fall, whatever pruning removes. Data.

Triggers keep them, as they keep `runs`: a run is counted when it is judged, once. Two labels are enough for all.
"""

from __future__ import annotations

_TABLE = """CREATE TABLE totals ( -- counts since the file was made, kept by triggers; pruning does not lower them
    metric TEXT NOT NULL, -- as in `slurmwrap metrics`, without its prefix and suffix
    a TEXT NOT NULL, -- its first label
    b TEXT NOT NULL, -- its second one
    value REAL NOT NULL,
    PRIMARY KEY (metric, a, b)
) WITHOUT ROWID"""

# metric -> (table, label a, label b, amount, condition), in columns of {row}
_RUN_S = "max(0, coalesce({row}.end_time - {row}.start_time, 0))"
_JUDGED = "{row}.diagnosis_category IS NOT NULL"
_AGAIN = """CASE {row}.diagnosis_category WHEN 'success' THEN 'completed' WHEN 'cancelled' THEN 'cancelled'
    ELSE 'failed' END"""
_OF_ATTEMPTS = (
    ("attempts", "{row}.diagnosis_category", "{row}.decision", "1", _JUDGED),
    ("gpu_seconds", "{row}.diagnosis_category", "''", "{row}.gpus * " + _RUN_S, _JUDGED),
    ("reruns", _AGAIN, "''", "1", _JUDGED + " AND {row}.restarts > 0"),
)
_OF_PRERUNS = (
    ("preruns", "{row}.verdict_outcome", "''", "1", "1"),
    ("prerun_gpu_seconds", "''", "''", "{row}.verdict_seconds", "1"),
    ("prerun_stopped_gpus", "''", "''", "{row}.gpus", "{row}.verdict_outcome = 'fail' AND {row}.job_id IS NOT NULL"),
)
_OF_ACTIONS = (("actions_intended", "{row}.rule", "{row}.mode", "1", "1"),)
_OF_DONE = (
    ("actions_done", "{row}.rule", "CASE {row}.error WHEN '' THEN 'done' ELSE 'refused' END", "1",
     "{row}.done_at IS NOT NULL"),
)  # fmt: skip
_OF_OBSERVATIONS = (("observations", "{row}.context", "''", "1", "1"),)
_OF_SET_ASIDE = (("observations_refused", "''", "''", "{row}.count", "1"),)
_Metric = tuple[str, str, str, str, str]


def _add(metrics: tuple[_Metric, ...]) -> str:
    """Statements of a trigger."""
    return "\n    ".join(
        f"INSERT INTO totals SELECT '{name}', {a}, {b}, {amount} WHERE {when}"
        " ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;"
        for name, a, b, amount, when in ((n, *(p.replace("{row}", "new") for p in rest)) for n, *rest in metrics)
    )


def _on(name: str, event: str, table: str, metrics: tuple[_Metric, ...], when: str = "1") -> str:
    return f"CREATE TRIGGER totals_{name} AFTER {event} ON {table} WHEN {when} BEGIN\n    {_add(metrics)}\nEND"


def _so_far(table: str, metrics: tuple[_Metric, ...]) -> tuple[str, ...]:
    """What the rows that are there already add up to."""
    return tuple(
        f"INSERT INTO totals SELECT '{name}', {a}, {b}, coalesce(sum({amount}), 0) FROM {table} AS t WHERE {when}"
        " GROUP BY 2, 3"
        for name, a, b, amount, when in ((n, *(p.replace("{row}", "t") for p in rest)) for n, *rest in metrics)
    )


TOTALS: tuple[str, ...] = (
    _TABLE,
    *_so_far("attempts", _OF_ATTEMPTS),
    *_so_far("preruns", _OF_PRERUNS),
    *_so_far("actions", _OF_ACTIONS),
    *_so_far("actions", _OF_DONE),
    *_so_far("observations", _OF_OBSERVATIONS),
    *_so_far("set_aside", _OF_SET_ASIDE),
    _on("run", "INSERT", "attempts", _OF_ATTEMPTS, "new.diagnosis_category IS NOT NULL"),
    _on(
        "judged",
        "UPDATE OF diagnosis_category",
        "attempts",
        _OF_ATTEMPTS,
        "old.diagnosis_category IS NULL AND new.diagnosis_category IS NOT NULL",
    ),
    _on("prerun", "INSERT", "preruns", _OF_PRERUNS),
    _on("intended", "INSERT", "actions", (*_OF_ACTIONS, *_OF_DONE)),
    _on("done", "UPDATE OF done_at", "actions", _OF_DONE, "old.done_at IS NULL AND new.done_at IS NOT NULL"),
    _on("observed", "INSERT", "observations", _OF_OBSERVATIONS),
    _on("refused", "INSERT", "set_aside", _OF_SET_ASIDE),
    _on(
        "refused_again",
        "UPDATE OF count",
        "set_aside",
        (("observations_refused", "''", "''", "new.count - old.count", "1"),),
        "new.count > old.count",
    ),
)
