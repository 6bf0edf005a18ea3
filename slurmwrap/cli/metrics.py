"""`slurmwrap metrics`: collect figures for Prometheus from the database and the spools, as families of samples.

Every label has a limited number of values: there is no label for users or jobs, and nodes appear only while suspect.

Counters are the database's running totals (`totals` in store/baseline.sql), which pruning does not reduce. Gauges
describe the present state.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurmwrap import __version__
from slurmwrap.cli.record_access import find_record_source
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.package_files import shipped
from slurmwrap.policy.node_score import compute_node_scores
from slurmwrap.store.atomic_write import replace_file
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import VERSION

if TYPE_CHECKING:
    from prometheus_client.core import Metric


PREFIX = "slurmwrap_"
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric. `name` without prefix and without `_total`; `kind`: counter or gauge."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """Return the name of its samples in Prometheus."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPass:
    """The reconciler's newest pass; fields are None if unknown."""

    # When it ended, Unix seconds.
    at: float | None = None
    seconds: float | None = None
    errors: int = 0


Samples = Sequence[tuple[tuple[str, ...], float]]


def _make_family(name: str, kind: str, text: str, *labels: str) -> Family:
    return Family(name=name, kind=kind, help=text, labels=labels)


_C, _G = "counter", "gauge"
# Counters. A family's name is its key in the table `totals`.
TOTALS = (
    _make_family("attempts", _C, "Judged runs, by category of the diagnosis and by decision.", "category", "decision"),
    _make_family("gpu_seconds", _C, "GPU-seconds that judged runs held, by category of the diagnosis.", "category"),
    _make_family("reruns", _C, "Judged runs that were not their job's first, by how they ended.", "outcome"),
    _make_family("preruns", _C, "Ended pre-runs, by verdict.", "verdict"),
    _make_family("prerun_gpu_seconds", _C, "GPU-seconds of pre-runs."),
    _make_family("prerun_stopped_gpus", _C, "Requested GPUs of jobs that their pre-run stopped."),
    _make_family("actions_intended", _C, "Changes that a rule intended, by rule and its mode.", "rule", "mode"),
    _make_family("actions_done", _C, "Changes that Slurm was asked for, by rule and outcome.", "rule", "outcome"),
    _make_family("observations", _C, "Observations that were read, by the hook or program that wrote them.", "context"),
    _make_family("observations_refused", _C, "Rejected spool files."),
)
GAUGES = (
    _make_family("attempts_open", _G, "Runs that are not reconciled: they run, end, or wait for an action."),
    _make_family("attempts_failed_24h", _G, "Runs that ended within 24 hours and failed, by domain.", "domain"),
    _make_family(
        "gpu_seconds_failed_24h", _G, "GPU-seconds of runs that ended within 24 hours and failed, by domain.", "domain"
    ),
    _make_family("gpu_seconds_24h", _G, "GPU-seconds of all runs that ended within 24 hours."),
    _make_family("waiting_jobs", _G, "Eligible jobs of gsub that wait, by cause.", "waits_for"),
    _make_family("nodes", _G, "Suspect and lemon nodes, by status.", "status"),
    _make_family("node_suspect", _G, "1 for each suspect or lemon node.", "node", "status"),
    _make_family("nodes_out_of_service", _G, "Nodes that are drained or down, by the owner of the drain.", "owner"),
    _make_family("strikes_28d", _G, "Strikes of the last 28 days that count."),
    _make_family("blocked_inputs", _G, "Blocked input files, by scope.", "scope"),
    _make_family("open_incidents", _G, "Open and confirmed incidents, by category.", "category"),
    _make_family("spool_files", _G, "Files that wait in the spools.", "spool"),
    _make_family("spool_oldest_timestamp_seconds", _G, "When the oldest of them was written, Unix seconds.", "spool"),
    _make_family("reconcile_last_timestamp_seconds", _G, "When the last pass of the reconciler ended, Unix seconds."),
    _make_family("reconcile_duration_seconds", _G, "Duration of the last pass of the reconciler."),
    _make_family("reconcile_errors", _G, "Errors in the last pass of the reconciler."),
    _make_family("report_last_timestamp_seconds", _G, "When the last complete night report was made, Unix seconds."),
    _make_family("database_bytes", _G, "Size of the database's files.", "file"),
    _make_family("database_free_bytes", _G, "Bytes of free pages in the database."),
    _make_family("database_oldest_run_timestamp_seconds", _G, "End of the oldest stored run, Unix seconds."),
    _make_family("pruned_last_timestamp_seconds", _G, "When the database was last pruned, Unix seconds."),
    _make_family("build_info", _G, "1, with this program's version and schema.", "version", "schema"),
)
FAMILIES = (*TOTALS, *GAUGES)


def collect_families(database: Database, config: Config, now: float, newest: LastPass) -> list[tuple[Family, Samples]]:
    """Return every family with its samples, also those without samples. Raise StoreError."""
    found: dict[str, Samples] = {**_collect_totals(database), **_collect_gauges(database, config, now, newest)}
    return [(family, found.get(family.name, ())) for family in FAMILIES]


