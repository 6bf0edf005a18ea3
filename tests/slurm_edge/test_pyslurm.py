"""The PySlurm adapter without PySlurm: what it sends, what it leaves to commands, and failures of its worker.

PySlurm itself is tested only by tests/slurm/test_contract.py; this file does not replace it.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.errors import SlurmUnreachable
from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.slurm.choose_adapter import choose, compare_partitions
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.pyslurm import compatibility, worker_client
from slurmwrap.slurm.pyslurm import worker as worker_program
from slurmwrap.slurm.pyslurm.pyslurm_adapter import (
    Request,
    SlurmByPySlurm,
    Unable,
    make_change_request,
    make_submission_request,
    node_from_worker,
    partition_from_worker,
)
from slurmwrap.slurm.pyslurm.worker_client import Link, UnsupportedPyslurm, WorkerTimeout
from slurmwrap.slurm.scontrol_parser import parse_release


def update(key: str, value: str, target: str = "7") -> SlurmAction:
    return SlurmAction(verb=Verb.UPDATE_JOB, target=target, key=key, value=value)


def make_action(verb: Verb, target: str, value: str = "") -> SlurmAction:
    return SlurmAction(verb=verb, target=target, value=value)


# --- what PySlurm is used for ----------------------------------------------------------------------------------------


def changed(**values: object) -> Request:
    return "change", {"job_id": 7, "verb": "update", "values": values}


@pytest.mark.parametrize(
    ("actions", "request_"),
    [
        ([update("Comment", "a\nb; $(id)")], changed(comment="a b; $(id)")),
        ([update("Comment", "5")], changed(comment="5")),
        ([update("ExcNodeList", "n[1-2],n7")], changed(excluded_nodes="n[1-2],n7")),
        ([update("MinMemoryNode", "4000"), update("TimeLimit", "5")], changed(memory_per_node=4000, time_limit=5)),
        ([update("TimeLimit", "1-02:03:04")], changed(time_limit="1-02:03:04")),
        ([make_action(Verb.REQUEUE, "7")], ("change", {"job_id": 7, "verb": "requeue", "values": {}})),
        ([make_action(Verb.REQUEUEHOLD, "7")], ("change", {"job_id": 7, "verb": "requeuehold", "values": {}})),
        (
            [make_action(Verb.DRAIN, "n1", "slurmwrap: x\ny")],
            ("set_node", {"name": "n1", "values": {"state": "DRAIN", "reason": "slurmwrap: x y"}}),
        ),
        ([make_action(Verb.RESUME, "n1")], ("set_node", {"name": "n1", "values": {"state": "RESUME"}})),
    ],
)
def test_changes_that_pyslurm_supports_are_sent_through_it(actions: list[SlurmAction], request_: Request) -> None:
    assert make_change_request(actions[0], actions[1:]) == request_


@pytest.mark.parametrize(
    "actions",
    [
        [update("ExcNodeList", "")],  # PySlurm would clear nothing
        [update("Comment", "")],
        [update("Switches", "1@0")],
        [update("StartTime", "now")],
        [update("NumNodes", "2")],
        [update("MinMemoryNode", "2G")],  # scontrol refuses it
        [update("TimeLimit", "UNLIMITED")],
        [update("Comment", "x"), update("StartTime", "now")],
        [update("Comment", "x", "77_2")],
        [make_action(Verb.REQUEUE, "77_[1-3]")],
        [make_action(Verb.HOLD, "0")],
        [make_action(Verb.CANCEL, "7")],
    ],
)
def test_all_other_changes_are_made_by_command(actions: list[SlurmAction]) -> None:
    assert isinstance(make_change_request(actions[0], actions[1:]), str)


def submission(*words: str, script: bytes = b"#!/bin/sh\ntrue\n", **environ: str) -> Request | Unable:
    request = parse_request(
        words, environ=environ, cwd="/home/a", read_script=lambda path: script, read_stdin=lambda: script
    )
    return make_submission_request(request, environ, {"SLURM_SUBMIT_DIR": "/home/a"})


def test_a_submission_is_sent_completely() -> None:
    words = ("-N2", "-n4", "--mem=2G", "-t90", "--hold", "/s/train.sh", "a b", "-n9")
    script = b"#!/bin/sh\n#SBATCH -p debug --gres=gpu:a100:2\necho \xc3\xa9\n"
    assert submission(*words, script=script, SBATCH_ACCOUNT="lab", X="1") == (
        "submit",
        {
            "script": "#!/bin/sh\n#SBATCH -p debug --gres=gpu:a100:2\necho é\n",
            "job": {
                "partitions": "debug",
                "gres_per_node": "gpu:a100:2",
                "account": "lab",
                "nodes": 2,
                "ntasks": 4,
                "memory_per_node": "2G",
                "time_limit": 90,
                "priority": 0,
                "name": "train.sh",
                "working_directory": "/home/a",
                "script": "/s/train.sh",
                "script_args": ["/s/train.sh", "a b", "-n9"],
                "environment": {
                    "SBATCH_ACCOUNT": "lab",
                    "X": "1",
                    "SLURM_SUBMIT_DIR": "/home/a",
                    "SLURM_JOB_NAME": "train.sh",
                },
            },
        },
    )


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (("-n1",), b"#!/bin/sh\n"),
        (("-N1",), b"#!/bin/sh\n"),
        (("-N1", "-n1", "--switches=1"), b"#!/bin/sh\n"),
        (("-N1", "-n1", "--signal=USR1"), b"#!/bin/sh\n"),
        (("-N1-2", "-n1"), b"#!/bin/sh\n"),
        (("-N1", "-n1", "--mem=0"), b"#!/bin/sh\n"),
        (("-N1", "-n1", "-a1-3"), b"#!/bin/sh\n"),
        (("-N1", "-n1", "--wait"), b"#!/bin/sh\n"),
        (("-N1", "-n1", "--export=NONE"), b"#!/bin/sh\n"),
        (("-N1", "-n1", "--begin=now+60"), b"#!/bin/sh\n"),
        (("-N1", "-n1"), b"#!/bin/sh\n# \xff\n"),
        (("-N1", "-n1"), b"#!/bin/sh\n#SBATCH hetjob\n"),
    ],
)
def test_submissions_that_pyslurm_would_alter_are_made_by_sbatch(words: tuple[str, ...], script: bytes) -> None:
    assert isinstance(submission(*words, script=script), str)


# --- compatibility ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("22.5.3", (22, 5)), ("22.05.8", (22, 5)), ("25.11.2", (25, 11)), ("", None), ("unknown", None)],
)
def test_a_release_is_parsed_into_numbers(text: str, wanted: tuple[int, int] | None) -> None:
    assert parse_release(text) == wanted


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The metadata of PySlurm 22.5.3 without its code, a sinfo of Slurm 22.05.8, and a slurm.conf."""
    info = tmp_path / "site" / "pyslurm-22.5.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 22.5.3\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho slurm-wlm 22.05.8\n")
    sinfo.chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=x\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return {"PATH": os.environ["PATH"], "SLURM_CONF": str(tmp_path / "slurm.conf")}


