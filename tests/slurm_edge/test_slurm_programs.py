"""How the adapter handles output, refusals and timeouts of Slurm's programs, which are small scripts on PATH here."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.protocols import PartitionTest, SbatchCall
from slurmwrap.slurm.commands import SlurmCommands, make_action_argv, parse_partition_test

LONG_TIMEOUT_S = allow(30)  # for a program that answers
Slurm = Callable[..., SlurmCommands]


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    """Make programs of the given names from shell text, and an adapter that finds them."""

    def make(timeout_s: float = LONG_TIMEOUT_S, **programs: str) -> SlurmCommands:
        for name, body in programs.items():
            (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n{body}\n')
            (tmp_path / name).chmod(0o755)
        (tmp_path / "slurm.conf").touch()
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "slurm.conf"), "SQUEUE_USERS": "x"}
        return SlurmCommands(environ, timeout_s=timeout_s)

    return make


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def submission(tmp_path: Path, **changes: object) -> SbatchCall:
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MINE": "1"}
    return SbatchCall(options=("--mem=1G",), script_path="a b.sh", args=("x y",), environ=environ, **changes)  # type: ignore[arg-type]


def test_a_submission_passes_options_script_and_arguments_and_returns_the_job_id(slurm: Slurm, tmp_path: Path) -> None:
    adapter = slurm(
        sbatch='echo "loaded 12 modules"; echo "Submitted batch job 71 on cluster x"; echo "$MINE$LC_ALL" >&2'
    )
    result = adapter.sbatch(submission(tmp_path))
    assert (result.exit_code, result.job_id, result.stderr, result.timed_out) == (0, 71, "1\n", False)
    assert calls(tmp_path) == ["sbatch --mem=1G a b.sh x y"]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (
            "sbatch: Job 9 to start at 1795795644 using 1 processors on nodes n1 in partition p",
            PartitionTest(start=1795795644),
        ),
        (
            "sbatch: Job 9 to start at 17901900000 using 1 processors on nodes n1 in partition p",
            PartitionTest(),
        ),  # held
        ("allocation failure: Access/permission denied", PartitionTest(refusal="Access/permission denied")),
        (
            "sbatch: error: invalid partition specified: p\nallocation failure: Invalid partition name specified",
            PartitionTest(refusal="Invalid partition name specified"),
        ),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", None),
        ("", None),
    ],
)
def test_the_answer_of_a_test_in_a_partition(said: str, answer: PartitionTest | None) -> None:
    assert parse_partition_test(said) == answer


def test_jobs_of_another_cluster_are_asked_for_by_its_name(slurm: Slurm, tmp_path: Path) -> None:
    slurm(squeue=f'echo "$SLURM_CLUSTERS" >> {tmp_path}/asked; echo "CLUSTER: west"')
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_CLUSTERS": "all"}
    assert SlurmCommands(environ, cluster="west").job("81") is None
    assert SlurmCommands(environ).cluster == ""
    assert set((tmp_path / "asked").read_text().split()) == {"west"}


@pytest.mark.parametrize(("said", "job_id"), [("71", 71), ("71;lab", 71), ("", None)])
def test_the_job_id_is_read_from_parsable_and_quiet_output(
    slurm: Slurm, tmp_path: Path, said: str, job_id: int | None
) -> None:
    assert slurm(sbatch=f"echo '{said}'").sbatch(submission(tmp_path)).job_id == job_id


def test_a_refusal_has_sbatchs_message_and_exit_code(slurm: Slurm, tmp_path: Path) -> None:
    words = "sbatch: error: Batch job submission failed: Invalid partition name specified"
    result = slurm(sbatch=f"echo '{words}' >&2; exit 1").sbatch(submission(tmp_path))
    assert (result.exit_code, result.stderr, result.job_id, result.timed_out) == (1, words + "\n", None, False)


def test_a_lost_answer_is_unknown_and_nothing_is_submitted_again(slurm: Slurm, tmp_path: Path) -> None:
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    result = slurm(sbatch=f"echo '{words}' >&2; exit 1").sbatch(submission(tmp_path))
    assert (result.job_id, result.timed_out) == (None, True)
    assert len(calls(tmp_path)) == 1


def test_an_sbatch_that_hangs_is_unknown_after_its_timeout(slurm: Slurm, tmp_path: Path) -> None:
    result = slurm(sbatch="sleep 600").sbatch(submission(tmp_path, timeout_s=0.3))
    assert (result.job_id, result.timed_out, result.exit_code) == (None, True, 1)


def test_sbatch_may_wait_for_its_job_without_timeout(slurm: Slurm, tmp_path: Path) -> None:
    adapter = slurm(sbatch="echo Submitted batch job 5; sleep 0.2; exit 7")
    result = adapter.sbatch(submission(tmp_path, timeout_s=math.inf))
    assert (result.job_id, result.exit_code, result.timed_out) == (5, 7, False)


def test_a_controller_that_is_down_is_reported_in_slurms_words(slurm: Slurm) -> None:
    adapter = slurm(
        scontrol="echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    )
    with pytest.raises(SlurmUnreachable, match=r"Unable to contact slurm controller \(connect failure\)"):
        adapter.snapshot()


def test_a_controller_that_does_not_answer_is_given_up_after_the_timeout(slurm: Slurm) -> None:
    with pytest.raises(SlurmUnreachable, match=r"scontrol: no answer within 0.3 s"):
        slurm(scontrol="sleep 600", timeout_s=0.3).snapshot()


def test_missing_programs_are_reported_with_a_hint(slurm: Slurm) -> None:
    adapter = SlurmCommands({"PATH": "/nonexistent", "SLURM_CONF": "/dev/null"})
    with pytest.raises(SlurmUnreachable, match="scontrol: No such file") as caught:
        adapter.cluster_name()
    assert "PATH" in caught.value.hint


def test_a_missing_slurm_conf_is_reported_without_starting_a_program(slurm: Slurm, tmp_path: Path) -> None:
    slurm(scontrol="exit 0", sbatch="exit 0")
    adapter = SlurmCommands({"PATH": str(tmp_path), "SLURM_CONF": "/nonexistent/slurm.conf"})
    for act in (adapter.snapshot, lambda: adapter.sbatch(submission(tmp_path))):
        with pytest.raises(SlurmUnreachable, match=r"SLURM_CONF=/nonexistent/slurm\.conf"):
            act()
    assert not (tmp_path / "calls").exists()


def test_retries_of_a_command_for_a_missing_slurm_conf_are_not_awaited(slurm: Slurm) -> None:
    said = (
        "scontrol: error: s_p_parse_file: cannot stat file /x/slurm.conf: No such file or directory, retrying in 1sec"
    )
    with pytest.raises(SlurmUnreachable, match=r"no slurm\.conf at /x/slurm\.conf"):
        slurm(scontrol=f"echo '{said}' >&2; sleep 600", timeout_s=allow(0.3)).cluster_name()


def test_rows_that_were_printed_before_the_deadline_are_no_part_of_the_error(slurm: Slurm) -> None:
    with pytest.raises(SlurmUnreachable, match=r"^squeue: no answer within [0-9.]+ s$"):
        slurm(squeue="echo '7 of ada'; exec sleep 600", timeout_s=allow(0.3)).jobs()


def test_an_unknown_job_is_none_and_other_errors_are_raised(slurm: Slurm) -> None:
    assert slurm(squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1").job("7") is None
    with pytest.raises(SlurmError, match="Invalid user: x") as caught:
        slurm(squeue="echo 'squeue: error: Invalid user: x' >&2; exit 3").jobs("x")
    assert caught.value.exit_code == 3


# An squeue of 22.05 for a uid without a name: it shows "nobody", and refuses to select the uid. Jobs of two uids.
NAMELESS = r"""case "$*" in *--user*) echo "squeue: error: Invalid user: 1034" >&2; exit 1;; esac
python3 -c '
import os, re
format = os.environ.get("SQUEUE_FORMAT2", "")
separator = re.match("JobID:(.*?),", format, re.S)
for uid in ("1034", "1035") if separator else ():
    known = {"JobID": uid[3:], "ArrayJobID": uid[3:], "ArrayTaskID": "N/A", "State": "RUNNING", "UserName": "nobody"}
    names = re.findall("([A-Za-z_-]+):" + re.escape(separator[1]), format)
    print("".join({**known, "UserID": uid}.get(name, "") + separator[1] for name in names))
