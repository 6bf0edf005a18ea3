"""Whole hooks as Slurm starts them: as root, with only SLURM_* in the environment, a real munged and another user."""

from __future__ import annotations

import ast
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hook_site import OLD_PYTHON, SLURMCTLD_BLOCKS, USER, Site, add_gpu, append, give, make_site, only

import slurmwrap.node_hooks
from slurmwrap import __version__
from slurmwrap.host.hook_archive import HookFiles
from slurmwrap.install.hook_versions import read_checksum
from slurmwrap.model.observation import Context, Observation

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=python, GPU has fallen off the bus."


@pytest.fixture
def old_site(open_dir: Path, munge_socket: str) -> Iterator[Site]:
    if os.geteuid() != 0 or not os.access(OLD_PYTHON, os.X_OK):
        pytest.skip("needs root and Python 3.6")
    made = make_site(open_dir, munge_socket, str(OLD_PYTHON))
    yield made
    made.end()


def run_a_job(site: Site) -> tuple[Observation, Observation]:
    add_gpu(site, 0, "0000:05:00.0")
    add_gpu(site, 1, "0000:07:00.0")
    add_gpu(site, 6, "0000:06:00.0")
    append(site.kernel_log, XID.replace("79", "31"))  # of an earlier job
    site.prolog()
    append(site.kernel_log, XID, XID.replace("05:00", "06:00"))
    give(site.work / "41.out", "step 1\nTraceback\n")
    prolog = only(site.arrived())
    site.epilog()
    return prolog, only(site.arrived())


def test_a_job_leaves_one_observation_from_prolog_and_epilog(site: Site) -> None:
    before = time.time()
    prolog, epilog = run_a_job(site)
    mark = {"source": f"file:{site.kernel_log}", "inode": site.kernel_log.stat().st_ino}
    same = {"restarts": 0, "uid": USER, "nodes": "n[0-1]", "gpus": "0,1"}
    wanted = Observation(nonce="", cluster="lab", job_id=41, context=Context.PROLOG, at=0.0, node="n0", uid=0)
    assert replace(prolog, nonce="", at=0.0) == replace(
        wanted, facts={**same, "kernel_mark": {**mark, "offset": len(XID) + 1}}
    )
    started_at = epilog.facts["started_at"]
    assert before <= started_at <= prolog.at <= epilog.at <= time.time()
    assert replace(epilog, nonce="", at=0.0) == replace(
        wanted,
        context=Context.EPILOG,
        facts={
            **same,
            "exit": "3:0",
            "wait_status": 768,
            "derived": 0,
            "started_at": started_at,
            "kernel": [{"text": XID, "at": None}],
            "kernel_source": "file",
            "hooks": {"release": __version__, "checksum": read_checksum(site.files.zipapp.parent)},
            "logs": [{"name": f"{site.work}/41.out", "text": "step 1\nTraceback\n", "truncated": False}],
        },
    )
    assert sorted(path.name for path in site.state.iterdir()) == ["driver.lock", "gpu.fallen"]


def test_the_hooks_run_under_python_3_6(old_site: Site) -> None:
    _, epilog = run_a_job(old_site)
    assert [line["text"] for line in epilog.facts["kernel"]] == [XID]
    assert [log["text"] for log in epilog.facts["logs"]] == ["step 1\nTraceback\n"]


def test_node_hooks_use_only_the_syntax_of_python_3_6() -> None:
    for path in Path(slurmwrap.node_hooks.__file__).parent.glob("*.py"):
        ast.parse(path.read_bytes(), feature_version=(3, 6))
        assert "from __future__ import annotations" not in path.read_text()


def test_only_the_first_node_reads_logs(site: Site) -> None:
    give(site.work / "41.out", "text")
    assert site.logs(SLURM_NODELIST="n[0-1]")[0] != []
    site.epilog(SLURM_NODELIST="m3,n0")
    assert "logs" not in only(site.arrived()).facts