def test_a_pyslurm_of_the_same_release_may_be_used(place: dict[str, str]) -> None:
    assert compatibility.find_misfit(place, proven_only=True) == ""


def test_a_pyslurm_of_another_release_is_never_imported(place: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho slurm 24.11.5\n")
    assert compatibility.find_misfit(place, proven_only=False) == "PySlurm 22.5.3 is not for Slurm 24.11.5"
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    assert compatibility.find_misfit(place, proven_only=False) == "Slurm's commands do not report their release"


def test_without_slurm_conf_pyslurm_is_never_imported(place: dict[str, str]) -> None:
    Path(place["SLURM_CONF"]).unlink()
    assert compatibility.find_misfit(place, proven_only=True).startswith("there is no slurm.conf that can be read")


@pytest.mark.parametrize("release", ["25.05.3", "25.11.2"])
def test_a_25_release_is_accepted_in_mode_auto(place: dict[str, str], tmp_path: Path, release: str) -> None:
    year, month = release.split(".")[:2]
    info = tmp_path / "site" / "pyslurm-22.5.3.dist-info" / "METADATA"
    info.write_text(f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {year}.{int(month)}.0\n")
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\necho slurm {release}\n")
    assert compatibility.find_misfit(place, proven_only=True) == ""


LIMITS = dict.fromkeys(("max_nodes", "max_cpus_per_node", "max_memory_per_node", "max_memory_per_cpu"))
REST = {**LIMITS, "min_nodes": 1, "state": "UP", "oversubscribe": "NO", "qos": None}
PARTITIONS = [
    {**REST, "name": "gpu", "is_default": True, "max_time": 60, "total_nodes": 8},
    {**REST, "name": "long", "is_default": False, "max_time": None, "total_nodes": 2},
]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({}, ""), ({"total_nodes": 3}, "it reads the partitions as"), ({"name": "lo"}, "it reads the partitions as")],
)
def test_a_pyslurm_that_reads_partitions_differently_from_scontrol_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], reason: str
) -> None:
    answer = json.dumps({"ok": [PARTITIONS[0], PARTITIONS[1] | changed], "said": ""})
    link = worker(tmp_path, monkeypatch, f"for line in sys.stdin: print({answer!r}, flush=True)")
    snapshot = Snapshot(taken_at=0.0, nodes=(), partitions=tuple(map(partition_from_worker, PARTITIONS)))
    found = compare_partitions(link, snapshot)
    assert found.startswith(reason) and bool(found) == bool(reason)
    link.close()


