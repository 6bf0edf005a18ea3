"""slurmwrap nodes: list, show, clear, repaired and gate, for root and for users."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from slurmwrap.errors import RefusedError, SlurmError, SlurmwrapError, UsageError
from slurmwrap.model.cluster import NodeHealth
from slurmwrap.model.decision import Strike
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.gate_permit import Fault, Gate
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Context, Observation
from slurmwrap.protocols import Published
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import FilePublisher

Run = Callable[..., Result]
NOW = time.time()
SCONTROL = """#!/bin/sh
case "$*" in
"update"*) echo "$*" >> "$FAKE/asked"; exit 0 ;;
"show node n1 -d -o") cat "$FAKE/nodes" ;;
"show node -d -o") cat "$FAKE/nodes" ;;
"-o") echo "PartitionName=gpu Default=YES" ;;
esac
"""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="the site's database is root's here")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site's database: n1 is a lemon node, n2 to n4 are equally suspect, n5 has one strike; all ran jobs."""
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / "site.db"
    with Database.open(path) as store, store.transaction():
        for number in range(1, 41):
            store.save_attempt(make_run(number, f"n{number}"))
        for job in range(101, 107):
            store.add_strike(make_strike("n1"), NOW - 3600, job, 1000 + job)
        for name in ("n2", "n3", "n4"):
            for job in (201, 202):
                store.add_strike(make_strike(name), NOW - 3600, job, 1000 + job)
        store.add_strike(make_strike("n5"), NOW - 3600, 301, 1301)
        store.ingest(make_epilog_observation("n1"))
    return path


def make_strike(node: str) -> Strike:
    return Strike(node=node, cause="gpu_hardware", conclusive=False, text="GPU needs help")


def make_epilog_observation(node: str) -> Observation:
    lines = [{"text": "NVRM: Xid (PCI:0000:05:00): 79, name=\x1b[31m", "at": NOW}]
    facts = {"uid": 1400, "kernel": lines}
    return Observation(
        nonce="x", cluster="lab", job_id=400, context=Context.EPILOG, at=NOW - 60, node=node, facts=facts
    )


def make_run(job_id: int, *nodes: str, **changes: Any) -> JobRun:
    attempt = RunKey(cluster="lab", job_id=job_id, submit_time=int(NOW) - 90000)
    done = Diagnosis(category="success", domain="", decision="none", confidence=1, signature="slurm.completed")
    times = {"start_time": int(NOW) - 80000, "end_time": int(NOW) - 8000}
    return JobRun(attempt=attempt, nodes=nodes, state="COMPLETED", diagnosis=done, **times, **changes)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake scontrol with the nodes n1 to n40; it writes its update commands to the file `asked`."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=lab\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("FAKE", str(tmp_path))
    write_nodes(tmp_path)
    return tmp_path


def write_nodes(place: Path, **reasons: str) -> None:
    lines = []
    for name in (f"n{i}" for i in range(1, 41)):
        state, reason = ("IDLE+DRAIN", f" Reason={reasons[name]}") if name in reasons else ("IDLE", "")
        lines.append(f"NodeName={name} CPUTot=8 RealMemory=1000 State={state} Partitions=gpu{reason}")
    (place / "nodes").write_text("\n".join(lines) + "\n")


@pytest.fixture
def without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "no.conf"))


@root_only
def test_nodes_with_the_same_history_share_a_line_and_the_worst_is_first(
    slurmwrap: Run, site: Path, slurm: Path
) -> None:
    result = slurmwrap("nodes", "list", site=True)
    assert result.exit_code == 0, result.exception
    head, first, second = result.stdout.splitlines()
    assert head.split() == ["node", "status", "since", "times", "jobs", "users", "why"]
    assert first.split()[:2] == ["n1", "lemon"]
    assert second.split()[:2] == ["n[2-4]", "suspect"]