def test_epilog_slurmctld_records_a_job_name_of_arbitrary_bytes(site: Site) -> None:
    ugly = bytes(range(1, 256)).decode("latin-1").encode("latin-1")
    name = os.fsdecode(ugly + b"$(touch /tmp/slurmwrap-pwned)`id`'\"\\\n%s\\0end")
    site.epilog_slurmctld(
        SLURM_JOB_NAME=name, SLURM_JOB_ACCOUNT="(null)", SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="1"
    )
    found = only(site.recorded())
    assert replace(found, nonce="", at=0.0) == Observation(
        nonce="",
        cluster="lab",
        job_id=41,
        context=Context.EPILOG_SLURMCTLD,
        at=0.0,
        facts={
            "restarts": 0,
            "uid": USER,
            "user": "nobody",
            "name": os.fsencode(name).decode("utf-8", "replace"),
            "account": "",
            "partition": "gpu",
            "nodes": "n[0-1]",
            "work_dir": str(site.work),
            "array_job_id": 40,
            "array_task_id": 1,
            "exit": "3:0",
            "wait_status": 768,
            "derived": 0,
        },
    )
    assert len(found.nonce) == 32 and abs(found.at - time.time()) < 60
    assert (site.root / "controller" / "wake").read_text() == "41\n"
    assert not Path("/tmp/slurmwrap-pwned").exists()


@pytest.mark.parametrize("job_id", ["", "../../etc/cron.d/x", "41\n"])
def test_epilog_slurmctld_without_a_job_id_records_nothing(site: Site, job_id: str) -> None:
    site.epilog_slurmctld(SLURM_JOB_ID=job_id)
    assert list((site.root / "controller").iterdir()) == []


def test_hooks_end_promptly_although_slurmctld_blocks_sigchld_and_sigterm(site: Site) -> None:
    site.blocked = SLURMCTLD_BLOCKS
    for hook in (site.prolog, site.epilog, site.epilog_slurmctld):
        hook()
    assert (len(site.arrived()), len(site.recorded())) == (2, 1)


def test_a_hook_whose_recording_hangs_ends_at_the_deadline(site: Site) -> None:
    """The wake file is a FIFO without a reader: opening it hangs."""
    site.blocked = SLURMCTLD_BLOCKS
    os.mkfifo(site.root / "controller" / "wake")
    site.deadline(site.files.epilog_slurmctld, 1)
    site.epilog_slurmctld()
    only(site.recorded())


def no_python(site: Site) -> None:
    site.edit(site.files.epilog, "python=", "python=/nonexistent")


def hung_python(site: Site) -> None:
    """Replaces Python with a program that stops itself: only SIGKILL ends it, and it prints nothing."""
    fake = site.root / "python"
    fake.write_text("#!/bin/sh\nkill -STOP $$\n")
    fake.chmod(0o755)
    text = site.files.epilog.read_text().splitlines()
    text = [f"python={fake}" if line.startswith("python=") else line for line in text]
    site.files.epilog.write_text("\n".join(text).replace("deadline=10", "deadline=1") + "\n")


def no_zipapp(site: Site) -> None:
    site.files.zipapp.unlink()


def truncated_zipapp(site: Site) -> None:
    site.files.zipapp.write_bytes(site.files.zipapp.read_bytes()[:1000])


def truncated_settings(site: Site) -> None:
    site.files.zipapp.with_name("hooks.json").write_text("{")


def invalid_job_id(site: Site) -> None:
    site.environ["SLURM_JOB_ID"] = "x"


@pytest.mark.parametrize(
    "fault", [no_python, hung_python, no_zipapp, truncated_zipapp, truncated_settings, invalid_job_id]
)
def test_a_hook_that_cannot_run_exits_0_and_sends_nothing(site: Site, fault: Callable[[Site], None]) -> None:
    site.prolog()
    site.arrived()
    fault(site)
    site.blocked = SLURMCTLD_BLOCKS
    site.epilog()
    assert site.arrived() == []


@pytest.mark.parametrize("fault", [no_python, hung_python, no_zipapp])
def test_the_node_remembers_that_a_hook_could_not_run(site: Site, fault: Callable[[Site], None]) -> None:
    site.prolog()
    fault(site)
    site.epilog()
    assert (site.state / "failed").read_text().startswith("epilog of job 41: ")


def spool_missing(site: Site) -> None:
    (site.root / "spool").rmdir()


def spool_is_a_file(site: Site) -> None:
    (site.root / "spool").rmdir()
    (site.root / "spool").write_text("")


def munge_missing(site: Site) -> None:
    site.setting("munge", "/nonexistent/munge")


def munge_down(site: Site) -> None:
    site.setting("munge_socket", "/nonexistent/socket")


def munge_hangs(site: Site) -> None:
    fake = site.root / "munge"
    fake.write_text("#!/bin/sh\nkill -STOP $$\n")
    fake.chmod(0o755)
    site.setting("munge", str(fake))


