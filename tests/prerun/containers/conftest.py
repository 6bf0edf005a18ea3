"""Trials in containers, run by an ordinary user: an image built from the host's Python, and the runtimes."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from container_image import FAKE_TORCH, build_image
from waiting import allow

# Uses a package that only the image has, by the image's own PYTHONPATH, and writes to the job's directory.
TRAIN = """
import os, sys, imagepackage, torch.optim
print('world size', os.environ.get('WORLD_SIZE', '1'), 'wandb', os.environ.get('WANDB_MODE'))
with open('started.txt', 'w') as stream:
    stream.write('x')
optimizer = torch.optim.SGD()
for step in range(int(sys.argv[1])):
    print('before step', step + 1)
    optimizer.step()
open('checkpoint.pt', 'w').close()
"""
RUN = """
import json, os, sys
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.static import job_inputs
from slurmwrap.prerun.trial.trial_containers import map_paths
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict import python_traceback
from slurmwrap.prerun.verdict.judge_trial import judge

request = json.loads(sys.argv[1])
spec = TrialSpec(**request["spec"])
result = run_trial(spec, environ=request["environ"])
looks = [map_paths(spec.trial_dir, look) for look in (job_inputs.inspect, python_traceback.read)]
verdict = judge(spec, result, diagnose_run, *looks)
measured = result.measurement
print(json.dumps({
    "layer": result.layer, "exit_code": result.exit_code, "steps": result.steps, "source": result.step_source,
    "error": result.error, "output": result.logs[0].text if result.logs else "",
    "outcome": verdict.outcome.value, "reason": verdict.reason,
    "memory": measured.mem_peak_mib if measured else None, "cpu_s": measured.cpu_s if measured else None,
    "logs": {log.name: log.text for log in result.logs[1:]},
}))
"""


@dataclass(frozen=True)
class Image:
    """A tree of files with Python, a shell and a package of its own."""

    root: Path
    images: Path


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image `train`, and `bare` without Python, below a directory that every user may enter."""
    import tempfile

    images = Path(tempfile.mkdtemp(prefix="slurmwrap-images-", dir="/var/tmp"))
    images.chmod(0o755)
    build_image(images / "train")
    bare = images / "bare"
    shutil.copytree(images / "train", bare, symlinks=True)
    for path in (bare / "usr/bin").glob("python*"):
        path.unlink()
    yield Image(root=images / "train", images=images)
    shutil.rmtree(images, ignore_errors=True)


@dataclass
class Site:
    """A home with a job's directory, of an ordinary user who runs trials."""

    user: str
    home: Path
    job: Path
    images: Path
    path: str
    cgroups: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)

    def run(self, script: str, **spec: Any) -> dict[str, Any]:
        """Runs a script's text as a trial of the user; returns what RUN prints."""
        trial = self.home / ".local/state/slurmwrap/prerun/1"
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir(parents=True)
        (trial / "slurm_script").write_text(script)
        self._give(self.home)
        trial.chmod(0o700)
        fields = {"trial_dir": str(trial), "script": str(trial / "slurm_script"), "chdir": str(self.job)}
        fields |= {"script_name": "train.sbatch", "time_limit_s": allow(30.0), "gpus": 4, **spec}
        environ = {"HOME": str(self.home), "PATH": self.path, "USER": self.user, "LANG": "C", **self.environ}
        argv = [sys.executable, "-c", RUN, json.dumps({"spec": fields, "environ": environ})]
        done = subprocess.run(
            self.as_user(argv), capture_output=True, text=True, timeout=allow(100.0), cwd="/", check=False
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def as_user(self, argv: list[str]) -> list[str]:
        """Returns the command line that runs `argv` as the user."""
        if os.geteuid() != 0:
            return argv
        become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups", "--"]
        variables = [f"HOME={self.home}", f"USER={self.user}", f"PATH={self.path}", f"XDG_RUNTIME_DIR={self.home}/run"]
        return [*self.cgroups, *become, "env", *variables, *argv]

    def _give(self, folder: Path) -> None:
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "-h", f"{self.user}:", str(folder)], check=False, capture_output=True)

    def list_files(self) -> set[str]:
        """Returns the files of the job's directory."""
        return {str(path.relative_to(self.job)) for path in self.job.rglob("*") if path.is_file()}


