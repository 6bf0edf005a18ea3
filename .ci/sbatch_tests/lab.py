"""A slurmwrap lab as a place for tests: one lab for all tests, restored after each."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from sbatch_tests.place import VENV, Place, Settings
from sbatch_tests.suite import SYSTEM_PATH

_SETTLED_S = 60


class Lab(Place):
    """A lab from `slurmwrap lab up`, with additional lines in slurm.conf that some tests need."""

    def __init__(self, settings: Settings, number: int) -> None:
        super().__init__(settings, number)
        self.lab = self.home / "lab"
        self.slurm_conf = self.lab / "etc" / "slurm.conf"
        self.conf_text = b""

    def up(self) -> None:
        if not self.suite.exists():
            self.lay_out()
        self._slurmwrap("up", "--base-port", str(self.port), "--no-reconcile", *self.settings.lab_options)
        if self.settings.conf:
            self._configure()
        self.conf_text = self.slurm_conf.read_bytes()

    def down(self) -> None:
        if (self.lab / "lab.json").exists():
            self._slurmwrap("down")

    def settle(self) -> None:
        """Restore the lab: no job, every node idle, the original configuration. If that fails, start a new lab."""
        deadline = time.monotonic() + _SETTLED_S
        if self.slurm_conf.read_bytes() != self.conf_text:
            self.slurm_conf.write_bytes(self.conf_text)
            self._tool("scontrol", "reconfigure")
        while time.monotonic() < deadline:
            jobs = set(self._tool("squeue", "-h", "-a", "-o", "%A").split())
            away = [node for node, state in self._nodes() if state != "idle"]
            if not jobs and not away:
                return
            if jobs:
                self._tool("scancel", *jobs)
            for node in away:
                self._tool("scontrol", "update", f"NodeName={node}", "State=RESUME")
            time.sleep(0.5)
        self.down()
        self.up()

    def more_environ(self) -> dict[str, str]:
        return {"SLURMWRAP_CONFIG": f"{self.lab}/etc/slurmwrap/config.toml"}

    def _configure(self) -> None:
        """Set the additional lines and restart slurmctld, because `scontrol reconfigure` does not apply all of them."""
        given = [f"{name}={value}" for name, value in self.settings.conf]
        names = tuple(f"{name}=" for name, _ in self.settings.conf)
        kept = [line for line in self.slurm_conf.read_text().splitlines() if not line.startswith(names)]
        self.slurm_conf.write_text("\n".join([*given, *kept, ""]))
        process = Path("/proc") / (self.lab / "slurmctld" / "slurmctld.pid").read_text().strip()
        argv, environ = ((process / name).read_text().split("\0")[:-1] for name in ("cmdline", "environ"))
        os.kill(int(process.name), signal.SIGTERM)
        while (process / "exe").exists():
            time.sleep(0.1)
        subprocess.Popen(
            argv, env=dict(entry.split("=", 1) for entry in environ), stderr=subprocess.DEVNULL, start_new_session=True
        )
        while "is UP" not in self._tool("scontrol", "ping"):
            time.sleep(0.2)
        self._tool("scontrol", "reconfigure")

    def _slurmwrap(self, *words: str) -> None:
        argv = [str(VENV / "slurmwrap"), "lab", words[0], "--dir", str(self.lab), *words[1:]]
        subprocess.run(argv, check=True, timeout=180, stdout=subprocess.DEVNULL)

    def _tool(self, *argv: str) -> str:
        environ = {"PATH": SYSTEM_PATH, "SLURM_CONF": str(self.slurm_conf)}
        try:
            return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30).stdout
        except subprocess.TimeoutExpired:
            return ""

    def _nodes(self) -> list[tuple[str, str]]:
        rows = [line.split() for line in self._tool("sinfo", "-h", "-a", "-N", "-o", "%N %T").splitlines()]
        return [(row[0], row[1]) for row in rows] or [("ALL", "unknown")]