@root_only
def test_nodes_beyond_the_exclude_cap_are_shown_as_ok_with_the_reason(
    slurmwrap: Run, site: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMWRAP_PLACEMENT_EXCLUDE_CAP", "0.05")
    rows = {row["node"]: row for row in json.loads(slurmwrap("nodes", "list", "--json", site=True).stdout)["rows"]}
    assert [(name, row["shown"], row["published"]) for name, row in rows.items()] == [
        ("n1", "lemon", True),
        ("n2", "suspect", True),
        ("n3", "ok", False),
        ("n4", "ok", False),
    ]
    assert rows["n3"]["reason"] == "would be suspect: cap used up (placement.exclude_cap)"


@root_only
def test_all_shows_nodes_that_are_ok_too(slurmwrap: Run, site: Path, slurm: Path) -> None:
    rows = json.loads(slurmwrap("nodes", "list", "--all", "--json", site=True).stdout)["rows"]
    assert [(row["node"], row["status"]) for row in rows if row["node"] == "n5"] == [("n5", "ok")]


@root_only
def test_show_lists_each_term_of_the_weight_of_a_node(slurmwrap: Run, site: Path, slurm: Path) -> None:
    write_nodes(slurm, n1="bad fan [root@2026-11-20]")
    timeline = slurmwrap("nodes", "show", "n1", site=True).stdout
    lines = timeline.splitlines()
    assert lines[0] == "n1: lemon"
    assert "  Slurm    IDLE+DRAIN: bad fan" in timeline
    assert "  ran      1 run, 20.0 h in 28 days" in lines
    assert sum("6 x strike, suspect  jobs 101, 102, 103, 104, 105, 106 of 6 users" in line for line in lines) == 1
    each = slurmwrap("nodes", "show", "n1", "--verbose", site=True).stdout.splitlines()
    assert sum("strike, suspect  job 10" in line for line in each) == 6
    assert "xid, conclusive  job 400 of 1400" in timeline
    assert "NVRM: Xid (PCI:0000:05:00): 79, name=\\x1b[31m" in timeline and "\x1b" not in timeline
    (row,) = json.loads(slurmwrap("nodes", "show", "n1", "--json", site=True).stdout)["rows"]
    assert row["weight"] == sum(term["weight"] for term in row["terms"]) == 9.0
    assert slurmwrap("nodes", "show", "n9", site=True).stdout == "n9: nothing is known against it\n"


@root_only
def test_clear_voids_the_strikes_and_records_who_cleared_them(slurmwrap: Run, site: Path, slurm: Path) -> None:
    result = slurmwrap("nodes", "clear", "n1", "--note", "driver rolled back", site=True)
    assert (result.exit_code, result.stdout) == (0, "n1: cleared, 6 strikes void\n")
    with Database.open(site, readonly=True) as store:
        assert [s.node for s in store.strikes(since=0)].count("n1") == 0
        kept = [s for s in store.node_history(0).strikes if s.node == "n1"]
        (mark,) = store.repairs(since=0)
    assert len(kept) == 6 and all(s.cleared_at and s.cleared_by == mark.who for s in kept)
    assert (mark.node, mark.kind, mark.note) == ("n1", "cleared", "driver rolled back")
    assert "n1" not in [
        row["node"] for row in json.loads(slurmwrap("nodes", "list", "--json", site=True).stdout)["rows"]
    ]
    timeline = slurmwrap("nodes", "show", "n1", site=True).stdout
    assert "n1: ok" in timeline and "driver rolled back" in timeline and f"cleared by {mark.who}" in timeline


@root_only
def test_a_repair_is_recorded_for_each_node_of_a_host_list(slurmwrap: Run, site: Path, slurm: Path) -> None:
    result = slurmwrap("nodes", "repaired", "n[1-3]", site=True)
    assert result.stdout == "n1: repaired\nn2: repaired\nn3: repaired\n"
    left = [row["node"] for row in json.loads(slurmwrap("nodes", "list", "--json", site=True).stdout)["rows"]]
    assert left == ["n4"]


@root_only
def test_clear_with_resume_resumes_a_node_that_slurmwrap_drained(slurmwrap: Run, site: Path, slurm: Path) -> None:
    write_nodes(slurm, n1="slurmwrap: gpu_hardware, seen by job 400 [slurm@2026-11-20]")
    result = slurmwrap("nodes", "clear", "n1", "--resume", site=True)
    assert (result.exit_code, result.stdout) == (0, "n1: cleared, 6 strikes void, resumed\n")
    assert (slurm / "asked").read_text() == "update NodeName=n1 State=RESUME\n"
    with Database.open(site, readonly=True) as store:
        (action,) = store.actions()
    assert (action.verb, action.target, action.error, action.done_at is not None) == ("resume", "n1", "", True)


@root_only
def test_clear_with_resume_refuses_a_node_that_an_administrator_drained(
    slurmwrap: Run, site: Path, slurm: Path
) -> None:
    write_nodes(slurm, n1="bad fan [bob@2026-11-20]")
    result = slurmwrap("nodes", "clear", "n1", "--resume", site=True)
    assert isinstance(result.exception, SlurmError)
    assert "was not drained by slurmwrap" in str(result.exception) and "bad fan" in str(result.exception)
    assert not (slurm / "asked").exists()
    with Database.open(site, readonly=True) as store:
        assert store.repairs(since=0) == () and len([s for s in store.strikes(since=0) if s.node == "n1"]) == 6


@root_only
def test_without_slurm_the_stored_history_is_shown(slurmwrap: Run, site: Path, without_slurm: None) -> None:
    result = slurmwrap("nodes", "list", "--json", site=True)
    assert json.loads(result.stdout)["rows"][0]["node"] == "n1"
    assert "drains and the cap are not known" in result.stderr


@root_only
@pytest.mark.parametrize("name", ["n77", "all", "$(reboot)", "n1;n2"])
def test_repaired_with_an_unknown_node_is_refused_and_records_nothing(
    slurmwrap: Run, site: Path, slurm: Path, name: str
) -> None:
    result = slurmwrap("nodes", "repaired", name, site=True)
    assert isinstance(result.exception, UsageError)
    with Database.open(site, readonly=True) as store:
        assert store.repairs(since=0) == ()


@root_only
@pytest.mark.parametrize("as_site", [True, False])
def test_show_of_an_unknown_node_is_an_error(slurmwrap: Run, site: Path, slurm: Path, as_site: bool) -> None:
    result = slurmwrap("nodes", "show", "n[40,77]", site=as_site)
    assert isinstance(result.exception, UsageError)
    assert (str(result.exception), result.exception.exit_code) == ("there is no node 'n77'", 1)


@pytest.mark.parametrize("verb", ["clear", "repaired"])
def test_clear_and_repaired_are_refused_for_users(slurmwrap: Run, verb: str) -> None:
    result = slurmwrap("nodes", verb, "n1")
    assert isinstance(result.exception, RefusedError)
    assert result.exception.exit_code == 5


def test_a_user_sees_the_published_node_health(slurmwrap: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    health = tuple(
        NodeHealth(node=f"node{i:02d}", status="suspect", since=NOW, reason="faults of 2 jobs") for i in range(1, 41)
    )
    (tmp_path / "published").mkdir(mode=0o755)
    monkeypatch.setenv("SLURMWRAP_SITE_PUBLISHED", str(tmp_path / "published"))
    FilePublisher(tmp_path / "published", "", seal=lambda payload, **_: payload).publish(Published(health=health))
    if os.geteuid():
        return
    _, line = slurmwrap("nodes", "list").stdout.splitlines()
    assert line.split()[:2] == ["node[01-40]", "suspect"] and line.endswith("faults of 2 jobs")
    assert slurmwrap("nodes", "show", "node07").stdout == "node07: suspect\n  why      faults of 2 jobs\n"


def test_without_records_the_output_says_that_no_node_is_suspect(slurmwrap: Run) -> None:
    assert slurmwrap("nodes", "list").stdout == "No node is suspect.\n"
    assert slurmwrap("nodes", "show", "n1").stdout == "n1: nothing is known against it\n"
    assert isinstance(slurmwrap("nodes", "show", "n[1-").exception, UsageError)


def test_the_help_has_examples(slurmwrap: Run) -> None:
    assert "slurmwrap nodes repaired n17" in slurmwrap("nodes", "--help").stdout


@root_only
def test_filters_choose_nodes_by_status_cause_and_name(slurmwrap: Run, site: Path, slurm: Path) -> None:
    def names(*words: str) -> list[str]:
        return [
            row["node"] for row in json.loads(slurmwrap("nodes", "list", "--json", *words, site=True).stdout)["rows"]
        ]

    assert names("--status", "lemon") == ["n1"]
    assert names("--status", "suspect,ok", "--node", "n[3-5]") == ["n3", "n4", "n5"]
    assert names("--cause", "xid") == ["n1"]
    assert names("--cause", "nothing of the kind") == []
    assert names("--since", "30min") == []
    wrong = slurmwrap("nodes", "list", "--status", "lemmon", site=True)
    assert isinstance(wrong.exception, UsageError)
    assert (str(wrong.exception), wrong.exception.hint) == (
        "--status 'lemmon' is unknown",
        "did you mean lemon?",
    )


@root_only
def test_show_folds_nodes_with_the_same_history(slurmwrap: Run, site: Path, slurm: Path) -> None:
    pages = slurmwrap("nodes", "show", "n[1-4,6-9]", site=True).stdout.split("\n\n")
    assert [page.splitlines()[0] for page in pages] == [
        "n1: lemon",
        "n[2-4]: suspect",
        "n[6-9]: nothing is known against it",
    ]
    assert "2 x strike, suspect  jobs 201, 202 of 2 users" in pages[1]


@root_only
def test_a_limited_list_counts_the_omitted_nodes(slurmwrap: Run, site: Path, slurm: Path) -> None:
    shown = slurmwrap("nodes", "list", "--limit", "1", site=True).stdout.splitlines()
    assert (shown[1].split()[0], shown[2:]) == ("n1", ["and 3 more (--all shows them)"])


def test_gate_shows_the_published_permit_of_the_prolog_gate(
    slurmwrap: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMWRAP_SITE_PUBLISHED", str(tmp_path / "published"))
    assert "Nothing is published" in slurmwrap("nodes", "gate").stdout
    (tmp_path / "published").mkdir(mode=0o755)
    publisher = FilePublisher(tmp_path / "published", "", seal=lambda payload, **_: payload)
    now = time.time()
    faults = tuple(Fault(node=f"n{i}", cause="gpu_hardware", since=now - 60) for i in (1, 2, 3))
    publisher.tell_gate(Gate(at=now, until=now + 90 * 86_400, allowed=True, faults=faults))
    if os.geteuid():
        return
    first, _, line = slurmwrap("nodes", "gate").stdout.splitlines()
    assert first.endswith("the gate may refuse.") and line.split()[:2] == ["n[1-3]", "gpu_hardware"]
    publisher.tell_gate(Gate(at=now - 700, until=now - 100, allowed=False))
    assert "the gate refuses nothing" in slurmwrap("nodes", "gate").stdout


@root_only
def test_repaired_with_resume_and_no_check_resumes_at_once(slurmwrap: Run, site: Path, slurm: Path) -> None:
    write_nodes(slurm, n1="slurmwrap:gpu_lost")
    result = slurmwrap("nodes", "repaired", "n1", "--resume", "--no-check", site=True)
    assert (result.exit_code, result.stdout) == (0, "n1: repaired, resumed\n")
    assert (slurm / "asked").read_text() == "update NodeName=n1 State=RESUME\n"


@root_only
def test_repaired_with_resume_is_refused_where_no_check_can_be_made(slurmwrap: Run, site: Path, slurm: Path) -> None:
    write_nodes(slurm, n1="slurmwrap:gpu_lost")
    result = slurmwrap("nodes", "repaired", "n1", "--resume", site=True)
    assert isinstance(result.exception, SlurmwrapError)
    assert "names no hooks of slurmwrap" in str(result.exception)
    assert not (slurm / "asked").exists()
    with Database.open(site, readonly=True) as store:
        assert store.repairs(since=0) == ()


@root_only
def test_list_and_show_print_the_command_where_nvml_asks_for_a_reboot(slurmwrap: Run, site: Path, slurm: Path) -> None:
    text = "GPU 3 (0000:05:00.0): asks for recovery action node_reboot"
    with Database.open(site) as store:
        for name in ("n7", "n8"):
            strike = Strike(node=name, cause="gpu_hardware", conclusive=True, text=text)
            store.add_strike(strike, NOW - 3600, 501, 1501)
    advice = "next: scontrol reboot ASAP nextstate=RESUME reason=\"slurmwrap: NVML asks for a reboot\" '{}'"
    assert advice.format("n[7-8]") in slurmwrap("nodes", "list", site=True).stdout
    assert advice.format("n8") in slurmwrap("nodes", "show", "n8", site=True).stdout
    assert "reboot" not in slurmwrap("nodes", "show", "n1", site=True).stdout