'"""


def test_jobs_of_a_uid_without_a_name_are_selected_from_all(slurm: Slurm) -> None:
    adapter = slurm(squeue=NAMELESS)
    assert [(job.job_id, job.user, job.uid) for job in adapter.jobs("1034")] == [(4, "1034", 1034)]
    assert [one.record.job_id for one in adapter.jobs_of("1034")] == [4]
    assert [job.user for job in adapter.jobs()] == ["1034", "1035"]


def test_the_field_separator_is_new_for_each_call_and_not_an_argument(slurm: Slurm, tmp_path: Path) -> None:
    adapter = slurm(squeue=f'echo "$SQUEUE_FORMAT2$SQUEUE_USERS" | head -c 31 >> {tmp_path}/formats')
    for _ in range(2):
        assert adapter.jobs() == ()
    formats = (tmp_path / "formats").read_bytes().split(b"JobID:")[1:]
    assert len(formats) == len(set(formats)) == 2
    assert set(calls(tmp_path)) == {"squeue --noheader --all --states=all"}


def test_a_snapshot_takes_two_calls(slurm: Slurm, tmp_path: Path) -> None:
    answer = (
        'case "$*" in *node*) echo "NodeName=n0 State=IDLE";; '
        '*) cat; echo "scontrol: SwitchName=ib0 Level=0 Nodes=n0"; echo "PartitionName=p Default=YES x=";; esac'
    )
    snapshot = slurm(scontrol=answer).snapshot()
    leaves = [(leaf.name, leaf.nodes) for leaf in snapshot.topology.leaves]
    assert ([n.name for n in snapshot.nodes], leaves, snapshot.default_partition) == (["n0"], [("ib0", ("n0",))], "p")
    assert sorted(calls(tmp_path)) == ["scontrol -o", "scontrol show node -d -o"]