class RecordingLink:
    """Records the names of the tasks and answers none of them."""

    broken = ""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def ask(self, task: str, given: object = None, *, timeout_s: float | None = None) -> object:
        self.tasks.append(task)
        raise UnsupportedPyslurm("not answered")


class NoCommands:
    """Commands whose answers do not matter."""

    def snapshot(self) -> Snapshot:
        return Snapshot(taken_at=0.0, nodes=())

    def checked(self, *given: object) -> None: ...

    def apply(self, *given: object) -> None: ...


def test_the_worker_knows_every_requested_task() -> None:
    link = RecordingLink()
    adapter = SlurmByPySlurm(NoCommands(), link)  # type: ignore[arg-type]
    compatibility.probe(link)  # type: ignore[arg-type]
    compare_partitions(link, Snapshot(taken_at=0.0, nodes=()))  # type: ignore[arg-type]
    adapter.snapshot()
    for action in (
        update("Comment", "a"),
        make_action(Verb.REQUEUE, "7"),
        make_action(Verb.DRAIN, "n1", "slurmwrap: x"),
    ):
        adapter.apply(action)
    assert {*link.tasks, "submit"} == set(worker_program.TASKS)


def test_an_untested_release_is_used_only_on_request(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "PROVEN", frozenset())
    assert compatibility.find_misfit(place, proven_only=False) == ""
    assert compatibility.find_misfit(place, proven_only=True).startswith("not tried with Slurm 22.05.8")


def test_if_pyslurm_cannot_be_imported_the_commands_are_used(place: dict[str, str]) -> None:
    """By its metadata PySlurm is installed and compatible; importing it fails in the child process."""
    commands, messages = SlurmCommands(place), list[str]()
    for wanted, says in (("commands", 0), ("auto", 0), ("pyslurm", 1)):
        messages.clear()
        choice = choose(wanted, commands, place, timeout_s=5, say=messages.append)
        assert (choice.slurm, choice.name, len(messages)) == (commands, "commands", says)
    assert choice.reason == "it cannot be loaded: PySlurm's process ended (exit code 1)"
    assert messages == [f"PySlurm is not used: {choice.reason}"]


# --- the worker process---------------------------------------------------------------------------------------------


def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Link:
    """A Link to a worker that runs `program`."""
    path = tmp_path / "worker.py"
    path.write_text("import json, os, sys, time\n" + textwrap.dedent(program))
    monkeypatch.setattr(worker_client, "_WORKER", path)
    return Link({"PATH": os.environ["PATH"]}, allow(30))


