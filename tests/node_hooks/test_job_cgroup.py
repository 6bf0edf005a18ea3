"""The cgroup in which each release of Slurm puts a job's processes.

The layouts come from Slurm's sources (src/plugins/cgroup) and from trees that slurmd 22.05, 24.11 and 26.05 created
(data/slurm/cgroup_trees.toml). One test uses a real cgroup of this machine's kernel.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import allow

from slurmwrap.node_hooks import job_cgroup, kernel_log
from slurmwrap.prerun.trial import process_sampler

SLUID = "sEKNKTV3WPV500"  # of cgroup.conf(5), 26.05
OTHER = "sEKNKTV3WPV501"
INIT = "0::/init.scope\n"
INSIDE = "0::/docker/7f3a/init.scope\n"

# release → (the job's SLUID in that release, init's cgroup, the job's directory below the mount)
VERSION_2 = {
    "22.05": ("", INIT, "system.slice/slurmstepd.scope/job_41"),
    "22.05, Debian's": ("", INIT, "system.slice/n0_slurmstepd.scope/job_41"),
    "24.11, Debian's": ("", INIT, "system.slice/n0_slurmstepd.scope/job_41"),
    "24.11, in a container": ("", INSIDE, "docker/7f3a/system.slice/slurmstepd.scope/job_41"),
    "24.11, in a cgroup namespace": ("", "0::/\n", "system.slice/slurmstepd.scope/job_41"),
    "25.11": (SLUID, INIT, "system.slice/slurmstepd.scope/job_41"),
    "25.11, CgroupSlice=hpc.slice": (SLUID, INIT, "hpc.slice/n0_slurmstepd.scope/job_41"),
    "26.05": (SLUID, INIT, f"system.slice/slurmstepd.scope/{SLUID}"),
    "26.05, Debian's": (SLUID, INIT, f"system.slice/n0_slurmstepd.scope/{SLUID}"),
    "26.05, CgroupSlice, in a container": (SLUID, INSIDE, f"docker/7f3a/hpc.slice/slurmstepd.scope/{SLUID}"),
    "26.05.2, CgroupJobIdPaths=yes": (SLUID, INIT, "system.slice/slurmstepd.scope/job_41"),
}
VERSION_1 = {"as Slurm is built": "slurm/uid_1001/job_41", "Debian's": "slurm_n0/uid_1001/job_41"}
STEPS = ("step_batch/user/task_0", "step_0/user/task_3", "step_extern/slurm", "step_interactive/user/task_0")


def write(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(content)


def job_files(mib: int) -> dict[str, str]:
    return {
        "memory.stat": f"anon {mib << 20}\nfile 999999999\nshmem 0\n",
        "memory.peak": f"{2 * mib << 20}\n",
        "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n",
        "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    }


@pytest.mark.parametrize("mounted", ["", "unified"])
@pytest.mark.parametrize(("sluid", "init", "path"), VERSION_2.values(), ids=VERSION_2.keys())
def test_a_jobs_cgroup_is_found_in_the_layout_of_each_release(
    tmp_path: Path, sluid: str, init: str, path: str, mounted: str
) -> None:
    root, own = tmp_path / "fs", tmp_path / "init"
    own.write_text(init)
    write(root / mounted / path, job_files(300))
    for stranger in ("job_4", "job_410", OTHER):  # directories of other jobs next to it
        write((root / mounted / path).parent / stranger, job_files(7))
    found = {"mem_peak_mib": 300, "mem_high_mib": 600, "oom_kills": 1, "oom_events": 2, "cpu_s": 2.5}
    assert job_cgroup.sample_cgroup("n0", 41, 1001, str(root), sluid, str(own)) == found
    assert job_cgroup.sample_cgroup("n0", 42, 1001, str(root), "", str(own)) == {}


DATA = Path(__file__).parents[1] / "data/slurm/cgroup_trees.toml"
CAPTURED = tomllib.loads(DATA.read_text())["tree"]


@pytest.mark.parametrize("tree", CAPTURED, ids=[f"{tree['release']} {tree['conf']}".strip() for tree in CAPTURED])
def test_a_jobs_cgroup_is_found_in_trees_captured_from_slurmd(tmp_path: Path, tree: dict[str, Any]) -> None:
    for directory in tree["directories"].split():
        (tmp_path / directory[1:]).mkdir(parents=True, exist_ok=True)
    (scope,) = tmp_path.glob("*.slice/n0_slurmstepd.scope")
    (job,) = (path for path in scope.iterdir() if path.name not in ("system", "slurmd"))
    write(job, job_files(300))
    found = job_cgroup.sample_cgroup("n0", tree["job"], 0, str(tmp_path), tree["sluid"], os.devnull)
    assert (found["mem_peak_mib"], found["cpu_s"]) == (300, 2.5)
    environ = {"SLURM_JOB_ID": str(tree["job"]), "SLURM_JOB_SLUID": tree["sluid"]}
    assert {process_sampler.find_job_cgroup(environ, own, tmp_path) for own in tree["processes"]} == {job}


@pytest.mark.parametrize("path", VERSION_1.values(), ids=VERSION_1.keys())
def test_cgroup_v1_oom_kills_are_summed_over_the_cgroups_of_steps_and_tasks(tmp_path: Path, path: str) -> None:
    none = "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"
    job = tmp_path / "memory" / path
    for step, kills in (("", 0), ("step_batch", 0), ("step_batch/task_0", 2), ("step_0/task_1", 1)):
        write(job / step, {"memory.oom_control": none.replace("kill 0\n", f"kill {kills}\n")})
    assert job_cgroup.sample_cgroup("n0", 41, 1001, str(tmp_path), init=os.devnull)["oom_kills"] == 3
    assert process_sampler.read_oom_kills(job) == 3


@pytest.mark.parametrize(("sluid", "init", "path"), VERSION_2.values(), ids=VERSION_2.keys())
@pytest.mark.parametrize("step", STEPS)
def test_a_process_finds_its_jobs_cgroup_with_cgroup_v2(
    tmp_path: Path, sluid: str, init: str, path: str, step: str
) -> None:
    write(tmp_path / path, job_files(300))
    environ = {"SLURM_JOB_ID": "41", **({"SLURM_JOB_SLUID": sluid} if sluid else {})}
    own = f"0::/{path}/{step}\n"
    assert process_sampler.find_job_cgroup(environ, own, tmp_path) == tmp_path / path
    assert process_sampler.find_job_cgroup({"SLURM_JOB_ID": "4", "SLURM_JOB_SLUID": OTHER}, own, tmp_path) is None


@pytest.mark.parametrize("path", VERSION_1.values(), ids=VERSION_1.keys())
def test_a_process_finds_its_jobs_cgroup_with_cgroup_v1(tmp_path: Path, path: str) -> None:
    write(tmp_path / "memory" / path, {"memory.stat": "total_rss 1\n"})
    own = f"9:freezer:/{path}/step_batch\n4:memory:/{path}/step_batch/task_0\n0::/\n"
    assert process_sampler.find_job_cgroup({"SLURM_JOB_ID": "41"}, own, tmp_path) == tmp_path / "memory" / path


@pytest.mark.parametrize(
    "path",
    [
        "/user.slice/job_41/step_0",  # a user's own directory
        "/system.slice/docker-job_41.scope/x",
        "/system.slice/slurmstepd.scope/job_41x/step_0",
        "/system.slice/slurmstepd.scope/system/job_41",
        f"/system.slice/{SLUID}/step_0",
    ],
)
def test_a_path_that_only_resembles_a_jobs_cgroup_is_not_taken(path: str) -> None:
    assert job_cgroup.job_directory(path, 41, SLUID) is None


CONSTRAINED = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0,"
KILLED = "Memory cgroup out of memory: Killed process 9 (python3) total-vm:1kB, UID:1001"


@pytest.mark.parametrize(
    "job", [*(f"/{path}" for _, _, path in VERSION_2.values()), *(f"/{path}" for path in VERSION_1.values())]
)
def test_kernel_oom_lines_are_attributed_to_the_job_of_their_cgroup(job: str) -> None:
    step = f"{job}/step_0/user/task_0"
    own_oom_line = f"{CONSTRAINED}oom_memcg={job},task_memcg={step},task=python3,pid=9,uid=1001"
    other_oom_line = own_oom_line.replace("job_41", "job_42").replace(SLUID, OTHER)
    lines = [
        (text, 1.0)
        for text in (other_oom_line, KILLED, own_oom_line, KILLED, CONSTRAINED + "oom_memcg=/a,task_memcg=/a/b", KILLED)
    ]
    kept, _ = kernel_log.relevant(lines, 41, 1001, [], False, SLUID)
    assert [line["text"] for line in kept] == [own_oom_line, KILLED]


NODE = f"swtest{secrets.token_hex(4)}"  # random, because containers share the hierarchy and can have equal pids


@pytest.fixture
def real_cgroup_v2() -> Iterator[Path]:
    """A cgroup of this machine's kernel with the layout of 26.05, below a mount of cgroup version 2."""
    tops = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
    top = next((one for one in tops if (one / "cgroup.controllers").is_file()), None)
    if top is None or os.geteuid() != 0:
        pytest.skip("needs root and a mounted cgroup version 2")
    leaf = top / f"system.slice/{NODE}_slurmstepd.scope" / SLUID / "step_0/user/task_0"
    made = [p for p in (leaf, *leaf.parents) if p.is_relative_to(top) and not p.exists()]
    try:
        for directory in reversed(made):
            directory.mkdir(exist_ok=True)
    except OSError as error:
        pytest.skip(f"no cgroup of version 2 can be made: {error}")
    yield leaf
    for directory in (leaf, *leaf.parents):
        if directory == top:
            break
        until = time.monotonic() + (allow(5) if directory in made else 0)
        while directory.exists():
            with contextlib.suppress(
                OSError
            ):  # EBUSY until a process has ended, and always where other processes remain
                directory.rmdir()
            if time.monotonic() >= until:
                break


def test_cpu_time_of_a_step_is_read_from_a_real_cgroup_v2(real_cgroup_v2: Path) -> None:
    busy = f"import os; open('{real_cgroup_v2}/cgroup.procs', 'w').write('0')\nwhile os.times().user < 0.2: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    found = job_cgroup.sample_cgroup(NODE, 41, 0, sluid=SLUID)
    assert found["cpu_s"] >= 0.2
