"""Faults injected into real hooks that run as under Slurm: exit code 0 in time, and the loss recorded if possible.

Faults of the shell wrappers are tested in test_whole_hooks.py, of the driver in test_gpu_state.py, of the gate in
test_gate_faults.py, and what a user may try in test_hostile_users.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hook_site import Site, epilog_facts, give, run_hooks
from waiting import allow, wait_until

from slurmwrap.model.observation import Observation


def read_failures(site: Site) -> str:
    path = site.state / "failed"
    return path.read_text() if path.exists() else ""


# The spool and MUNGE


@pytest.fixture
def tmpfs(site: Site) -> Iterator[Callable[[str], Path]]:
    """Mounts a small tmpfs on the spool."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        spool = site.root / "spool"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", spool], capture_output=True)
        if done.returncode:
            pytest.skip("mount is not allowed here")
        mounted.append(spool)
        return spool

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [("mode=1733,size=4k", "No space left on device"), ("mode=1733,ro", "Read-only file system")],
)
def test_with_a_full_or_read_only_spool_the_observation_is_kept_on_the_node(
    site: Site, tmpfs: Callable[[str], Path], options: str, error: str
) -> None:
    spool = tmpfs(options)
    if "ro" not in options.split(","):
        (spool / "filler").write_bytes(bytes(4096))
    run_hooks(site)
    assert len(list((site.state / "unsent").iterdir())) == 2
    assert error in read_failures(site) and read_failures(site).endswith(": kept\n")
    assert [path.name for path in spool.iterdir() if path.name != "filler"] == []  # nothing half written


@pytest.fixture
def silent_munged(tmp_path: Path) -> Iterator[str]:
    """A munged that accepts connections and never answers."""
    path = str(tmp_path / "socket")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(path)
        server.listen(8)
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield path
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for one in kept:
            one.close()


def test_when_munged_never_answers_the_observation_is_kept_on_the_node(site: Site, silent_munged: str) -> None:
    site.setting("munge_socket", silent_munged)
    site.epilog()
    assert len(list((site.state / "unsent").iterdir())) == 1
    assert read_failures(site).endswith("job 41: munge was late: kept\n")


# The interpreter


def replace_python(site: Site, text: str) -> Callable[[Path], None]:
    """Returns a function that makes a hook run a program with this text in place of Python."""
    fake = site.root / "python"
    fake.write_text(text)
    fake.chmod(0o755)

    def replace(shim: Path) -> None:
        lines = shim.read_text().splitlines()
        shim.write_text("\n".join(f"python={fake}" if line.startswith("python=") else line for line in lines) + "\n")

    return replace


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nkill -SEGV $$\n", "#!/bin/sh\nexit 77\n", "\x7fELF"]
)
def test_a_python_that_crashes_at_its_start_is_recorded_on_the_node(site: Site, text: str) -> None:
    site.prolog()
    replace = replace_python(site, text)
    for shim in (site.files.prolog, site.files.epilog):
        replace(shim)
        site.hook(shim)
        assert "python ended with" in read_failures(site)


def test_a_hook_reads_one_zipapp_to_its_end_if_an_upgrade_replaces_it_meanwhile(site: Site) -> None:
    """Python keeps the table of contents of the zipapp that it opened, and reads each module from the path."""
    site.prolog()
    site.arrived()
    settings, zipapp = site.files.zipapp.with_name("hooks.json"), site.files.zipapp
    content = settings.read_bytes()
    settings.unlink()
    os.mkfifo(settings)  # the hook waits here, with its first modules loaded
    upgraded = zipapp.with_name("upgraded")
    with zipfile.ZipFile(zipapp) as old, zipfile.ZipFile(upgraded, "w") as new:
        new.writestr("node_hooks/added.py", "#" * 5000)
        for name in old.namelist():
            new.writestr(name, old.read(name))

    def feed() -> None:
        with settings.open("wb") as fifo:
            upgraded.replace(zipapp)
            settings.unlink()
            settings.write_bytes(content)
            fifo.write(content)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    site.epilog()
    thread.join(allow(10))
    (found,) = site.arrived()
    assert isinstance(found, Observation) and found.context.value == "epilog"


def test_a_python_that_ignores_every_signal_is_killed_at_the_deadline(site: Site) -> None:
    site.prolog()
    replace_python(site, "#!/bin/sh\ntrap '' TERM INT HUP ALRM\nwhile :; do /bin/sleep 1; done\n")(site.files.epilog)
    site.deadline(site.files.epilog, 1)
    site.epilog()
    assert read_failures(site) == "epilog of job 41: stopped after 1 s\n"


# Slurm's environment


def test_hooks_without_any_environment_record_no_observation(site: Site) -> None:
    site.environ = {}
    run_hooks(site)
    assert (site.arrived(), site.recorded()) == ([], [])
    assert "SLURM_JOB_ID is not a job id" in (site.root / "state" / "unknown" / "failed").read_text()