@pytest.mark.parametrize("fault", [spool_missing, spool_is_a_file, munge_missing, munge_down, munge_hangs])
def test_an_observation_that_cannot_be_sent_is_sent_by_the_next_hook(site: Site, fault: Callable[[Site], None]) -> None:
    settings = site.files.zipapp.with_name("hooks.json").read_text()
    fault(site)
    site.epilog()
    assert len(list((site.state / "unsent").iterdir())) == 1
    site.files.zipapp.with_name("hooks.json").write_text(settings)
    if not (site.root / "spool").is_dir():
        (site.root / "spool").unlink(missing_ok=True)
        (site.root / "spool").mkdir()
    site.prolog(SLURM_JOB_ID="42")
    assert sorted((one.job_id, one.context.value) for one in site.arrived()) == [(41, "epilog"), (42, "prolog")]
    assert list((site.state / "unsent").iterdir()) == []


@pytest.mark.parametrize("options", ["mode=700,size=4k,nr_inodes=3", "mode=700,ro"])
def test_hooks_exit_0_with_a_full_or_read_only_spool_and_state_directory(site: Site, options: str) -> None:
    for directory in (site.root / "spool", site.root / "controller", site.root / "state"):
        directory.mkdir(exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True)
        if mounted.returncode:
            pytest.skip("mount is not allowed here")
    try:
        if "ro" not in options.split(","):
            for name in ("spool", "controller", "state"):
                (site.root / name / "filler").write_bytes(bytes(4096))
        for hook in (site.prolog, site.epilog, site.epilog_slurmctld):
            hook()
        assert site.recorded() == []
    finally:
        for name in ("spool", "controller", "state"):
            subprocess.run(["umount", site.root / name], check=True)


def test_a_state_directory_open_to_other_users_is_not_used(site: Site) -> None:
    site.state.mkdir(parents=True)
    site.state.chmod(0o777)
    site.prolog()
    assert "not a private directory" in only(site.arrived()).facts["lost"]
    assert list(site.state.iterdir()) == []


# The user's files


@pytest.fixture
def secret(site: Site) -> Path:
    """A file of root whose content must not be recorded anywhere."""
    path = site.root / "secret"
    path.write_text("SECRET\n")
    path.chmod(0o600)
    return path


def link_to_a_secret_file(site: Site, secret: Path) -> None:
    (site.work / "41.out").symlink_to(secret)


def link_to_shadow(site: Site, secret: Path) -> None:
    (site.work / "41.out").symlink_to("/etc/shadow")


def hard_link_to_a_secret_file(site: Site, secret: Path) -> None:
    (site.work / "41.out").hardlink_to(secret)


def world_readable_file_of_root(site: Site, secret: Path) -> None:
    secret.chmod(0o644)
    (site.work / "41.out").hardlink_to(secret)


def fifo(site: Site, secret: Path) -> None:
    os.mkfifo(site.work / "41.out")
    os.chown(site.work / "41.out", USER, USER)


def directory(site: Site, secret: Path) -> None:
    (site.work / "41.out").mkdir()
    os.chown(site.work / "41.out", USER, USER)


def device(site: Site, secret: Path) -> None:
    (site.work / "41.out").symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("trick", "error"),
    [
        (link_to_a_secret_file, "Too many levels of symbolic links"),
        (link_to_shadow, "Too many levels of symbolic links"),
        (hard_link_to_a_secret_file, "Permission denied"),
        (world_readable_file_of_root, "it belongs to uid 0"),
        (fifo, "not a regular file"),
        (directory, "not a regular file"),
        (device, "Too many levels of symbolic links"),
    ],
)
def test_only_a_regular_file_owned_by_the_user_is_read(
    site: Site, secret: Path, trick: Callable[[Site, Path], None], error: str
) -> None:
    trick(site, secret)
    assert site.logs() == ([], f"{site.work}/41.out: {error}")


def test_another_users_file_behind_a_linked_directory_is_not_read(site: Site) -> None:
    other = site.root / "other"
    other.mkdir()
    (other / "41.out").write_text("readable by all, but not the user's\n")
    (site.work / "way").symlink_to(other)
    assert site.logs(SLURM_JOB_STDOUT=f"{site.work}/way/%j.out")[1].startswith(f"{site.work}/way/41.out: it belongs to")


def test_only_the_end_of_a_sparse_10_gb_file_is_read(site: Site) -> None:
    path = give(site.work / "41.out")
    os.truncate(path, 10 << 30)
    append(path, "", "the end")
    (log,), error = site.logs()
    assert (log["text"], log["truncated"], error) == ("the end\n", True, "")