def act(verb: Verb, target: str = "77_2", key: str = "", value: str = "") -> SlurmAction:
    return SlurmAction(verb=verb, target=target, key=key, value=value)


@pytest.mark.parametrize(
    ("action", "argv"),
    [
        (act(Verb.REQUEUE), "scontrol requeue 77_2"),
        (act(Verb.REQUEUEHOLD), "scontrol requeuehold 77_2"),
        (act(Verb.HOLD, "7"), "scontrol hold 7"),
        (act(Verb.RELEASE, "7"), "scontrol release 7"),
        (act(Verb.CANCEL, "7+1"), "scancel 7+1"),
        (act(Verb.SIGNAL, "77_2", "USR1"), "scancel --signal=USR1 77_2"),
        (act(Verb.SIGNAL, "7", "10", "batch"), "scancel --signal=10 --batch 7"),
        (act(Verb.UPDATE_JOB, "7", "ExcNodeList", ""), "scontrol update JobId=7 ExcNodeList="),
        (act(Verb.UPDATE_JOB, "7", "Switches", "2@5:00"), "scontrol update JobId=7 Switches=2@5:00"),
        # Switches=0 would not release a job that waits for a switch (24.11.5, 26.05.5)
        (act(Verb.UPDATE_JOB, "7", "Switches", "0"), "scontrol update JobId=7 Switches=1@0"),
        (
            act(Verb.DRAIN, "n1", value="slurmwrap: Xid 79"),
            "scontrol update NodeName=n1 State=DRAIN Reason=slurmwrap:~Xid~79",
        ),
        (act(Verb.RESUME, "n1"), "scontrol update NodeName=n1 State=RESUME"),
    ],
)
def test_an_action_is_one_command(action: SlurmAction, argv: str) -> None:
    assert make_action_argv(action) == [word.replace("~", " ") for word in argv.split()]