def _collect_totals(database: Database) -> dict[str, Samples]:
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for row in database._rows("SELECT metric, a, b, value FROM totals ORDER BY metric, a, b"):
        count = next((len(family.labels) for family in TOTALS if family.name == row["metric"]), 0)
        found.setdefault(row["metric"], []).append(((row["a"], row["b"])[:count], row["value"]))
    return {family.name: found.get(family.name) or ([((), 0.0)] if not family.labels else []) for family in TOTALS}


def _collect_gauges(database: Database, config: Config, now: float, newest: LastPass) -> dict[str, Samples]:
    found: dict[str, Samples] = {}
    for name, sql in _SQL.items():
        rows = database._rows(sql, {"now": now, "day": now - _DAY_S, "window": now - 28 * _DAY_S})
        found[name] = [_make_sample(row) for row in rows if next(reversed(row.values())) is not None]
    found |= _collect_nodes(database, config, now)
    found |= _collect_files(database.path, config)
    found["build_info"] = [((__version__, str(VERSION)), 1.0)]
    if newest.at is not None:
        found["reconcile_last_timestamp_seconds"] = [((), newest.at)]
        found["reconcile_duration_seconds"] = [((), newest.seconds or 0.0)]
        found["reconcile_errors"] = [((), float(newest.errors))]
    return found


_FAILED = "diagnosis_category NOT IN ('success', 'cancelled')"
_SQL = {
    "attempts_open": "SELECT count(*) AS n FROM attempts WHERE reconciled = 0",
    "attempts_failed_24h": f"""SELECT coalesce(nullif(diagnosis_domain, ''), 'unknown') AS a, count(*) AS n
        FROM attempts WHERE end_time >= :day AND {_FAILED} GROUP BY 1""",
    "gpu_seconds_failed_24h": f"""SELECT coalesce(nullif(diagnosis_domain, ''), 'unknown') AS a,
        sum(gpus * max(0, end_time - start_time)) AS n FROM attempts WHERE end_time >= :day AND {_FAILED} GROUP BY 1""",
    "gpu_seconds_24h": """SELECT coalesce(sum(gpus * max(0, end_time - start_time)), 0) AS n FROM attempts
        WHERE end_time >= :day""",
    "waiting_jobs": """SELECT coalesce(nullif(waits_for, ''), 'unknown') AS a, count(*) AS n FROM delays
        WHERE over = 0 GROUP BY 1""",
    "nodes_out_of_service": """SELECT CASE ours WHEN 1 THEN 'slurmwrap' ELSE 'other' END AS a, count(*) AS n
        FROM removals WHERE ended IS NULL GROUP BY 1""",
    "strikes_28d": "SELECT count(*) AS n FROM strikes WHERE at >= :window AND cleared_at IS NULL AND incident = ''",
    "blocked_inputs": """SELECT CASE uid WHEN -1 THEN 'site' ELSE 'user' END AS a, count(*) AS n
        FROM blocked_inputs GROUP BY 1""",
    "open_incidents": """SELECT category AS a, count(*) AS n FROM incidents
        WHERE over_at IS NULL AND json_array_length(more, '$.proof') > 1 GROUP BY 1""",
    "database_free_bytes": """SELECT f.freelist_count * p.page_size AS n
        FROM pragma_freelist_count AS f, pragma_page_size AS p""",
    "database_oldest_run_timestamp_seconds": "SELECT min(end_time) AS n FROM attempts",
    "pruned_last_timestamp_seconds": "SELECT max(at) AS n FROM pruned",
}


def _make_sample(row: Mapping[str, Any]) -> tuple[tuple[str, ...], float]:
    """Return (labels, value): the last column is the value, those before it are labels."""
    *labels, value = row.values()
    return tuple(str(label) for label in labels), float(value)


def _collect_nodes(database: Database, config: Config, now: float) -> dict[str, Samples]:
    history = database.node_history(now - config.nodes.window_days * _DAY_S)
    judged = [one for one in compute_node_scores(history, config.nodes, now=now) if one.status in ("suspect", "lemon")]
    counts = {status: sum(one.status == status for one in judged) for status in ("lemon", "suspect")}
    return {
        "nodes": [((status,), float(count)) for status, count in counts.items()],
        "node_suspect": [((one.node, one.status), 1.0) for one in judged],
    }


def _collect_files(path: Path, config: Config) -> dict[str, Samples]:
    sizes = [((name,), _get_size(Path(f"{path}{end}"))) for name, end in (("main", ""), ("wal", "-wal"))]
    spools = {"shared": config.site.spool, "controller": f"{config.site.state_dir}/controller"}
    heaps = {
        name: _count_spool_files(Path(directory))
        for name, directory in spools.items()
        if config.site.state_dir and directory
    }
    report = _read_last_report_time(config)
    return {
        "database_bytes": sizes,
        "spool_files": [((name,), float(count)) for name, (count, _) in heaps.items()],
        "spool_oldest_timestamp_seconds": [((name,), oldest) for name, (_, oldest) in heaps.items() if oldest],
        **({} if report is None else {"report_last_timestamp_seconds": [((), report)]}),
    }


