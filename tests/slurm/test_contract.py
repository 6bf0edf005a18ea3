"""What every adapter of protocols.Slurm must do, on a real Slurm: the commands, and PySlurm if it has the same release.

`make test` runs these tests with the commands. `make test-pyslurm PYTHON=…` runs them with a Python that has PySlurm
for this Slurm.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.host.run_command import run
from slurmwrap.model.cluster import Node
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.protocols import SbatchCall, SbatchResult, Slurm
from slurmwrap.slurm.choose_adapter import choose
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.pyslurm.compatibility import find_installed_version
from slurmwrap.slurm.pyslurm.pyslurm_adapter import SlurmByPySlurm
from slurmwrap.slurm.scontrol_parser import parse_release

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE, BOB = USERS
SLEEP = "#!/bin/sh\nsleep 86400\n"
_FIELDS_OF_ONE_JOB = re.compile(  # fields that differ between two jobs with equal options
    r"^(JobId|Priority|Time|\w+Time|LastSchedEval|Scheduler|StdOut|StdErr|AllocNode:Sid|NodeList|BatchHost)$"
)
Make = Callable[[Mapping[str, str], float], Slurm]


def _find_reason_against_pyslurm() -> str:
    """Why PySlurm cannot be used, or "". It is not imported, and slurmctld tells the release: the commands need a
    slurm.conf for that, and no lab runs yet."""
    if not find_installed_version():
        return "PySlurm is not installed"
    slurms = run(["slurmctld", "-V"], timeout_s=5).stdout.decode().split()[-1:]
    fits = slurms and parse_release(slurms[0]) == parse_release(find_installed_version())
    return "" if fits else f"PySlurm {find_installed_version()}, Slurm {slurms}"


REASON_AGAINST_PYSLURM = _find_reason_against_pyslurm()


@pytest.mark.skipif(
    bool(REASON_AGAINST_PYSLURM), reason=f"{REASON_AGAINST_PYSLURM}: the contract is shown for the commands alone"
)
def test_a_pyslurm_of_the_same_release_is_chosen(lab: Lab) -> None:
    environ = {**os.environ, **lab.env}
    choice = choose("pyslurm", SlurmCommands(environ), environ, timeout_s=10)
    assert (choice.name, choice.reason) == ("pyslurm", f"PySlurm {find_installed_version()} fits this Slurm")
    assert isinstance(choice.slurm, SlurmByPySlurm)
    choice.slurm.close()


@pytest.fixture(params=["commands"] if REASON_AGAINST_PYSLURM else ["commands", "pyslurm"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """A function that makes the adapter of this test run from an environment and a timeout in seconds."""
    made: list[SlurmByPySlurm] = []

    def adapter(environ: Mapping[str, str], timeout_s: float = 10.0) -> Slurm:
        commands = SlurmCommands(environ, timeout_s=timeout_s)
        choice = choose(request.param, commands, environ, timeout_s=timeout_s)
        assert choice.name == request.param, choice.reason
        made.extend(one for one in [choice.slurm] if isinstance(one, SlurmByPySlurm))
        return choice.slurm

    yield adapter
    for one in made:
        one.close()
        # no request for PySlurm went to a command instead, except those for arrays, which only Slurm can resolve
        assert [line for line in one.unfit if "is an array" not in line] == []


@pytest.fixture
def environ(lab: Lab) -> dict[str, str]:
    return {**os.environ, **lab.env}


@pytest.fixture
def slurm(make: Make, environ: dict[str, str]) -> Slurm:
    return make(environ, 10.0)


@pytest.fixture
def commands(environ: dict[str, str]) -> SlurmCommands:
    """The adapter with which the tested one is compared."""
    return SlurmCommands(environ)


@pytest.fixture
def held(lab: Lab) -> Iterator[str]:
    """A held job of alice. Its name contains text that looks like fields and lines of Slurm."""
    name = "x JobState=RUNNING\n7|RUNNING\x1f"
    job_id = lab.submit("--hold", "--mem=100", f"--job-name={name}", "--comment=c Reason=x", user=ALICE, script=SLEEP)
    yield job_id
    lab.run(["scancel", job_id])


@pytest.fixture
def running(lab: Lab) -> Iterator[str]:
    job_id = lab.submit("--mem=100", "--requeue", user=ALICE, script=SLEEP)
    lab.wait_job(job_id, ("RUNNING",))
    yield job_id
    lab.run(["scancel", job_id])


def get_job(slurm: Slurm, address: str) -> JobRecord:
    record = slurm.job(address)
    assert record is not None
    return record


def wait_for_end(slurm: Slurm, address: str) -> JobRecord:
    return wait_for(lambda: get_job(slurm, address), lambda record: record.ended, timeout=60)


def read_job_fields(lab: Lab, job_id: str) -> dict[str, str]:
    """All fields that scontrol shows of a job, except those that differ between any two jobs."""
    text = lab.run(["scontrol", "show", "job", job_id]).stdout
    pairs = (piece.partition("=") for line in text.splitlines() for piece in re.split(r"\s+(?=[A-Za-z:/]+=)", line))
    return {key.strip(): value for key, _, value in pairs if key.strip() and not _FIELDS_OF_ONE_JOB.match(key.strip())}


# --- snapshot -----------------------------------------------------------------------------------------------------


def list_differences(one: object, other: object) -> list[str]:
    names = [field.name for field in fields(one)]  # type: ignore[arg-type]
    return [f"{n}: {getattr(one, n)!r} / {getattr(other, n)!r}" for n in names if getattr(one, n) != getattr(other, n)]


def test_a_snapshot_of_an_idle_cluster_equals_that_of_the_commands(
    lab: Lab, slurm: Slurm, commands: SlurmCommands
) -> None:
    lab.reset()  # no job ends between the two snapshots
    before = time.time()
    ours, theirs = slurm.snapshot(), commands.snapshot()
    assert list_differences(ours, replace(theirs, taken_at=ours.taken_at)) == []
    assert before <= ours.taken_at <= time.time()
    assert {(n.gpus, n.gpu_type, n.usable, n.address) for n in ours.nodes} == {(8, "a100", True, "127.0.0.1")}
    assert [len(leaf.nodes) for leaf in ours.topology.leaves] == [4, 4]


def test_a_snapshot_of_a_busy_cluster_equals_that_of_the_commands(
    lab: Lab, slurm: Slurm, commands: SlurmCommands
) -> None:
    lab.reset()
    full = lab.submit("-wn0", "--exclusive", "--gres=gpu:8", "--mem=100", user=ALICE, script=SLEEP)
    part = lab.submit("-wn1", "--gres=gpu:3", "--mem=100", user=ALICE, script=SLEEP)
    lab.run(["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=bad cable, State=IDLE (x)"])
    lab.run(["scontrol", "update", "NodeName=n3", "Features=ib,rack1", "ActiveFeatures=ib", "Weight=7"])
    lab.run(["scontrol", "create", "PartitionName=tight", "Nodes=n[0-3]", "MaxNodes=2", "MaxTime=90", "MinNodes=2",
             "MaxMemPerNode=90000", "OverSubscribe=EXCLUSIVE", "State=DRAIN"])  # fmt: skip
    lab.run(["scontrol", "create", "reservation", "Nodes=n7", "StartTime=now+60", "Duration=10", "Users=root",
             "ReservationName=soon", "Flags=MAINT"])  # fmt: skip
    try:
        lab.wait_job(full, ("RUNNING",))
        lab.wait_job(part, ("RUNNING",))
        ours, theirs = slurm.snapshot(), commands.snapshot()
    finally:
        lab.run(["scancel", full, part])
        lab.run(["scontrol", "delete", "reservation", "soon"])
        lab.run(["scontrol", "delete", "PartitionName=tight"])
        lab.run(["scontrol", "update", "NodeName=n3", "Features=", "Weight=1"])
        lab.run(["scontrol", "update", "NodeName=n2", "State=RESUME"])
    assert list_differences(ours, replace(theirs, taken_at=ours.taken_at)) == []
    nodes = {node.name: node for node in ours.nodes}
    assert (nodes["n0"].state, nodes["n0"].gpus_free) == ("ALLOCATED", 0)
    assert (nodes["n1"].state, nodes["n1"].gpus_used_at, nodes["n1"].mem_alloc_mib) == ("MIXED", (0, 1, 2), 100)
    assert ("DRAIN" in nodes["n2"].flags, nodes["n2"].reason.partition(" [")[0]) == (
        True,
        "bad cable, State=IDLE (x)",
    )
    assert (nodes["n3"].features, nodes["n3"].weight) == (("ib",), 7)
    assert [p.name for p in ours.partitions if p.exclusive] == ["tight"]
    assert [r.name for r in ours.reservations] == ["soon"]


# --- jobs ---------------------------------------------------------------------------------------------------------


def test_a_job_name_with_forged_fields_stays_text_and_makes_no_second_job(slurm: Slurm, held: str) -> None:
    record = get_job(slurm, held)
    assert (record.state, record.name, record.comment) == ("PENDING", "x JobState=RUNNING\n7|RUNNING\x1f", "c Reason=x")
    assert [r.job_id for r in slurm.jobs(ALICE) if r.pending and r.name == record.name] == [int(held)]


def test_a_job_name_that_is_not_utf8_hides_no_job(lab: Lab, slurm: Slurm) -> None:
    bad = b"#!/bin/sh\n#SBATCH --hold --mem=10 --job-name=\xff\xfe\nsleep 1\n".decode("latin-1")
    script = Path(f"/var/tmp/{ALICE}/bad.sh")
    script.write_bytes(bad.encode("latin-1"))
    script.chmod(0o644)
    job_id = lab.submit(script, user=ALICE)
    try:
        assert get_job(slurm, job_id).name == "��"
        assert int(job_id) in {record.job_id for record in slurm.jobs()}
    finally:
        lab.run(["scancel", job_id])


def test_an_unknown_job_is_none_and_jobs_are_filtered_by_user(slurm: Slurm, held: str) -> None:
    assert slurm.job("999999") is None
    assert int(held) in {record.job_id for record in slurm.jobs()}
    assert int(held) not in {record.job_id for record in slurm.jobs(BOB)}


def test_the_record_of_an_ended_job_has_exit_codes_times_and_output_file(lab: Lab, slurm: Slurm) -> None:
    job_id = lab.submit(
        "--mem=100", "--time=2", "--output=o-%j-%x", user=ALICE, script="#!/bin/sh\nsrun false\nexit 3\n"
    )
    record = wait_for_end(slurm, job_id)
    assert (record.state, record.reason, record.exit_code, record.derived_exit_code) == (
        "FAILED",
        "NonZeroExitCode",
        3,
        1,
    )
    assert (record.user, record.time_limit_s, record.mem_mib_per_node, record.num_nodes) == (ALICE, 120, 100, 1)
    assert record.std_out == record.std_err == f"{record.work_dir}/o-{job_id}-sbatch"
    assert record.start_time is not None and record.end_time is not None
    assert record.submit_time <= record.start_time <= record.end_time <= time.time() + 1


def test_array_tasks_have_their_own_addresses_and_output_files(lab: Lab, slurm: Slurm) -> None:
    array = lab.submit("--mem=100", "--array=0-1", user=ALICE, script="#!/bin/sh\nexit $SLURM_ARRAY_TASK_ID\n")
    lab.wait_job(array, ("COMPLETED", "FAILED"))
    tasks = [wait_for_end(slurm, f"{array}_{i}") for i in (0, 1)]
    assert [(t.address, t.state, t.exit_code) for t in tasks] == [
        (f"{array}_0", "COMPLETED", 0),
        (f"{array}_1", "FAILED", 1),
    ]
    assert [t.std_out for t in tasks] == [f"{t.work_dir}/slurm-{t.address}.out" for t in tasks]
    assert get_job(slurm, str(tasks[0].job_id)).address == f"{array}_0"


# --- submission ---------------------------------------------------------------------------------------------------

# With --nodes and --ntasks PySlurm submits the job itself. Without them sbatch does, with every adapter.
PLACES = ("--nodes=1", "--ntasks=1", "--mem=10", "--time=5")


def submit(slurm: Slurm, environ: dict[str, str], *options: str, script: str = SLEEP, **given: object) -> SbatchResult:
    call = SbatchCall(options=options, script_path=None, stdin=script.encode(), environ=environ, cwd="/tmp", **given)  # type: ignore[arg-type]
    return slurm.sbatch(call)


@pytest.mark.parametrize("options", [PLACES, ("--mem=10",)], ids=["plain", "by-default"])
def test_a_submission_prints_its_job_id(
    lab: Lab, slurm: Slurm, environ: dict[str, str], options: tuple[str, ...]
) -> None:
    result = submit(slurm, environ, "--hold", *options)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"Submitted batch job {result.job_id}\n", "")
    parsable = submit(slurm, environ, "--hold", "--parsable", *options)
    assert (parsable.exit_code, parsable.stdout, parsable.stderr) == (0, f"{parsable.job_id}\n", "")
    assert [get_job(slurm, str(one.job_id)).state for one in (result, parsable)] == ["PENDING", "PENDING"]
    lab.run(["scancel", str(result.job_id), str(parsable.job_id)])


def test_a_refused_submission_has_the_error_message_of_sbatch(
    slurm: Slurm, commands: SlurmCommands, environ: dict[str, str]
) -> None:
    for options in (
        ("--partition=nopart", "--mem=10"),  # refused by sbatch itself
        ("--partition=nopart", *PLACES),
        ("--mem=1000000000", "--nodes=1", "--ntasks=1"),
        ("--nodelist=nowhere", *PLACES),
        ("--gres=gpu:99", *PLACES),
        ("--time=nonsense",),
    ):
        ours, theirs = submit(slurm, environ, *options), submit(commands, environ, *options)
        assert ours == theirs, options
        assert (ours.job_id, ours.timed_out, ours.exit_code) == (None, False, theirs.exit_code)
        assert "error: " in ours.stderr


def test_a_submitted_job_equals_that_of_sbatch(
    lab: Lab, slurm: Slurm, commands: SlurmCommands, environ: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text('#!/bin/sh\n#SBATCH --nodes=2 --ntasks=4\n#SBATCH --gres=gpu:a100:2\necho "é $1"\n')
    options = (
        *("--hold", "--mem=100M", "--cpus-per-task=3", "--time=1:30:00", "--exclude=n[6-7]", "--comment=a b=c; $(id)"),
        *("--output=o-%j", "--error=e-%j", "--partition=gpu", "--no-requeue", "--dependency=singleton"),
    )
    call = SbatchCall(options=options, script_path=str(script), args=("x y", "-n9"), environ=environ, cwd="/tmp")
    ours, theirs = slurm.sbatch(call), commands.sbatch(call)
    jobs, scripts = [str(one.job_id) for one in (ours, theirs)], []
    try:
        assert read_job_fields(lab, jobs[0]) == read_job_fields(lab, jobs[1])
        assert "--gres=gpu:a100:2" not in read_job_fields(lab, jobs[0])["Command"]
        for one in jobs:
            copy = tmp_path / one
            lab.run(["scontrol", "write", "batch_script", one, copy])
            scripts.append(copy.read_text())
        assert scripts == [script.read_text()] * 2
    finally:
        lab.run(["scancel", *jobs])


def test_the_job_gets_only_the_environment_of_the_call(
    lab: Lab, slurm: Slurm, commands: SlurmCommands, environ: dict[str, str], tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    script = '#!/bin/sh\nenv -0 > "$OUT.tmp" && mv "$OUT.tmp" "$OUT"\n'
    environments = []
    for name, adapter in (("ours", slurm), ("theirs", commands)):
        out = tmp_path / name
        given = {**environ, "OUT": str(out), "TEXT": "a b\n$(id)=\x7f"}
        os.environ["SECRET_OF_THE_PROCESS"] = "1"
        try:
            result = submit(adapter, given, *PLACES, "--output=/dev/null", "--partition=gpu", script=script)
        finally:
            del os.environ["SECRET_OF_THE_PROCESS"]
        assert result.job_id is not None, result.stderr
        lab.wait_job(str(result.job_id))
        found = dict(pair.split("=", 1) for pair in out.read_text().split("\0") if "=" in pair)
        ignored = {"OUT", "SLURM_JOBID", "SLURM_JOB_ID", "SLURM_TASK_PID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "_"}
        ignored |= {"SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"}
        ignored |= {"SLURM_JOB_SLUID", "HOSTNAME"}  # since 26.05; from the node
        environments.append({key: value for key, value in found.items() if key not in ignored})
    assert environments[0] == environments[1]
    assert (environments[0]["TEXT"], "SECRET_OF_THE_PROCESS" in environments[0]) == ("a b\n$(id)=\x7f", False)


def test_a_script_with_dos_lines_is_refused(slurm: Slurm, environ: dict[str, str]) -> None:
    result = submit(slurm, environ, *PLACES, script="#!/bin/sh\r\ntrue\r\n")
    assert (result.job_id, result.exit_code) == (None, 1)
    assert "DOS line breaks" in result.stderr


# --- actions ------------------------------------------------------------------------------------------------------


def apply_action(slurm: Slurm, target: str, verb: Verb, key: str = "", value: str = "") -> None:
    slurm.apply(SlurmAction(verb=verb, target=target, key=key, value=value))


def get_refusal(slurm: Slurm, target: str, verb: Verb, key: str = "", value: str = "") -> str:
    """The error message of Slurm, or "" if the action succeeded. Without the job id, which only scontrol prints."""
    try:
        apply_action(slurm, target, verb, key, value)
    except SlurmUnreachable:
        raise
    except SlurmError as error:
        return re.sub(r"\s+for job \d+$", "", str(error))
    return ""


UPDATES = {
    "Comment": ["two\nlines; $(id) 'x' \"y\" é State=IDLE", ""],
    "ExcNodeList": ["n1,n2", ""],
    "ReqNodeList": ["n[4-5]", ""],
    "MinMemoryNode": ["4000"],
    "TimeLimit": ["17", "1-02:03:00", "90:00"],
    "MinCPUsNode": ["3"],
    "NumNodes": ["2"],
    "StartTime": ["now+3600"],
    "Switches": ["1@10:00", "0"],
}


def test_an_update_changes_only_the_fields_that_scontrol_changes(
    lab: Lab, slurm: Slurm, commands: SlurmCommands
) -> None:
    """Of two equal jobs the adapter changes one and the commands the other: scontrol must show equal fields."""
    options = ("--hold", "--mem=100", "--mail-type=END", "--job-name=twin", "--nice=5", "--exclusive", "--time=9")
    twins = [lab.submit(*options, user=ALICE, script=SLEEP) for _ in range(2)]
    wrong = []
    try:
        before = read_job_fields(lab, twins[0])
        assert before == read_job_fields(lab, twins[1])
        for key, value in ((key, value) for key, values in UPDATES.items() for value in values):
            refusals = [
                get_refusal(adapter, twin, Verb.UPDATE_JOB, key, value)
                for twin, adapter in zip(twins, (slurm, commands), strict=True)
            ]
            one, other = (read_job_fields(lab, twin) for twin in twins)
            if refusals != ["", ""] or one != other:
                wrong.append((key, value, refusals, sorted(set(one.items()) ^ set(other.items()))))
    finally:
        lab.run(["scancel", *twins])
    assert wrong == []


def test_the_list_of_excluded_nodes_is_set_and_cleared(slurm: Slurm, held: str) -> None:
    apply_action(slurm, held, Verb.UPDATE_JOB, "ExcNodeList", "n1,n2")
    assert get_job(slurm, held).exc_nodes == "n[1-2]"
    apply_action(slurm, held, Verb.UPDATE_JOB, "ExcNodeList", "")
    assert get_job(slurm, held).exc_nodes == ""


def test_a_comment_with_forged_fields_stays_one_line_of_text(slurm: Slurm, held: str) -> None:
    apply_action(slurm, held, Verb.UPDATE_JOB, "Comment", "two\nlines; $(id) JobState=RUNNING\x1f")
    assert get_job(slurm, held).comment == "two lines; $(id) JobState=RUNNING "
    assert get_job(slurm, held).state == "PENDING"


def test_several_updates_are_applied_in_one_call(slurm: Slurm, held: str) -> None:
    updates = [("MinMemoryNode", "300"), ("TimeLimit", "11"), ("ExcNodeList", "n3")]
    first, *also = (SlurmAction(verb=Verb.UPDATE_JOB, target=held, key=k, value=v) for k, v in updates)
    slurm.apply(first, also=also)
    record = get_job(slurm, held)
    assert (record.mem_mib_per_node, record.time_limit_s, record.exc_nodes) == (300, 660, "n3")


def test_a_job_is_released_held_and_cancelled(lab: Lab, slurm: Slurm, held: str) -> None:
    assert get_job(slurm, held).priority == 0
    apply_action(slurm, held, Verb.RELEASE)
    lab.wait_job(held, ("RUNNING",))
    other = lab.submit("--begin=now+1hour", "--mem=100", user=ALICE, script=SLEEP)
    assert get_job(slurm, other).priority > 0
    apply_action(slurm, other, Verb.HOLD)
    assert (get_job(slurm, other).priority, get_job(slurm, other).reason) == (0, "JobHeldAdmin")
    for one in (held, other):
        apply_action(slurm, one, Verb.CANCEL)
        assert wait_for_end(slurm, one).state == "CANCELLED"


@pytest.mark.parametrize("verb", [Verb.REQUEUE, Verb.REQUEUEHOLD])
def test_a_running_job_is_requeued(slurm: Slurm, running: str, verb: Verb) -> None:
    apply_action(slurm, running, verb)
    again = wait_for(lambda: get_job(slurm, running), lambda record: record.pending, timeout=60)
    assert (again.restarts, again.requeue, again.priority == 0) == (1, True, verb is Verb.REQUEUEHOLD)


@pytest.mark.parametrize("limit", ["--time=7", "--time=UNLIMITED"])
def test_a_requeued_run_is_told_from_an_ending_one_while_it_is_completing(lab: Lab, slurm: Slurm, limit: str) -> None:
    """Slurm shows the next restart, the present time as StartTime, and the limit after that as EndTime."""
    with lab.with_waiting_epilog():
        for word, requeueing in (("requeue", True), ("cancel", False)):
            job = lab.submit(limit, "--mem=100", "--requeue", user=ALICE, script=SLEEP)
            lab.wait_job(job, ("RUNNING",))
            apply_action(slurm, job, Verb(word))
            seen = wait_for(lambda job=job: get_job(slurm, job), lambda one: one.state == "COMPLETING", timeout=60)  # type: ignore[misc]
            assert (seen.state, seen.restarts, seen.requeueing) == ("COMPLETING", int(requeueing), requeueing)
            lab.run(["scancel", job])


def test_each_partition_says_whether_it_takes_a_job(slurm: Slurm, environ: dict[str, str]) -> None:
    call = SbatchCall(options=("--mem=100", "--wrap=true"), script_path=None, environ=environ)
    answers = slurm.test_partitions(call, ("gpu", "absent"))
    assert answers["gpu"].refusal == "" and answers["gpu"].start
    assert "artition" in answers["absent"].refusal


def test_hold_applies_to_a_single_task_or_to_the_whole_array(lab: Lab, slurm: Slurm) -> None:
    array = lab.submit("--begin=now+1hour", "--mem=100", "--array=0-2", user=ALICE, script=SLEEP)
    try:
        apply_action(slurm, f"{array}_1", Verb.HOLD)
        assert [get_job(slurm, f"{array}_{i}").priority == 0 for i in range(3)] == [False, True, False]
        apply_action(slurm, array, Verb.HOLD)
        assert [get_job(slurm, f"{array}_{i}").priority == 0 for i in range(3)] == [True, True, True]
    finally:
        lab.run(["scancel", array])


def test_a_refused_action_has_the_error_message_of_slurm(slurm: Slurm, commands: SlurmCommands, held: str) -> None:
    refusals = {
        (verb, key): [get_refusal(adapter, held, verb, key, value) for adapter in (slurm, commands)]
        for verb, key, value in (
            (Verb.REQUEUE, "", ""),  # the job is pending
            (Verb.UPDATE_JOB, "MinMemoryNode", "2G"),
            (Verb.UPDATE_JOB, "Partition", "nopart"),
            (Verb.UPDATE_JOB, "ReqNodeList", "nowhere"),
            (Verb.UPDATE_JOB, "NoSuchKey", "1"),
        )
    }
    assert {key: words for key, words in refusals.items() if not words[0] or words[0] != words[1]} == {}


def test_an_action_on_an_unknown_job_is_refused(slurm: Slurm) -> None:
    for verb in (Verb.REQUEUE, Verb.HOLD, Verb.RELEASE, Verb.UPDATE_JOB):
        with pytest.raises(SlurmError, match="Invalid job id specified"):
            apply_action(slurm, "999999", verb, *(("Comment", "x") if verb is Verb.UPDATE_JOB else ()))


def test_an_invalid_job_id_is_refused_without_asking_slurm(slurm: Slurm) -> None:
    for target in ("7; rm", "", "-1", "7 8"):
        for verb in (Verb.REQUEUE, Verb.HOLD, Verb.UPDATE_JOB):
            with pytest.raises(SlurmError, match="is not a job id"):
                apply_action(slurm, target, verb, "Comment" if verb is Verb.UPDATE_JOB else "", "x")


def test_own_drains_are_set_and_lifted_and_drains_of_others_are_kept(
    lab: Lab, slurm: Slurm, commands: SlurmCommands
) -> None:
    def n7() -> Node:
        # a node may stop or start to respond between the two snapshots
        pairs = wait_for(
            lambda: [adapter.snapshot().nodes[7] for adapter in (slurm, commands)], lambda two: two[0] == two[1], 60
        )
        assert pairs[0] == pairs[1]
        return pairs[0]

    apply_action(slurm, "n7", Verb.DRAIN, value="slurmwrap: Xid 79; $(id) é")
    assert ("DRAIN" in n7().flags, n7().reason.partition(" [")[0]) == (True, "slurmwrap: Xid 79; $(id) é")
    apply_action(slurm, "n7", Verb.RESUME)
    assert "DRAIN" not in n7().flags
    lab.run(["scontrol", "update", "NodeName=n7", "State=DRAIN", "Reason=bad cable"])
    try:
        for verb in (Verb.DRAIN, Verb.RESUME):
            with pytest.raises(SlurmError, match="bad cable"):
                apply_action(slurm, "n7", verb, value="slurmwrap: Xid 48")
        assert n7().reason.partition(" [")[0] == "bad cable"
    finally:
        lab.run(["scontrol", "update", "NodeName=n7", "State=RESUME"])
    with pytest.raises(SlurmError, match="nowhere"):
        apply_action(slurm, "nowhere", Verb.DRAIN, value="slurmwrap: x")


def test_an_action_in_the_owners_name_has_the_owners_permissions(lab: Lab, slurm: Slurm, held: str) -> None:
    uid = get_job(slurm, held).uid
    slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=held, key="Comment", value="mine"), owner=uid)
    assert get_job(slurm, held).comment == "mine"
    theirs = lab.submit("--hold", "--mem=100", user=BOB, script=SLEEP)
    try:
        with pytest.raises(SlurmError, match="Invalid user id"):
            slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=theirs, key="Comment", value="x"), owner=uid)
    finally:
        lab.run(["scancel", theirs])


@pytest.mark.skipif(bool(REASON_AGAINST_PYSLURM), reason=REASON_AGAINST_PYSLURM)
@pytest.mark.parametrize("adapter", ["commands", "pyslurm"])
def test_the_reconciler_diagnoses_and_acts_with_each_adapter(lab: Lab, adapter: str) -> None:
    """In user mode, with a job of alice and as alice."""
    gsub = [sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=off", "--mem=100", "--gres=gpu:1", "--retry"]
    script = "#!/bin/sh\necho 'torch.distributed.DistBackendError: NCCL error: remote process exited' >&2\nexit 1\n"
    job_id = lab.run(gsub, ALICE, stdin=script).stdout.split()[-1]
    lab.wait_job(job_id, ("FAILED",))
    environ = {"SLURMWRAP_SLURM_ADAPTER": adapter, "SLURMWRAP_RULES_RETRY": "act"}
    words = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once", "--user"]
    done = lab.run(words, ALICE, env=environ)
    lab.run(["scancel", job_id])
    assert done.returncode == 0, done.stderr
    assert f"job {job_id} of {ALICE}: nccl_error, retry" in done.stderr
    assert f"done: requeuehold {job_id}" in done.stderr
    assert "PySlurm" not in done.stderr


# --- without a controller -----------------------------------------------------------------------------------------


def test_a_controller_that_does_not_answer_is_unreachable(make: Make, environ: dict[str, str], tmp_path: Path) -> None:
    text = Path(environ["SLURM_CONF"]).read_text()
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "\n".join("SlurmctldPort=1" if line.startswith("SlurmctldPort") else line for line in text.splitlines())
    )
    slurm = make({**environ, "SLURM_CONF": str(conf)}, 1.0)
    with pytest.raises(SlurmUnreachable):
        slurm.snapshot()
    with pytest.raises(SlurmUnreachable):
        apply_action(slurm, "7", Verb.REQUEUE)


def test_the_adapter_works_again_when_the_controller_answers_again(
    make: Make, lab: Lab, environ: dict[str, str], tmp_path: Path
) -> None:
    slurm = make(environ, 10.0)
    before = slurm.snapshot()
    pid = int(Path(lab.dir, "slurmctld", "slurmctld.pid").read_text())
    os.kill(pid, 19)
    try:
        impatient = make(environ, 1.0)
        with pytest.raises(SlurmUnreachable):
            impatient.snapshot()
    finally:
        os.kill(pid, 18)
    after = slurm.snapshot()
    assert [n.name for n in after.nodes] == [n.name for n in before.nodes]
    assert [n.name for n in impatient.snapshot().nodes] == [n.name for n in before.nodes]