def test_user_text_in_a_value_is_one_argument_without_control_characters() -> None:
    action = act(Verb.UPDATE_JOB, "7", "Comment", "a b\nJobId=8\x1b[2J;$(x)")
    assert make_action_argv(action) == ["scontrol", "update", "JobId=7", "Comment=a b JobId=8 [2J;$(x)"]


@pytest.mark.parametrize(
    "action",
    [
        act(Verb.CANCEL, ""),
        act(Verb.CANCEL, "7,8"),
        act(Verb.CANCEL, "--user=bob"),
        act(Verb.REQUEUE, "7 8"),
        act(Verb.SIGNAL, "7", ""),
        act(Verb.SIGNAL, "7", "USR1 --user=bob"),
        act(Verb.UPDATE_JOB, "7", "Comment=x JobId", "8"),
        act(Verb.UPDATE_JOB, "7", ""),
        act(Verb.DRAIN, "ALL", value="slurmwrap: x"),
        act(Verb.DRAIN, "n[1-9]", value="slurmwrap: x"),
        act(Verb.DRAIN, "n1,n2", value="slurmwrap: x"),
        act(Verb.DRAIN, "n1", value="Xid 79"),
        act(Verb.RESUME, "all"),
    ],
)
def test_an_ambiguous_action_is_refused(action: SlurmAction) -> None:
    with pytest.raises(SlurmError):
        make_action_argv(action)


OUT = "NodeName=n1 State=IDLE+DRAIN Reason=bad cable [root@1]"
OURS = "NodeName=n1 State=IDLE+DRAIN Reason=slurmwrap: Xid 79 [root@1]"
DOWN = "NodeName=n1 State=DOWN Reason=Not responding [slurm@1]"
STALE = "NodeName=n1 State=IDLE Reason=bad cable [root@1]"
GOOD = "NodeName=n1 State=IDLE Partitions=gpu"


@pytest.mark.parametrize(
    ("node", "verb", "allowed"),
    [
        (GOOD, Verb.DRAIN, True),
        (OURS, Verb.DRAIN, True),
        (STALE, Verb.DRAIN, True),
        (OUT, Verb.DRAIN, False),
        (DOWN, Verb.DRAIN, False),
        (OURS, Verb.RESUME, True),
        (OUT, Verb.RESUME, False),
        (GOOD, Verb.RESUME, False),
        ("", Verb.DRAIN, False),
    ],
)
def test_only_drains_by_slurmwrap_are_changed(
    slurm: Slurm, tmp_path: Path, node: str, verb: Verb, allowed: bool
) -> None:
    adapter = slurm(scontrol=f"case $1 in show) echo '{node}';; esac")
    action = act(verb, "n1", value="slurmwrap: Xid 48")
    if allowed:
        adapter.apply(action)
    else:
        with pytest.raises(SlurmError, match=r"n1"):
            adapter.apply(action)
    assert any(call.startswith("scontrol update") for call in calls(tmp_path)) is allowed


def test_updates_of_one_job_are_combined_into_one_command(slurm: Slurm, tmp_path: Path) -> None:
    adapter = slurm(scontrol="true")
    cpus, least = (act(Verb.UPDATE_JOB, "81", key, "4") for key in ("CPUsPerTask", "MinCPUsNode"))
    adapter.apply(cpus, also=(least,))
    for other in (replace(least, target="82"), act(Verb.CANCEL, "81")):
        with pytest.raises(SlurmError, match="only updates of one job"):
            adapter.apply(cpus, also=(other,))
    assert calls(tmp_path) == ["scontrol update JobId=81 CPUsPerTask=4 MinCPUsNode=4"]