HUGE = "x" * 131_000  # the longest that execve(2) takes: MAX_ARG_STRLEN is 128 KiB, the variable's name included


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_JOB_UID": "-1"},
        {"SLURM_JOB_UID": ""},
        {"SLURM_JOB_UID": str(1 << 70), "SLURM_JOB_GID": str(1 << 70)},
        {"SLURM_JOB_GID": "-1"},
        {"SLURM_JOB_USER": "no such user"},
        {"SLURM_JOB_RESTART_COUNT": "9" * 5000, "SLURM_JOB_EXIT_CODE": "-" * 99, "SLURM_JOB_DERIVED_EC": "1e9"},
        {"SLURM_NODELIST": HUGE},
        {"SLURM_NODELIST": "[" * 1000 + "n0" + "]" * 1000},
        {"SLURM_JOB_GPUS": "0-4294967295,-1,,x-y"},
        {"SLURM_JOB_GPUS": HUGE.replace("x", "0,")[:131_000]},
        {"SLURM_JOB_STDOUT": HUGE},
        {"SLURM_JOB_STDOUT": "%x" * 1000},
        {"SLURM_JOB_STDOUT": "/" + "%A/" * 1000},
        {"SLURM_JOB_WORK_DIR": "", "SLURM_JOB_STDOUT": ""},
        {"SLURM_JOB_WORK_DIR": "../../..", "SLURM_JOB_STDOUT": "../../../etc/shadow"},
        {"SLURM_JOB_EXIT_CODE2": "\udcff\x1b[31m\n"},
        {"SLURM_JOB_START_TIME": "-1"},
        {"SLURM_JOB_SLUID": "../" * 50},
    ],
)
def test_an_absurd_variable_affects_only_the_facts_it_describes(site: Site, changed: dict[str, str]) -> None:
    give(site.work / "41.out", "text\n")
    run_hooks(site, **changed)
    found = {one.context.value: one for one in site.arrived() if hasattr(one, "context")}
    assert set(found) == {"prolog", "epilog"}
    assert found["epilog"].facts["exit"] == changed.get("SLURM_JOB_EXIT_CODE2", "3:0").replace("\udcff", "\ufffd")
    assert len(site.recorded()) == 1


@pytest.mark.parametrize("job_id", ["-41", "0", "42949672960", "9" * 9999, "0x29", "41; reboot", ""])
def test_an_invalid_job_id_records_nothing(site: Site, job_id: str) -> None:
    run_hooks(site, SLURM_JOB_ID=job_id)
    assert (site.arrived(), site.recorded()) == ([], [])


# Clocks


def test_the_start_time_is_corrected_when_the_clock_was_set_back(site: Site) -> None:
    """The mark's time lies in the future. The job's start is reported by the present clock, like the controller's."""
    site.prolog()
    site.arrived()
    path = site.state / "41.mark"
    mark = json.loads(path.read_text())
    path.write_text(json.dumps({**mark, "at": mark["at"] + 86400}))
    give(site.work / "41.out", "text\n")
    found = epilog_facts(site)
    assert abs(found["started_at"] - mark["at"]) < 1 and found["clock_jump_s"] == -86400.0
    assert [log["text"] for log in found["logs"]] == ["text\n"]


def test_the_start_time_is_corrected_when_the_clock_was_set_ahead(site: Site) -> None:
    """Files written before the jump are a day old by the present clock, and still belong to the job."""
    site.prolog()
    site.arrived()
    path = site.state / "41.mark"
    mark = json.loads(path.read_text())
    path.write_text(json.dumps({**mark, "at": mark["at"] - 86400}))
    yesterday = time.time() - 86390
    os.utime(give(site.work / "train-41.out", "text\n"), (yesterday, yesterday))
    found = epilog_facts(site, SLURM_JOB_STDOUT=f"{site.work}/%x-%j.out", SLURM_JOB_STDERR="/dev/null")
    assert abs(found["started_at"] - mark["at"]) < 1 and found["clock_jump_s"] == 86400.0
    assert [log["text"] for log in found["logs"]] == ["text\n"]


MARKS = ["", "{", "[]", '{"at": "x"}', '{"at": 1e400, "ticks": 1.0}', '{"kernel": 7, "gpus": 7}']


@pytest.mark.parametrize("content", MARKS)
def test_an_invalid_mark_loses_only_the_start_time(site: Site, content: str) -> None:
    site.prolog()
    site.arrived()
    (site.state / "41.mark").write_text(content)
    give(site.work / "41.out", "text\n")
    found = epilog_facts(site)
    assert [log["text"] for log in found["logs"]] == ["text\n"]
    assert (found["exit"], found["started_at"]) == ("3:0", None)


def test_epilogs_that_run_at_once_send_one_observation_each(site: Site) -> None:
    """Eight jobs that share a node end at the same time."""
    environ = {os.fsencode(k): os.fsencode(v) for k, v in site.environ.items()}
    running = [
        subprocess.Popen([site.files.epilog], env={**environ, b"SLURM_JOB_ID": b"%d" % job}) for job in range(41, 49)
    ]
    assert [process.wait(allow(60)) for process in running] == [0] * 8
    assert sorted(one.job_id for one in site.arrived() if hasattr(one, "job_id")) == list(range(41, 49))


def test_a_hook_whose_wrapper_script_is_killed_leaves_no_child_process(site: Site) -> None:
    """At PrologEpilogTimeout slurmd kills the hook's process group with SIGKILL."""
    site.setting("munge", str(site.root / "munge"))
    (site.root / "munge").write_text(f"#!/bin/sh\n: > {site.root}/asked\nexec /bin/sleep 100000\n")
    (site.root / "munge").chmod(0o755)
    environ = {os.fsencode(k): os.fsencode(v) for k, v in site.environ.items()}
    process = subprocess.Popen([site.files.epilog], env=environ, start_new_session=True)
    wait_until((site.root / "asked").exists, "the start of munge")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(allow(30))
    wait_until(lambda: not find_site_processes(site), "the end of every child", pause=0.1)


def find_site_processes(site: Site) -> list[str]:
    """Command lines of running processes that name this site's directory."""
    found = []
    for path in (process / "cmdline" for process in Path("/proc").iterdir() if process.name.isdigit()):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(site.root) in line:
            found.append(line)
    return found