def _read_last_report_time(config: Config) -> float | None:
    from slurmwrap.cli.report import read_last_report_time

    return read_last_report_time(config)


def _get_size(path: Path) -> float:
    try:
        return float(path.stat().st_size)
    except OSError:
        return 0.0


def _count_spool_files(directory: Path) -> tuple[int, float | None]:
    """Count the complete files, and return the modification time of the oldest."""
    # Any user may write to this directory, and a symbolic link could lead to a file server that hangs.
    try:
        plain = (entry for entry in os.scandir(directory) if not entry.name.startswith("."))
        entries = [entry for entry in plain if entry.is_file(follow_symlinks=False)]
    except OSError:
        return 0, None
    return _count_entries(entries)


def _count_entries(entries: Iterable[os.DirEntry[str]]) -> tuple[int, float | None]:
    times = []
    for entry in entries:
        if entry.name.endswith((".obs", ".env")):
            try:
                times.append(entry.stat(follow_symlinks=False).st_mtime)
            except OSError:
                # The reconciler has removed the file in the meantime.
                continue
    return len(times), min(times, default=None)


# The command `slurmwrap metrics`, and the Grafana dashboard for its figures.
MISSING = "prometheus_client is not installed here, and the metrics need it"
HINT = "install it next to slurmwrap: pip install 'slurmwrap[metrics]', or Debian's python3-prometheus-client"


class Format(Enum):
    """The format of the output."""

    # Text format 0.0.4: the only one that node_exporter's textfile collector reads.
    PROMETHEUS = "prometheus"
    OPENMETRICS = "openmetrics"


app = typer.Typer(
    invoke_without_command=True,
    help="""Figures for monitoring, as Prometheus reads them.

    \b
    The reconciler writes them by itself where [metrics] textfile is set:
      textfile = "/var/lib/prometheus/node-exporter/slurmwrap.prom"

    \b
    Examples:
      slurmwrap metrics | grep suspect
      slurmwrap metrics --output /var/lib/prometheus/node-exporter/slurmwrap.prom
      slurmwrap metrics dashboard > slurmwrap.json         for Grafana: Import
    """,
)


@app.callback()
def metrics(
    context: typer.Context,
    output: Annotated[str, typer.Option(metavar="FILE.prom", help="Write there, in one step.")] = "",
    form: Annotated[Format, typer.Option("--format", help="prometheus is node_exporter's.")] = Format.PROMETHEUS,
) -> None:
    if context.invoked_subcommand is not None:
        return
    config = load(os.environ)
    with Database.open(find_record_source(config, os.environ, os.geteuid()).database, readonly=True) as database:
        text = text_of(collect_families(database, config, time.time(), LastPass()), form)
    if output:
        write_textfile(Path(output), text)
    else:
        sys.stdout.write(text)


@app.command()
def dashboard() -> None:
    """Print the Grafana dashboard (JSON). In Grafana: Dashboards, New, Import."""
    sys.stdout.write((shipped("templates") / "grafana" / "slurmwrap.json").read_text(encoding="utf-8"))


def text_of(found: Sequence[tuple[Family, Samples]], form: Format = Format.PROMETHEUS) -> str:
    """Return the samples as text in the exposition format. Raise SlurmwrapError if prometheus_client is missing."""
    try:
        from prometheus_client import CollectorRegistry, exposition
        from prometheus_client.openmetrics import exposition as openmetrics
    except ImportError:
        raise SlurmwrapError(MISSING, hint=HINT) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StoredCollector(found))
    made: Any = openmetrics.generate_latest if form is Format.OPENMETRICS else exposition.generate_latest
    text: str = made(registry).decode("utf-8")
    return text


class _StoredCollector:
    """A prometheus_client collector for samples that were read before."""

    def __init__(self, found: Sequence[tuple[Family, Samples]]) -> None:
        self._found = found

    def describe(self) -> list[Metric]:
        """Return nothing: it would only be used to detect names that are registered twice."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the samples as prometheus_client's metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family, samples in self._found:
            if not samples:
                continue
            made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric: Any = made(PREFIX + family.name, family.help, labels=family.labels)
            for labels, value in samples:
                metric.add_metric(labels, value)
            yield metric


def write_textfile(path: Path, text: str) -> None:
    """Write to a temporary file of mode 0644 and rename it, so that node_exporter never reads a part. StoreError."""
    try:
        replace_file(path, text, 0o644)
    except OSError as error:
        hint = f"see that its directory exists and is writable: ls -ld {path.parent}"
        raise StoreError(f"metrics {path} cannot be written: {error.strerror or error}", hint=hint) from error