@pytest.fixture
def site(image: Image, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site whose user's PATH has the host's programs, and below `bin` the test's own."""
    if os.geteuid() == 0:
        user = request.getfixturevalue("lab_users")[0]
        home = Path(pwd.getpwnam(user).pw_dir)
    else:
        user = pwd.getpwuid(os.geteuid()).pw_name
        home = request.getfixturevalue("tmp_path")
    job = home / "job"
    shutil.rmtree(job, ignore_errors=True)
    for name, text in {**FAKE_TORCH, "train.py": TRAIN}.items():
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(text)
    (home / "run").mkdir(exist_ok=True)
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    yield Site(user=user, home=home, job=job, images=image.images, path=f"{programs}:/usr/bin:/bin")
    for folder in (job, programs, home / ".local/state/slurmwrap/prerun/1"):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def stand_in(site: Site) -> Callable[[str], None]:
    """Puts a stand-in for a runtime on the user's PATH."""
    if shutil.which("bwrap") is None:
        pytest.skip("the stand-ins run their commands by bubblewrap (Debian: apt-get install bubblewrap)")
    program = Path(__file__).with_name("stand_in_runtime.py")

    def put(name: str) -> None:
        shim = site.home / "bin" / name
        shim.write_text(f'#!/bin/sh\nexec /usr/bin/python3 -I {program} {name} {site.images} "$@"\n')
        shim.chmod(0o755)

    return put


@pytest.fixture
def need(site: Site) -> Callable[[str], None]:
    """Skips the test if a runtime is not installed, or cannot run as the test's user."""

    def check(name: str) -> None:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        probe = {
            "bwrap": ["bwrap", "--ro-bind", "/", "/", "true"],
            "ch-run": ["ch-run", str(site.images / "train"), "--", "ls"],
            "podman": ["podman", "info"],
        }[name]
        done = subprocess.run(
            site.as_user(probe), capture_output=True, text=True, timeout=allow(60.0), cwd="/", check=False
        )
        if done.returncode:
            pytest.skip(f"{name} cannot run as {site.user}: {done.stderr[-200:]}")

    return check


# Rootless Podman's crun refuses a host with both versions of cgroups; there the tests see only version 2.
ONLY_CGROUP2 = (
    'mount --make-rprivate / && umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
)
CONTAINERS_CONF = """[containers]
cgroups = "disabled"
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@pytest.fixture(scope="module")
def podman_sites() -> Iterator[list[Site]]:
    """The sites whose user's Podman has images; their storage is emptied after the last test of the file."""
    sites: list[Site] = []
    yield sites
    for site in sites[:1]:
        reset = site.as_user(["podman", "system", "reset", "-f"])
        subprocess.run(reset, capture_output=True, timeout=allow(60.0), cwd="/", check=False)


@pytest.fixture
def podman(site: Site, need: Callable[[str], None], podman_sites: list[Site]) -> Site:
    """A site whose user has the image `train` in Podman's storage."""
    if os.geteuid() == 0 and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        site.cgroups = ("unshare", "--mount", "sh", "-c", ONLY_CGROUP2, "sh")
    site.environ["XDG_RUNTIME_DIR"] = f"{site.home}/run"
    if podman_sites:
        return site
    settings = site.home / ".config/containers/containers.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(CONTAINERS_CONF)
    site._give(site.home)
    need("podman")
    podman_sites.append(site)
    archive = site.home / "train.tar"
    subprocess.run(["tar", "-C", str(site.images / "train"), "-cf", str(archive), "."], check=True)
    load = ["podman", "import", "--change", "ENV=PYTHONPATH=/opt/lib", str(archive), "train"]
    done = subprocess.run(
        site.as_user(load), capture_output=True, text=True, timeout=allow(120.0), cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return site
