"""Metrics for monitoring, checked with the parsers of Prometheus and with promtool, and the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import Runner
from synthetic_year import fill
from waiting import allow

from slurmwrap.cli import metrics
from slurmwrap.cli.doctor.check_records import OK, SKIP, WARN, CheckContext
from slurmwrap.cli.doctor.site_checks import check_textfile as textfile_check
from slurmwrap.cli.metrics import FAMILIES, LastPass, _count_spool_files, collect_families
from slurmwrap.cli.reconcile_maintenance import PRUNE_EVERY_S, ReconcilerMaintenance
from slurmwrap.config.load_config import Config, Retention, SiteSection
from slurmwrap.config.load_config import Metrics as MetricsSettings
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.model.decision import Strike
from slurmwrap.model.job_run import Incident
from slurmwrap.reconcile import PassSummary
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store import retention
from slurmwrap.store.database import Database

pytest.importorskip("prometheus_client", reason="needs the extra 'metrics'")

NOW = 1_795_000_000.0


def test_a_symbolic_link_in_the_spool_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "1.obs").write_text("x")
    (tmp_path / "2.obs").symlink_to(tmp_path / "1.obs")
    (tmp_path / ".3.obs").write_text("being written")
    assert _count_spool_files(tmp_path) == (1, (tmp_path / "1.obs").stat().st_mtime)


PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def filled_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "site.db"
    fill(path, days=40, jobs_per_day=30, until=NOW)
    with Database.open(path) as store:
        for node in ("gpu0001", "gpu0002"):
            for job in range(4):
                strike = Strike(node=node, cause="gpu_hardware", conclusive=True, text="Xid 79")
                store.add_strike(strike, NOW - 3600 * job, 10 + job, 2000 + job)
        store.save_incident(
            Incident(
                incident_id="i1", category="storage_io", scope="path /scratch", began=NOW, last=NOW, proof=("n1", "n2")
            )
        )
    return path


@pytest.fixture
def site(filled_site: Path, tmp_path: Path) -> Path:
    shutil.copy(filled_site, tmp_path / "site.db")
    return tmp_path / "site.db"


def config_of(site: Path, textfile: str = "") -> Config:
    (site.parent / "spool").mkdir(exist_ok=True)
    place = SiteSection(state_dir=str(site.parent), spool=str(site.parent / "spool"))
    return replace(Config(), site=place, metrics=MetricsSettings(textfile=textfile, every_s=60))


def metrics_text(site: Path, form: metrics.Format = metrics.Format.PROMETHEUS, newest: LastPass = LastPass()) -> str:  # noqa: B008
    with Database.open(site, readonly=True) as store:
        return metrics.text_of(collect_families(store, config_of(site), NOW, newest), form)


def samples_of(families: Iterable[Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def parse_samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    from prometheus_client.parser import text_string_to_metric_families

    return samples_of(text_string_to_metric_families(text))


def test_both_formats_have_the_same_values_and_can_be_parsed(site: Path) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    newest = LastPass(at=NOW, seconds=0.5, errors=2)
    prometheus = parse_samples(metrics_text(site, newest=newest))
    openmetrics = samples_of(text_string_to_metric_families(metrics_text(site, metrics.Format.OPENMETRICS, newest)))
    assert prometheus == openmetrics
    assert prometheus["slurmwrap_reconcile_last_timestamp_seconds", ()] == NOW
    assert prometheus["slurmwrap_reconcile_duration_seconds", ()] == 0.5
    assert prometheus["slurmwrap_reconcile_errors", ()] == 2.0
    assert prometheus["slurmwrap_open_incidents", (("category", "storage_io"),)] == 1.0
    suspects = {labels for name, labels in prometheus if name == "slurmwrap_node_suspect"}
    assert {dict(labels)["node"] for labels in suspects} == {"gpu0001", "gpu0002"}


def test_promtool_reports_no_problem(site: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool (Debian's package prometheus) is not installed")
    result = subprocess.run(
        [tool, "check", "metrics"], input=metrics_text(site), capture_output=True, text=True, timeout=allow(60)
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_no_label_names_a_user_or_a_job(site: Path) -> None:
    assert {label for family in FAMILIES for label in family.labels} == {
        *("category", "decision", "outcome", "verdict", "rule", "mode", "context", "domain", "waits_for", "status"),
        *("node", "owner", "scope", "spool", "file", "version", "schema"),
    }
    text = metrics_text(site)
    with Database.open(site, readonly=True) as store:
        users = {record.user for record in store.attempts()}
    assert [user for user in users if user in text] == []


def test_counters_cover_all_rows_and_do_not_fall_after_pruning(site: Path) -> None:
    with Database.open(site, readonly=True) as store:
        judged = [record for record in store.attempts() if record.diagnosis is not None]
    before = parse_samples(metrics_text(site))
    runs = {labels: value for (name, labels), value in before.items() if name == "slurmwrap_attempts_total"}
    assert sum(runs.values()) >= len(judged) > 500  # pruning removed the pre-runs' own runs while the site was created
    retention.prune(site, Retention(detail_d=1, keep_d=30), NOW + 25 * 86_400)
    with Database.open(site, readonly=True) as store:
        assert len(store.attempts()) < len(judged) / 2
    after = parse_samples(metrics_text(site))
    counters = [key for key in before if key[0].endswith("_total")]
    assert {key: after[key] for key in counters} == {key: before[key] for key in counters}


def test_a_diagnosed_run_is_counted_once_however_often_it_is_saved(tmp_path: Path, filled_site: Path) -> None:
    with Database.open(filled_site, readonly=True) as store:
        record = next(
            r for r in store.attempts() if r.diagnosis is not None and r.diagnosis.category == "semantic_error"
        )
    with Database.open(tmp_path / "site.db") as store:
        store.save_attempt(replace(record, diagnosis=None, decision=""))
        store.save_attempt(record)
        store.save_attempt(record)
        rows = store._rows("SELECT metric, a, b, value FROM totals WHERE metric IN ('attempts', 'gpu_seconds')")
    assert [tuple(row.values()) for row in rows] == [
        ("attempts", "semantic_error", "stop", 1.0),
        ("gpu_seconds", "semantic_error", "", record.gpus * record.run_s),
    ]


def test_only_complete_files_of_the_spool_are_counted(site: Path) -> None:
    config = config_of(site)
    spool = Path(config.site.spool)
    for name in ("1-n1-a.obs", "2-n1-b.obs", ".3-n1-c.obs"):
        (spool / name).touch()
    found = parse_samples(metrics_text(site))
    assert found["slurmwrap_spool_files", (("spool", "shared"),)] == 2.0
    oldest = found["slurmwrap_spool_oldest_timestamp_seconds", (("spool", "shared"),)]
    assert oldest == pytest.approx(min(p.stat().st_mtime for p in spool.glob("[0-9]*")))


def test_output_is_written_atomically_and_readable_for_all(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMWRAP_SITE_STATE_DIR", str(site.parent))
    monkeypatch.setenv("SLURMWRAP_CONFIG", str(site.parent / "none.toml"))
    out = site.parent / "text" / "slurmwrap.prom"
    with pytest.raises(StoreError, match="cannot be written: No such file") as caught:
        Runner().invoke(metrics.app, ["--output", str(out)], catch_exceptions=False)
    assert f"ls -ld {out.parent}" in caught.value.hint
    out.parent.mkdir()
    for _ in range(2):
        assert Runner().invoke(metrics.app, ["--output", str(out)], catch_exceptions=False).output == ""
    assert [p.name for p in out.parent.iterdir()] == ["slurmwrap.prom"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    assert parse_samples(out.read_text())["slurmwrap_observations_refused_total", ()] == 0.0


def test_without_prometheus_client_the_error_names_the_extra(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SlurmwrapError, match="prometheus_client is not installed here") as caught:
        metrics_text(site)
    assert "slurmwrap[metrics]" in caught.value.hint


def test_the_dashboard_queries_exactly_the_existing_metrics() -> None:
    result = json.loads(Runner().invoke(metrics.app, ["dashboard"], catch_exceptions=False).output)
    targets = [target["expr"] for panel in result["panels"] for target in panel.get("targets", ())]
    queried = {name for expression in targets for name in re.findall(r"slurmwrap_\w+", expression)}
    assert queried == {family.sample for family in FAMILIES}
    labels = {label for family in FAMILIES for label in family.labels} | {"job"}
    used = {word for e in targets for group in re.findall(r"by \(([^)]*)\)", e) for word in re.split(r",\s*", group)}
    assert used <= labels
    ids = [panel["id"] for panel in result["panels"]]
    assert len(ids) == len(set(ids))
    boxes = [tuple(panel["gridPos"][k] for k in "xywh") for panel in result["panels"]]
    assert all(x + w <= 24 for x, _, w, _ in boxes)
    overlaps = [
        (a, b)
        for number, a in enumerate(boxes)
        for b in boxes[number + 1 :]
        if a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]
    ]
    assert overlaps == []


def test_the_documentation_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(slurmwrap_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    assert rows == [(f.sample, f.kind, ", ".join(f"`{label}`" for label in f.labels), f.help) for f in FAMILIES]


# Maintenance of the reconciler between two passes


def test_maintenance_prunes_each_hour_and_writes_metrics_each_minute(site: Path) -> None:
    out = site.parent / "slurmwrap.prom"
    messages: list[str] = []
    config = replace(config_of(site, str(out)), retention=Retention(detail_d=30, keep_d=35))
    maintenance = ReconcilerMaintenance(site, config, site=True, say=messages.append)
    summary = PassSummary(took_s=0.25, errors=["x"])
    maintenance.after(summary, NOW)
    found = parse_samples(out.read_text())
    assert found["slurmwrap_reconcile_last_timestamp_seconds", ()] == NOW
    assert found["slurmwrap_reconcile_duration_seconds", ()] == 0.25
    assert found["slurmwrap_reconcile_errors", ()] == 1.0
    assert found["slurmwrap_pruned_last_timestamp_seconds", ()] == NOW
    with Database.open(site, readonly=True) as store:
        oldest = min(record.end_time or NOW for record in store.attempts())
    assert oldest >= NOW - 35 * 86_400
    for later, written in ((30.0, NOW), (61.0, NOW + 61.0)):
        maintenance.after(summary, NOW + later)
        result = parse_samples(out.read_text())
        assert result["slurmwrap_reconcile_last_timestamp_seconds", ()] == written
        assert result["slurmwrap_pruned_last_timestamp_seconds", ()] == NOW
    maintenance.after(summary, NOW + PRUNE_EVERY_S)
    assert messages == []


def test_an_error_of_maintenance_is_logged_once_and_later_retried(site: Path) -> None:
    messages: list[str] = []
    out = site.parent / "text" / "slurmwrap.prom"
    maintenance = ReconcilerMaintenance(site, config_of(site, str(out)), site=True, say=messages.append)
    for minute in range(3):
        maintenance.after(PassSummary(), NOW + 61.0 * minute)
    assert len(messages) == 1
    assert messages[0].startswith(f"metrics: metrics {out} cannot be written: No such file")
    out.parent.mkdir()
    maintenance.after(PassSummary(), NOW + 300.0)
    assert out.exists()


def test_the_database_is_rewritten_at_night_and_not_at_noon(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    night = NOW - NOW % 86_400 + 40 * 86_400 + 3 * 3600
    messages: list[str] = []
    maintenance = ReconcilerMaintenance(site, config_of(site), site=True, say=messages.append)
    made = retention.get_rewrite_time(site)
    maintenance.after(PassSummary(), max(night, made + 86_400))
    first = retention.get_rewrite_time(site)
    maintenance.after(PassSummary(), night + 12 * 3600 + 400 * 86_400)  # at noon
    noon = retention.get_rewrite_time(site)
    maintenance.after(PassSummary(), night + 400 * 86_400)
    last = retention.get_rewrite_time(site)
    monkeypatch.undo()
    time.tzset()
    assert (noon, last) == (first, night + 400 * 86_400)
    assert messages == []


# The check of slurmwrap doctor


def run_textfile_check(site: Path, textfile: str, now: float) -> tuple[str, str]:
    config = config_of(site, textfile)
    context = CheckContext(config=config, environ={}, uid=0, commands=SlurmCommands(), now=now)
    found = textfile_check(context)
    return found.state, found.text


def test_doctor_checks_that_the_metrics_file_is_up_to_date(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = site.parent / "text" / "slurmwrap.prom"
    assert run_textfile_check(site, "", NOW) == (SKIP, "metrics.textfile is not configured")
    assert run_textfile_check(site, str(out), NOW) == (WARN, f"{out.parent} does not exist")
    out.parent.mkdir()
    assert run_textfile_check(site, str(out), NOW) == (WARN, f"{out}: No such file or directory")
    metrics.write_textfile(out, "")
    written = out.stat().st_mtime
    assert run_textfile_check(site, str(out), written + 250) == (OK, f"{out}, 250 s old")
    assert run_textfile_check(site, str(out), written + 400) == (WARN, f"{out} was written 400 s ago")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_textfile_check(site, str(out), written) == (
        WARN,
        "prometheus_client is not installed: nothing is written",
    )
