"""`slurmwrap lab` on a real Slurm: what users, administrators and the machine can rely on."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import USERS, Lab, exists, free_base_port, lab_command, living, run_as, started
from waiting import wait_until

from slurmwrap.lab import lab_cgroups
from slurmwrap.lab.lab_directories import LabDirectories

pytestmark = pytest.mark.lab
ALICE, BOB = USERS
SMALL = ("--nodes", "2", "--switches", "1")
ENDED = ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED", "TIMEOUT")


def daemons(directory: Path) -> dict[str, int]:
    """Name -> pid of the daemons that the lab started."""
    listed = json.loads((directory / "lab.json").read_text(encoding="utf-8"))["daemons"]
    return {daemon["name"]: daemon["pid"] for daemon in listed}


def output_of(lab: Lab, script: str, *options: str, user: str = ALICE) -> str:
    """Runs one small job and returns its stdout."""
    home = pwd.getpwnam(user).pw_dir
    job = lab.submit("--mem=200", "--output=%j.out", *options, user=user, script=f"#!/bin/bash\n{script}\n")
    lab.wait_job(job, ENDED)
    return Path(home, f"{job}.out").read_text(encoding="utf-8")


def status_of(directory: Path) -> dict[str, object]:
    done = lab_command("status", "--json", "--dir", directory)
    status: dict[str, object] = json.loads(done.stdout)
    return status


def traces_of(directory: Path) -> dict[str, list[str]]:
    """What is left of a lab on the machine: processes, mounts, cgroups, files."""
    layout = LabDirectories(directory)
    return {
        "processes": living(str(directory)),
        "mounts": [
            m for m in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines() if str(directory) in m
        ],
        "cgroups": [str(group) for group in lab_cgroups.lab_groups(layout.cgroup_name).values() if group.exists()],
        "files": [str(directory)] if directory.exists() else [],
    }


NOTHING: dict[str, list[str]] = {"processes": [], "mounts": [], "cgroups": [], "files": []}


class TestUse:
    def test_status_shows_every_node_idle_and_what_is_enforced(self, lab: Lab) -> None:
        status = status_of(lab.dir)
        assert status["running"] is True
        assert [node["name"] for node in status["nodes"]] == [f"n{i}" for i in range(8)]  # type: ignore[attr-defined]
        assert set(status["enforced"]) == {"memory", "devices", "cores"}  # type: ignore[call-overload]

    def test_env_lines_make_a_shell_use_the_lab(self, lab: Lab) -> None:
        program = f'eval "$({sys.executable} -m slurmwrap.cli.lab env --dir {lab.dir})" && sinfo -h -o "%P %D %l"'
        done = run_as(ALICE, ["sh", "-c", program])
        assert (done.stdout, done.stderr) == ("gpu* 8 infinite\nprerun 8 20:00\n", "")

    def test_topology_has_two_leaf_switches_under_a_core_switch(self, lab: Lab) -> None:
        lines = lab.run(["scontrol", "show", "topology"], user=ALICE).stdout.splitlines()
        rows = {field[0]: field[-1] for field in (line.split() for line in lines)}
        assert rows["SwitchName=ib0"] in ("Nodes=n0,n1,n2,n3", "Nodes=n[0-3]")  # as configured; 26.05 folds the list
        assert rows["SwitchName=core"] == "Switches=ib0,ib1"

    def test_a_kernel_line_is_written_to_the_log_of_its_node_only(self, lab: Lab) -> None:
        lab.kernel("n3", "a line of the test")
        logs = {node: (lab.dir / "nodes" / node / "kmsg").read_text(encoding="utf-8") for node in ("n2", "n3")}
        assert logs["n3"].endswith("a line of the test\n")
        assert "a line of the test" not in logs["n2"]

    def test_an_ordinary_user_can_neither_add_kernel_lines_nor_end_the_lab(self, lab: Lab) -> None:
        forged = lab_command("kernel", "n0", "NVRM: Xid", "--dir", lab.dir, user=ALICE)
        ended = lab_command("down", "--dir", lab.dir, user=ALICE)
        assert (forged.returncode, ended.returncode) == (7, 7)
        assert status_of(lab.dir)["running"] is True

    def test_munge_credentials_come_from_the_nodes_address(self, lab: Lab) -> None:
        socket_option = f"--socket={LabDirectories(lab.dir).munge_socket}"
        sealed = lab.run(["munge", socket_option, "--string=x"], user=ALICE).stdout
        opened = lab.run(["unmunge", socket_option], user=BOB, stdin=sealed).stdout
        assert "(127.0.0.1)\n" in opened
        assert f" {ALICE} ({pwd.getpwnam(ALICE).pw_uid})\n" in opened


@dataclass(frozen=True, slots=True)
class Jobs:
    """Several jobs of one lab. They are submitted together and run at the same time."""

    lab: Lab
    ids: dict[str, str]

    def output(self, name: str, user: str = ALICE) -> str:
        """The output of a job, after it ended."""
        self.lab.wait_job(self.ids[name], ENDED)
        return Path(pwd.getpwnam(user).pw_dir, f"{self.ids[name]}.out").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def jobs(lab: Lab) -> Jobs:
    gate = Path(pwd.getpwnam(ALICE).pw_dir, f"gate-{os.getpid()}")
    until = f"until [ -e {gate} ]; do sleep 0.1; done"
    half = ("--mem=100", "--gres=gpu:4", "--nodelist=n6")
    named = "scontrol show hostnames | head -1; getent hosts n5; srun -Q hostname | sort; head -1 /etc/hosts"
    opened = f"for i in 0 1; do (exec 3<{lab.dir}/dev/nvidia$i) 2>&1 | sed 's/.*: //'; done"
    requests = {  # name -> user, script, options
        ALICE: (ALICE, f"{until}; echo $(id -un) $(hostname) $SLURM_JOB_GPUS", half),
        BOB: (BOB, f"{until}; echo $(id -un) $(hostname) $SLURM_JOB_GPUS", half),
        "no memory": (BOB, until, ("--nodelist=n1",)),
        "nor here": (BOB, until, ("--nodelist=n1",)),
        "devices": (ALICE, opened, ("--mem=100", "--gres=gpu:1", "--nodelist=n7")),
        "memory": (ALICE, "python3 -c 'print(len(bytearray(400 << 20)))'", ("--mem=100",)),
        "names": (ALICE, named, ("--mem=100", "--nodes=2", "--ntasks-per-node=1", "--nodelist=n4,n5")),
        "pattern": (BOB, "true", ("--mem=100", "--output=on-%N-%j.out", "--nodelist=n2")),
    }
    ids = {
        name: lab.submit("--output=%j.out", *options, user=user, script=f"#!/bin/bash\n{script}\n")
        for name, (user, script, options) in requests.items()
    }
    for name in (*USERS, "no memory", "nor here"):  # all four run at the same time: each waits for the file
        lab.wait_job(ids[name], ("RUNNING",))
    gate.touch()
    return Jobs(lab, ids)


class TestJobs:
    def test_two_users_get_different_gpus_of_one_node(self, jobs: Jobs) -> None:
        outputs = [jobs.output(user, user).split() for user in USERS]
        assert [one[:2] for one in outputs] == [[ALICE, "n6"], [BOB, "n6"]]
        assert sorted(one[2] for one in outputs) == ["0,1,2,3", "4,5,6,7"]

    def test_jobs_without_a_memory_request_share_a_node(self, jobs: Jobs) -> None:
        """The fixture has waited until both run on one node at the same time."""
        assert [jobs.lab.wait_job(jobs.ids[name]) for name in ("no memory", "nor here")] == ["COMPLETED"] * 2

    def test_a_job_cannot_open_the_gpus_it_did_not_get(self, jobs: Jobs) -> None:
        if "yes" not in status_of(jobs.lab.dir)["enforced"]["devices"]:  # type: ignore[index]
            pytest.skip("devices are not enforced on this machine")
        # The kernel allows the first device, which has no driver. It refuses the second.
        assert jobs.output("devices").splitlines() == ["No such device or address", "Operation not permitted"]

    def test_a_job_over_its_memory_is_killed_by_the_kernel(self, jobs: Jobs) -> None:
        if "yes" not in status_of(jobs.lab.dir)["enforced"]["memory"]:  # type: ignore[index]
            pytest.skip("memory is not enforced on this machine")
        assert jobs.lab.wait_job(jobs.ids["memory"], ENDED) == "OUT_OF_MEMORY"

    def test_nodes_have_their_own_names_and_find_each_other(self, jobs: Jobs) -> None:
        assert jobs.output("names") == "n4\n127.0.0.1       n5\nn4\nn5\n127.0.0.1 n0\n"
        assert socket.gethostname() not in ("n4", "n5")

    def test_output_pattern_names_the_node(self, jobs: Jobs) -> None:
        jobs.lab.wait_job(jobs.ids["pattern"])
        assert Path(pwd.getpwnam(BOB).pw_dir, f"on-n2-{jobs.ids['pattern']}.out").exists()


class TestRefusals:
    def test_a_second_up_names_the_directory_and_does_not_change_the_first_lab(self, lab: Lab) -> None:
        before = daemons(lab.dir)
        done = lab_command("up", "--dir", lab.dir, "--base-port", str(free_base_port()))
        assert done.returncode == 7
        assert f"a lab is already running in {lab.dir}" in done.stderr
        assert daemons(lab.dir) == before

    def test_a_port_in_use_is_named_with_its_program_and_nothing_is_left(self, lab: Lab, lab_scratch: Path) -> None:
        directory = lab_scratch / "port"
        done = lab_command("up", "--dir", directory, "--base-port", str(lab.base_port))
        assert done.returncode == 7
        assert f"port {lab.base_port} is in use by slurmctld" in done.stderr
        assert "--base-port" in done.stderr
        assert traces_of(directory) == NOTHING

    def test_a_directory_with_other_files_is_not_changed(self, lab_scratch: Path) -> None:
        directory = lab_scratch / "foreign"
        directory.mkdir()
        (directory / "thesis.tex").write_text("years", encoding="utf-8")
        for verb in ("up", "down"):
            done = lab_command(verb, "--dir", directory)
            assert (done.returncode, "thesis.tex" in done.stderr) == (7, True)
        assert (directory / "thesis.tex").read_text(encoding="utf-8") == "years"

    def test_a_slurmd_that_cannot_start_is_reported_with_its_error_and_nothing_is_left(self, lab_scratch: Path) -> None:
        directory, programs = lab_scratch / "fatal", lab_scratch / "programs"
        programs.mkdir()
        broken = programs / "slurmd"
        broken.write_text("#!/bin/sh\necho 'slurmd: fatal: no such luck' >&2; exit 1\n", encoding="utf-8")
        broken.chmod(0o755)
        env = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/bin"}
        done = lab_command("up", "--dir", directory, "--base-port", str(free_base_port()), env=env)
        assert done.returncode == 7
        assert re.search(
            r"slurmd of (n\d) ended while starting: slurmd of \1 said 'slurmd: fatal: no such luck'", done.stderr
        )
        assert traces_of(directory) == NOTHING

    def test_a_slurmd_that_refuses_cgroups_runs_without_them_and_status_says_why(self, lab_scratch: Path) -> None:
        programs = lab_scratch / "picky"
        programs.mkdir()
        picky = programs / "slurmd"
        picky.write_text(
            "#!/bin/sh\nfor conf; do :; done\n"
            'grep -q cgroup/v1 "$(dirname "$conf")/cgroup.conf" && { echo "fatal: no cgroup plugin" >&2; exit 1; }\n'
            'exec /usr/sbin/slurmd "$@"\n',
            encoding="utf-8",
        )
        picky.chmod(0o755)
        env = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/bin"}
        with started(lab_scratch / "bare", "--nodes", "2", "--switches", "1", env=env) as bare:
            assert "no cgroup plugin" in status_of(bare.dir)["enforced"]["memory"]  # type: ignore[index]
            assert output_of(bare, "hostname; echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:2") == "n0\n0,1\n"


def test_lab_up_cleans_up_after_a_crash_and_lab_down_leaves_nothing(lab_scratch: Path) -> None:
    with started(lab_scratch / "crash", *SMALL) as lab:
        job = lab.submit("--nodes=2", "--output=/dev/null", user=BOB, script="#!/bin/sh\nsrun sleep 87654\n")
        lab.wait_job(job, ("RUNNING",))
        before = daemons(lab.dir)
        for name in ("slurmctld", "n1"):
            os.kill(before[name], signal.SIGKILL)
        wait_until(lambda: not status_of(lab.dir)["running"], "a killed controller is seen")
        done = lab_command("up", "--dir", lab.dir, "--base-port", str(lab.base_port), *SMALL, "--no-reconcile")
        assert done.returncode == 0, done.stderr
        assert "Clearing what a crash left" in done.stderr
        assert set(before.values()) & set(daemons(lab.dir).values()) == set()
        assert len(living(f"slurmd -D -N n0 -f {lab.env['SLURM_CONF']}")) == 1
        assert living("sleep 87654") == []
        assert lab.states(job) == []

        script = "#!/bin/bash\nsetsid sleep 98765 &\nsrun sleep 98765\n"
        lab.submit("--nodes=2", "--mem=50", "--output=/dev/null", user=ALICE, script=script)
        wait_until(lambda: len(living("sleep 98765", ALICE)) >= 4, "a job and its steps run")
        assert lab_command("down", "--dir", lab.dir).returncode == 0
        assert living("sleep 98765") == []
        assert traces_of(lab.dir) == NOTHING
        assert lab_command("status", "--dir", lab.dir).returncode == 7


class TestOtherAccounts:
    def test_slurm_user_owns_the_controller_and_two_labs_do_not_interfere(self, lab: Lab, lab_scratch: Path) -> None:
        if not exists("slurm"):
            pytest.skip("there is no user 'slurm' on this machine")
        with started(lab_scratch / "slurms", *SMALL, "--slurm-user", "slurm", slurm_user="slurm") as other:
            pid = daemons(other.dir)["slurmctld"]
            owners = {name: (other.dir / name).owner() for name in ("spool", "state", "published", "nodes")}
            assert Path(f"/proc/{pid}").owner() == "slurm"
            assert owners == {"spool": "slurm", "state": "slurm", "published": "slurm", "nodes": "root"}
            # both labs have a node n0
            mine = lab.submit("--mem=50", user=ALICE, script="#!/bin/sh\nsleep 300\n")
            assert output_of(other, "id -un; srun -Q hostname", user=BOB) == f"{BOB}\nn0\n"
            lab.wait_job(mine, ("RUNNING",))
        assert lab.states(mine) == ["RUNNING"]
        lab.run(["scancel", mine])

    def test_an_ordinary_user_can_run_a_lab(self, lab_users: tuple[str, str]) -> None:
        del lab_users
        home = Path(pwd.getpwnam(ALICE).pw_dir)
        directory, port = home / "mylab", str(free_base_port())
        small = ("--nodes", "2", "--switches", "1", "--base-port", port, "--no-reconcile")
        done = lab_command("up", "--dir", directory, *small, user=ALICE)
        try:
            assert done.returncode == 0, done.stderr
            env = {"SLURM_CONF": str(directory / "etc" / "slurm.conf")}
            argv = ["srun", "-N1", "--gres=gpu:2", "--mem=50", "printenv", "CUDA_VISIBLE_DEVICES"]
            assert run_as(ALICE, argv, env).stdout == "0,1\n"
            assert "single user" in done.stdout
        finally:
            assert lab_command("down", "--dir", directory, user=ALICE).returncode == 0
        assert [line for name in ("slurmctld", "slurmd", "slurmstepd", "munged") for line in living(name, ALICE)] == []
        assert not directory.exists()


def test_ranks_connect_to_the_first_node_by_its_name(lab: Lab) -> None:
    """As torchrun does: rank 0 listens on the name of the first node, the other ranks connect to it."""
    program = (
        "import socket, sys, os\n"
        "host, port, rank = sys.argv[1], int(sys.argv[2]), int(os.environ['SLURM_PROCID'])\n"
        "if rank == 0:\n"
        "    server = socket.create_server((host, port)); peer, _ = server.accept(); print(peer.recv(9).decode())\n"
        "else:\n"
        "    import time\n"
        "    for _ in range(100):\n"
        "        try: socket.create_connection((host, port)).sendall(socket.gethostname().encode()); break\n"
        "        except OSError: time.sleep(0.05)\n"
    )
    home = Path(pwd.getpwnam(ALICE).pw_dir)
    (home / "meet.py").write_text(program, encoding="utf-8")
    script = f"srun -Q python3 {home}/meet.py $(scontrol show hostnames | head -1) {free_base_port()}"
    assert output_of(lab, script, "--nodes=2", "--ntasks-per-node=1", "--nodelist=n2,n3") == "n3\n"


def test_lab_help_shows_an_example_for_every_command() -> None:
    for command in ("up", "status", "down", "env", "kernel"):
        assert f"slurmwrap lab {command}" in lab_command(command, "--help").stdout
