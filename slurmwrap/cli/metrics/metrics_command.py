"""`slurmwrap metrics`: figures for monitoring, as text for Prometheus; and the Grafana dashboard that shows them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurmwrap.cli.metrics.metric_families import PREFIX, Family, Round, Samples, collect_families
from slurmwrap.cli.record_access import place_of
from slurmwrap.config import load
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.resources import shipped
from slurmwrap.store.atomic_write import replace
from slurmwrap.store.database import Database

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MISSING = "prometheus_client is not installed here, and the metrics need it"
HINT = "install it beside slurmwrap: pip install 'slurmwrap[metrics]', or Debian's python3-prometheus-client"


class Format(Enum):
    """What is written."""

    PROMETHEUS = "prometheus"  # text format 0.0.4: the only one that node_exporter's textfile collector reads
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
    with Database.open(place_of(config, os.environ, os.geteuid()).database, readonly=True) as database:
        text = text_of(collect_families(database, config, time.time(), Round()), form)
    if output:
        write_textfile(Path(output), text)
    else:
        sys.stdout.write(text)


@app.command()
def dashboard() -> None:
    """Print the Grafana dashboard (JSON). In Grafana: Dashboards, New, Import."""
    sys.stdout.write((shipped("templates") / "grafana" / "slurmwrap.json").read_text(encoding="utf-8"))


def text_of(found: Sequence[tuple[Family, Samples]], form: Format = Format.PROMETHEUS) -> str:
    """SlurmwrapError where prometheus_client is missing."""
    try:
        from prometheus_client import CollectorRegistry, exposition
        from prometheus_client.openmetrics import exposition as openmetrics
    except ImportError:
        raise SlurmwrapError(MISSING, hint=HINT) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Told(found))
    made: Any = openmetrics.generate_latest if form is Format.OPENMETRICS else exposition.generate_latest
    text: str = made(registry).decode("utf-8")
    return text


class _Told:
    """A collector of samples that are known already."""

    def __init__(self, found: Sequence[tuple[Family, Samples]]) -> None:
        self._found = found

    def describe(self) -> list[Metric]:
        """Nothing: what is registered twice is not asked for here."""
        return []

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for them."""
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
    """Aside, mode 0644, then renamed: node_exporter reads the old file or the new one. StoreError."""
    try:
        replace(path, text, 0o644)
    except OSError as error:
        hint = f"see that its directory exists and is writable: ls -ld {path.parent}"
        raise StoreError(f"metrics {path} cannot be written: {error.strerror or error}", hint=hint) from error