def test_an_error_text_with_invalid_utf_8_can_be_stored(slurm: Slurm) -> None:
    with pytest.raises(SlurmError) as caught:
        slurm(scontrol=r"printf 'bad \377 name' >&2; exit 1").cluster_name()
    str(caught.value).encode("utf-8")
    assert os.fsencode(str(caught.value)).startswith(b"bad ")


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A directory that every user can enter and write; pytest's own directories are private."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def make_public_program(directory: Path, body: str, timeout_s: float = LONG_TIMEOUT_S) -> SlurmCommands:
    (directory / "scontrol").write_text(f"#!/bin/sh\n{body}\n")
    (directory / "scontrol").chmod(0o755)
    (directory / "slurm.conf").touch()
    environ = {"PATH": f"{directory}:/usr/bin:/bin", "SLURM_CONF": f"{directory}/slurm.conf", "TOKEN": "secret"}
    return SlurmCommands(environ, timeout_s=timeout_s)


CLEARED = SlurmAction(verb=Verb.UPDATE_JOB, target="81_[2-5]", key="ExcNodeList", value="")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to another user")
def test_a_change_for_the_owner_has_the_owners_uid_no_groups_and_no_secret(public_dir: Path) -> None:
    adapter = make_public_program(public_dir, f'(id -u; id -G; echo "$@"; env) > {public_dir}/seen')
    adapter.apply(CLEARED, owner=12345)
    uid, groups, words, *environ = (public_dir / "seen").read_text().splitlines()
    assert (uid, groups, words) == ("12345", "65534", "update JobId=81_[2-5] ExcNodeList=")
    assert f"SLURM_CONF={public_dir}/slurm.conf" in environ and not any("secret" in line for line in environ)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to another user")
def test_an_owner_who_stops_the_command_causes_a_timeout_and_no_refusal(public_dir: Path) -> None:
    with pytest.raises(SlurmUnreachable, match="no answer"):
        make_public_program(public_dir, "kill -STOP $$", timeout_s=0.5).apply(CLEARED, owner=12345)
    with pytest.raises(SlurmError, match="Access/permission denied"):
        make_public_program(public_dir, "echo 'Access/permission denied' >&2; exit 1").apply(CLEARED, owner=12345)


def test_without_an_owner_a_change_is_made_by_the_current_user(slurm: Slurm, tmp_path: Path) -> None:
    slurm(scontrol="").apply(CLEARED)
    assert calls(tmp_path) == ["scontrol update JobId=81_[2-5] ExcNodeList="]


@pytest.mark.parametrize(("enforced", "refused"), [("associations,limits,qos", True), ("none", False)])
def test_without_root_no_job_is_resized_where_limits_are_enforced(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, enforced: str, refused: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 64030)
    adapter = slurm(scontrol=f'[ "$1" = show ] && echo "AccountingStorageEnforce = {enforced}"; exit 0')
    adapter.apply(CLEARED, owner=12345)
    assert adapter.may_resize() is not refused
    size = replace(CLEARED, key="MinMemoryNode", value="1")
    if refused:
        with pytest.raises(SlurmError, match="limits would no longer apply"):
            adapter.apply(size, owner=12345)
    else:
        adapter.apply(size, owner=12345)


def test_root_may_resize_even_if_limits_are_enforced(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert slurm(scontrol='echo "AccountingStorageEnforce = limits"').may_resize()


@pytest.mark.parametrize(("uid", "allowed"), [(0, True), (64030, True), (1001, False)])
def test_only_root_and_slurm_user_may_raise_the_limits_of_running_jobs(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, uid: int, allowed: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert slurm(scontrol='echo "SlurmUser = slurm(64030)"').may_extend() is allowed


@pytest.mark.parametrize("target", ["81_[2-5", "81_[2-5]; rm", "81_[]", "81_[2-5] Priority=9", "81_[a]", "81_[2-5]_3"])
def test_an_address_that_is_more_than_array_tasks_is_refused(target: str) -> None:
    with pytest.raises(SlurmError, match="is not a job id"):
        make_action_argv(replace(CLEARED, target=target))