def test_binary_output_is_sent_as_truncated_text(site: Site) -> None:
    for name in ("41.out", "41.err"):
        (site.work / name).write_bytes(bytes([0, 255, 27]) * 30000 + b"last words")
        os.chown(site.work / name, USER, USER)
    logs, error = site.logs(SLURM_JOB_STDERR=f"{site.work}/%j.err")
    assert [log["name"] for log in logs] == [f"{site.work}/41.out", f"{site.work}/41.err"]
    assert all(str(log["text"]).endswith("\0\ufffd\x1blast words") and log["truncated"] for log in logs)
    assert error == ""


@pytest.mark.parametrize("name", ["line\nbreak", "quote'\"\\$(reboot)`id`", "%", "\udcff\udcfe", " -rf *", "x" * 255])
def test_any_file_name_can_be_read(site: Site, name: str) -> None:
    give(site.work / name, "text")
    literal = name.replace("%", "%%")
    if "\\" in name:  # sbatch(1): a backslash ends all replacement, and is itself removed
        give(site.work / name.replace("\\", ""), "text")
    (log,), error = site.logs(SLURM_JOB_STDOUT=f"{site.work}/{literal}", SLURM_JOB_STDERR="/dev/null")
    assert (log["text"], error) == ("text", "")


def test_a_relative_pattern_starts_at_the_working_directory(site: Site) -> None:
    give(site.work / "out-41", "text")
    (log,), _ = site.logs(SLURM_JOB_STDOUT="out-%j", SLURM_JOB_STDERR="")
    assert (log["name"], log["text"]) == (f"{site.work}/out-41", "text")


def test_with_an_unknown_job_name_the_file_is_found_by_the_rest_of_the_pattern(site: Site) -> None:
    site.prolog()
    site.arrived()
    give(site.work / "train-41.out", "right")
    give(site.work / "train-42.out", "another job")
    (log,), _ = site.logs(SLURM_JOB_STDOUT=f"{site.work}/%x-%j.out", SLURM_JOB_STDERR="")
    assert log["text"] == "right"


def test_no_file_is_read_when_several_match_the_pattern(site: Site) -> None:
    site.prolog()
    site.arrived()
    for task in (1, 2):
        give(site.work / f"slurm-40_{task}.out", "text")
    os.utime(give(site.work / "slurm-39_1.out"), (1, 1))  # written before the job
    (site.work / "slurm-38_1.out").write_text("root's")
    pattern = f"{site.work}/slurm-%A_%a.out"
    assert site.logs(SLURM_JOB_STDOUT=pattern, SLURM_JOB_STDERR="") == ([], f"{pattern}: 2 files match the pattern")
    site.prolog()
    site.arrived()
    (site.work / "slurm-40_1.out").unlink()
    assert site.logs(SLURM_JOB_STDOUT=pattern, SLURM_JOB_STDERR="")[0][0]["name"] == f"{site.work}/slurm-40_2.out"


def test_a_job_without_array_ids_reads_the_file_named_by_its_own_id(site: Site) -> None:
    give(site.work / "slurm-41_4294967294.out", "right")
    (log,), _ = site.logs(SLURM_JOB_STDOUT=f"{site.work}/slurm-%A_%a.out", SLURM_JOB_STDERR="")
    assert log["text"] == "right"


def test_the_output_of_a_job_of_root_is_not_read(site: Site) -> None:
    assert site.logs(SLURM_JOB_UID="0", SLURM_JOB_GID="0", SLURM_JOB_USER="root") == ([], "a job of root")


def test_output_files_are_read_with_the_users_groups_only(site: Site) -> None:
    """A file that only root's group may read is not read, although root started the hook."""
    path = give(site.work / "41.out", "text")
    os.chown(path, USER, 0)
    path.chmod(0o040)
    assert site.logs() == ([], f"{site.work}/41.out: Permission denied")


def test_the_installed_hook_files_have_the_expected_modes(site: Site) -> None:
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (site.root / "hooks").iterdir()}
    assert modes == {
        "prolog": 0o755,
        "epilog": 0o755,
        "epilog_slurmctld": 0o755,
        "node_hooks.pyz": 0o644,
        "hooks.json": 0o644,
    }
    assert site.files == HookFiles(
        prolog=site.root / "hooks" / "prolog",
        epilog=site.root / "hooks" / "epilog",
        epilog_slurmctld=site.root / "hooks" / "epilog_slurmctld",
        zipapp=site.root / "hooks" / "node_hooks.pyz",
    )
