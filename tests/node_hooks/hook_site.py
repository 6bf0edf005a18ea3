"""A node and a controller in one directory: real hooks, run with the environment that Slurm gives them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import SLOWNESS, allow

from slurmwrap.host.hook_archive import HookFiles, InstalledHookSettings, install
from slurmwrap.model.observation import Observation, RejectedEntry
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool

# Measured on slurmctld 22.05.8: /proc/PID/status of an EpilogSlurmctld, SigBlk 0000000000897a27.
SLURMCTLD_BLOCKS = frozenset(signal.Signals(number) for number in (1, 2, 3, 6, 10, 12, 13, 14, 15, 17, 20, 24))
USER = 65534  # "nobody": any uid that is not root's
_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
OLD_PYTHON = next(iter(sorted(_PYENV.glob("3.6.*/bin/python"))), Path("/usr/bin/python3.6"))


@dataclass
class Site:
    """One node `n0` of cluster `lab`, and its controller."""

    root: Path
    munge_socket: str
    files: HookFiles
    blocked: frozenset[signal.Signals] = frozenset()  # signals that the daemon which starts the hooks blocks
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """The user's directory. Files of root are next to it, not in it."""
        return self.root / "work"

    @property
    def kernel_log(self) -> Path:
        return self.root / "kernel-n0"

    @property
    def state(self) -> Path:
        return self.root / "state" / "n0"

    def hook(self, path: Path, expected: int = 0, **changed: str) -> None:
        """Runs a hook as Slurm does; it must end with exit code `expected` and print nothing."""
        environ = {os.fsencode(k): os.fsencode(v) for k, v in {**self.environ, **changed}.items()}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self.blocked)
        try:
            process = subprocess.Popen(
                [path], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdout is not None
        with process.stdout:
            said = process.stdout.read()
        assert (process.wait(), said) == (expected, b"")

    def prolog(self, **changed: str) -> None:
        self.hook(self.files.prolog, **changed)

    def epilog(self, **changed: str) -> None:
        self.hook(self.files.epilog, **changed)

    def epilog_slurmctld(self, **changed: str) -> None:
        self.hook(self.files.epilog_slurmctld, **changed)

    def arrived(self) -> list[Observation | RejectedEntry]:
        """Returns what the reconciler would find in the shared spool, and empties the spool."""
        spool = SealedSpool(self.root / "spool", self.munge_socket, lambda: {"n0": "127.0.0.1"}, {0}, "lab")
        found = list(spool.collect())
        spool.discard(found)
        return [one.item for one in found]

    def end(self) -> None:
        """Removes all marks, so that the sampler of a Prolog without an Epilog ends."""
        for mark in self.root.glob("state/*/*.mark"):
            mark.unlink()

    def recorded(self) -> list[Observation | RejectedEntry]:
        """What the reconciler would find in the controller's directory."""
        return [one.item for one in PlainSpool(self.root / "controller").collect()]

    def logs(self, **changed: str) -> tuple[list[dict[str, object]], str]:
        """Log tails and log_error of one Epilog with the given output patterns."""
        self.epilog(**changed)
        (found,) = self.arrived()
        assert isinstance(found, Observation)
        return found.facts["logs"], found.facts.get("log_error", "")

    def edit(self, path: Path, old: str, new: str) -> None:
        """Changes an installed file, to inject a fault that installation would not make."""
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def deadline(self, path: Path, seconds: int) -> None:
        """Sets the deadline of a shell wrapper, after which it kills the program it runs."""
        text, changed = re.subn(r"(?m)^deadline=\d+$", f"deadline={seconds}", path.read_text())
        assert changed == 1
        path.write_text(text)

    def setting(self, name: str, value: str) -> None:
        """Changes one key of hooks.json."""
        path = self.files.zipapp.with_name("hooks.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def give(path: Path, text: str = "") -> Path:
    """Writes a file that belongs to the user."""
    path.write_text(text)
    os.chown(path, USER, USER)
    return path


def append(path: Path, *lines: str) -> None:
    with path.open("a") as stream:
        stream.writelines(line + "\n" for line in lines)


def add_gpu(site: Site, minor: int, address: str) -> None:
    """Writes the driver's file in /proc for a GPU."""
    directory = site.root / "nvidia-n0" / "gpus" / address
    directory.mkdir(parents=True)
    (directory / "information").write_text(
        f"Model: \t\t NVIDIA A100\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
    )


def only(found: list[Any]) -> Observation:
    (one,) = found
    assert isinstance(one, Observation)
    return one


def run_hooks(site: Site, **changed: str) -> None:
    """Runs Prolog, Epilog and EpilogSlurmctld, each of which must exit 0."""
    for hook in (site.prolog, site.epilog, site.epilog_slurmctld):
        hook(**changed)


def epilog_facts(site: Site, **changed: str) -> dict[str, Any]:
    site.epilog(**changed)
    return dict(only(site.arrived()).facts)


def lengthen_deadlines(site: Site) -> None:
    """Lengthens all deadlines on a slow machine: a hook leaves out of its observation what it has no time for."""
    for shim in (site.files.prolog, site.files.epilog, site.files.epilog_slurmctld):
        site.deadline(shim, round(allow(10)))
    given, patient = site.files.zipapp, site.root / "patient.pyz"
    with zipfile.ZipFile(given) as old, zipfile.ZipFile(patient, "w") as new:
        sources = {item.filename: old.read(item) for item in old.infolist()}
        for name, content in sources.items():
            changed = re.sub(rb"(?m)^(\w*_S(?:, \w+_S)*) = ([\d., ]+)", _lengthen, content)
            if name.endswith(".py"):
                new.writestr(name, changed)
            elif not (name.endswith(".pyc") and b"_S" in sources.get(name[:-1], b"")):
                new.writestr(name, content)
    patient.replace(given)


def _lengthen(found: re.Match[bytes]) -> bytes:
    if found[1] not in (b"DEADLINE_S", b"LOGS_S", b"NVML_S", b"SEND_S", b"MUNGE_S", b"JOURNAL_S", b"READ_S, NVML_S"):
        return found[0]
    return b"%b = %b" % (found[1], b", ".join(b"%.1f" % allow(float(number)) for number in found[2].split(b",")))


def make_site(root: Path, munge_socket: str, python: str) -> Site:
    for name, mode in (("spool", 0o1733), ("controller", 0o700), ("work", 0o700)):
        (root / name).mkdir()
        (root / name).chmod(mode)
    os.chown(root / "work", USER, USER)
    settings = InstalledHookSettings(
        directory=root / "hooks",
        python=python,
        spool=root / "spool",
        controller_dir=root / "controller",
        node_state_dir=root / "state" / "%n",
        cluster="lab",
        munge="/usr/bin/munge",
        munge_socket=munge_socket,
        kernel_log=f"file:{root}/kernel-%n",
        nvidia_proc=f"{root}/nvidia-%n",
        sysfs=f"{root}/sysfs-%n",
    )
    site = Site(root=root, munge_socket=munge_socket, files=install(settings))
    if SLOWNESS > 1.5:
        lengthen_deadlines(site)
    job = {"ID": "41", "UID": str(USER), "GID": str(USER), "USER": "nobody", "RESTART_COUNT": "0", "PARTITION": "gpu"}
    job |= {"WORK_DIR": str(site.work), "STDOUT": f"{site.work}/%j.out", "STDERR": f"{site.work}/%j.out"}
    job |= {"NODELIST": "n[0-1]", "EXIT_CODE": "768", "EXIT_CODE2": "3:0", "DERIVED_EC": "0", "GPUS": "0,1"}
    site.environ = {f"SLURM_JOB_{key}": value for key, value in job.items()}
    site.environ |= {"SLURM_NODELIST": "n[0-1]", "SLURMD_NODENAME": "n0", "SLURM_CLUSTER_NAME": "lab"}
    return site
