"""A place where tests run: a Slurm, a copy of the suite, and one of the two programs under the name sbatch."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sbatch_tests.outcomes import ARMS, Outcome, of_expect, of_pytest
from sbatch_tests.suite import SYSTEM_PATH, config_h, copy_suite, globals_local, testsuite_conf

VENV = Path(sys.executable).parent
PORTS = 20  # ports reserved for each place


class Stopped(Exception):
    """Raised after Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the command line."""

    suite: Path
    directory: Path
    base_port: int
    lab_options: tuple[str, ...] = ()
    conf: tuple[tuple[str, str], ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    user: str = "root"
    other_user: str = ""
    limit_s: int = 600
    auto_config: bool = False


class Place(ABC):
    """Base class of both kinds of places: folders, environment, and how a test is started and ended."""

    slurm_conf: Path
    pytest_options: tuple[str, ...] = ()

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings = settings
        self.home = settings.directory / f"at{number}"
        self.port = settings.base_port + number * PORTS
        self.suite = self.home / "testsuite"
        self.account = pwd.getpwnam(settings.user)
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped = False

    @abstractmethod
    def up(self) -> None:
        """Prepare the place for a test."""

    @abstractmethod
    def down(self) -> None:
        """End all processes of the place."""

    @abstractmethod
    def settle(self) -> None:
        """Restore the place after a test."""

    def wrapped(self, argv: Sequence[str]) -> Sequence[str]:
        """Return the command line that starts a test."""
        return argv

    def run(self, test: str, arm: str, attempt: int) -> list[Outcome]:
        """Run one test file with one of the two programs and return the outcomes. Raise Stopped after `stop`."""
        if self.stopped:
            raise Stopped
        log = self.settings.directory / "log" / arm / f"{test}.{attempt}"
        log.parent.mkdir(parents=True, exist_ok=True)
        found = self._python(test, arm, log) if test.endswith(".py") else self._expect(test, arm, log)
        self.settle()
        return found

    def stop(self) -> None:
        """End the running test; no further test is started."""
        self.stopped = True
        if self.child:
            _end(self.child)

    def lay_out(self) -> None:
        """Copy the suite, and make for each program a folder in which it is named sbatch."""
        copy_suite(self.settings.suite, self.suite, self.home / "tmp")
        for folder in ("home", "tmp", *ARMS):
            (self.home / folder).mkdir()
        programs = {"sbatch": shutil.which("sbatch", path=SYSTEM_PATH), "gsub": VENV / "gsub"}
        for arm in ARMS:
            (self.home / arm / "sbatch").symlink_to(str(programs[arm]))
            (self.home / arm / "globals.local").write_text(globals_local(self._globals(arm)))
        (self.home / "testsuite.conf").write_text(testsuite_conf(self.home, self.slurm_conf))
        (self.home / "config.h").write_text(config_h())
        for tree in (self.suite, self.home / "home", self.home / "tmp"):
            for path in (tree, *tree.rglob("*")):
                os.chown(path, self.account.pw_uid, self.account.pw_gid, follow_symlinks=False)

    def _globals(self, arm: str) -> dict[str, object]:
        here = ("src_dir", "build_dir")
        return {
            "slurm_dir": "/usr",
            **dict.fromkeys(here, self.home),
            "config_h": self.home / "config.h",
            "sbatch": self.home / arm / "sbatch",
            "max_job_delay": 60,
            "testsuite_user": self.settings.other_user,
        }

    def _expect(self, test: str, arm: str, log: Path) -> list[Outcome]:
        code = self._start(["expect", test], self.suite / "expect", arm, log)
        return [of_expect(test, code, log.read_text("utf-8", "replace"))]

    def _python(self, test: str, arm: str, log: Path) -> list[Outcome]:
        report = log.with_name(f"{log.name}.xml")
        report.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--junitxml={report}"]
        code = self._start([*argv, *self.pytest_options, f"tests/{test}"], self.suite / "python", arm, log)
        if not report.exists():
            return [Outcome(test, "fail", f"pytest ended with {code}")]
        return of_pytest(test, report.read_bytes())

    def _start(self, argv: Sequence[str], cwd: Path, arm: str, log: Path) -> int:
        """Run a test in a new session, whose processes end with it."""
        other = self.settings.user != "root"
        with log.open("wb") as out:
            self.child = child = subprocess.Popen(
                self.wrapped(argv), cwd=cwd, env=self._environ(arm), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True, user=self.account.pw_uid if other else None,
                group=self.account.pw_gid if other else None, extra_groups=[] if other else None,
            )  # fmt: skip
            try:
                return child.wait(self.settings.limit_s) % 256
            except subprocess.TimeoutExpired:
                out.write(f"\nError: took more than {self.settings.limit_s} s\n".encode())
                return 1
            finally:
                _end(child)
                child.wait()

    def _environ(self, arm: str) -> dict[str, str]:
        return {
            "PATH": f"{self.home}/{arm}:{SYSTEM_PATH}",
            "HOME": f"{self.home}/home",
            **dict.fromkeys(("USER", "LOGNAME"), self.settings.user),
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.slurm_conf),
            "SLURM_LOCAL_GLOBALS_FILE": f"{self.home}/{arm}/globals.local",
            "SLURM_TESTSUITE_CONF": f"{self.home}/testsuite.conf",
            "PYTEST_DEBUG_TEMPROOT": f"{self.home}/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.more_environ(),
            **dict(self.settings.environ),
        }

    def more_environ(self) -> dict[str, str]:
        """Return the variables that this kind of place adds."""
        return {}


def _end(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