def test_a_worker_that_exits_is_not_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    link = worker(tmp_path, monkeypatch, f"open({str(count)!r}, 'a').write('x'); os.kill(os.getpid(), 11)")
    with pytest.raises(WorkerTimeout, match="exit code -11"):
        link.ask("nodes")
    with pytest.raises(UnsupportedPyslurm, match="exit code -11"):
        link.ask("nodes")
    assert count.read_text() == "x"


def test_a_worker_that_hangs_is_killed_and_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    program = f"""
        if not os.path.exists({str(mark)!r}):
            open({str(mark)!r}, "w").write(str(os.getpid()))
            time.sleep(3600)
        for line in sys.stdin:
            print(json.dumps({{"ok": json.loads(line)["task"], "said": ""}}), flush=True)
    """
    link = worker(tmp_path, monkeypatch, program)
    with pytest.raises(WorkerTimeout, match="no answer within"):
        link.ask("nodes", timeout_s=allow(1))  # enough for its Python to start
    assert not Path(f"/proc/{mark.read_text()}").exists()
    assert link.ask("nodes") == "nodes"
    link.close()


def test_large_requests_and_answers_are_transferred_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        for line in sys.stdin:
            text = json.loads(line)["with"]["text"]
            print(json.dumps({"ok": text[::-1], "said": ""}), flush=True)
    """
    link = worker(tmp_path, monkeypatch, program)
    text = "é\n" * 400_000
    assert link.ask("x", {"text": text}) == text[::-1]
    assert link.ask("x", {"text": "ab"}) == "ba"
    link.close()


def test_a_worker_that_reads_nothing_does_not_block_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = worker(tmp_path, monkeypatch, "time.sleep(3600)")
    with pytest.raises(WorkerTimeout):
        link.ask("x", {"text": "a" * 10_000_000}, timeout_s=0.5)


class Commands(SlurmCommands):
    """Commands of a Slurm that accepts every request."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: list[str] = []

    def snapshot(self, known: Sequence[Node] | None = None) -> Snapshot:
        self.asked.append("snapshot")
        return Snapshot(taken_at=1.0, nodes=())

    def checked(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> list[str]:
        return []

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        self.asked.append(action.verb.value)


def test_after_a_worker_crash_the_commands_are_used_and_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, messages = Commands(), list[str]()
    slurm = SlurmByPySlurm(
        commands, worker(tmp_path, monkeypatch, "sys.stdin.readline(); sys.exit(3)"), messages.append
    )
    assert slurm.snapshot().taken_at == 1.0
    assert slurm.snapshot().taken_at == 1.0
    slurm.apply(make_action(Verb.REQUEUE, "7"))
    assert commands.asked == ["snapshot", "snapshot", "requeue"]
    assert messages == [
        "PySlurm: nodes by command: PySlurm's process ended (exit code 3)",
        "PySlurm: requeue by command: PySlurm's process ended (exit code 3)",
    ]


def test_a_change_interrupted_by_a_worker_crash_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown whether Slurm received the change."""
    commands = Commands()
    slurm = SlurmByPySlurm(commands, worker(tmp_path, monkeypatch, "sys.stdin.readline(); sys.exit(3)"))
    with pytest.raises(SlurmUnreachable, match="exit code 3"):
        slurm.apply(make_action(Verb.REQUEUE, "7"))
    assert commands.asked == []


NODE = {
    **dict.fromkeys(("effective_cpus", "real_memory", "memory_reserved_for_system", "allocated_memory", "sockets")),
    **dict.fromkeys(("weight", "address")), "name": "n1", "state": "DOWN", "total_cpus": 4, "allocated_cpus": 0,
    "gres": "", "gres_used": "", "partitions": ["gpu"], "active_features": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "user", "time", "expected"),
    [("", "root", "2026-01-01", ""), ("bad", "root", "2026-01-01", "bad [root@2026-01-01]"), ("bad", "", None, "bad")],
)
def test_the_reason_of_a_node_is_formatted_as_by_scontrol(
    reason: str, user: str, time: str | None, expected: str
) -> None:
    node = node_from_worker({**NODE, "reason": reason, "reason_user": user, "reason_time": time})
    assert node.reason == expected
