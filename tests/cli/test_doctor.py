"""slurmwrap doctor: what it says of a machine without Slurm, of broken settings, and of a check that fails itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap.cli.doctor.check import FAIL, OK, SKIP, WARN, Check, Ground, worst
from slurmwrap.cli.doctor.command import EXIT, examine, tell
from slurmwrap.config import Config
from slurmwrap.report.tell import plain
from slurmwrap.slurm.commands import SlurmCommands


def doctor(home: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    base = {"HOME": str(home), "PATH": "/nonexistent", "SLURMWRAP_CONFIG": str(home / "none.toml")}
    run = "from slurmwrap.cli.slurmwrap import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run, "doctor", *words],
        capture_output=True,
        text=True,
        env={**base, **environ},
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def checks(home: Path, **environ: str) -> tuple[int, dict[str, tuple[str, str]]]:
    code, out, err = doctor(home, "--json", **environ)
    assert err == ""
    told = json.loads(out)
    assert EXIT[told["state"]] == code
    return code, {one["name"]: (one["state"], one["text"]) for one in told["checks"]}


def test_without_slurm_it_says_what_is_missing(tmp_path: Path) -> None:
    code, found = checks(tmp_path)
    assert code == 2
    assert found["commands"] == (FAIL, "not on PATH: sbatch, scontrol, squeue, scancel, sinfo")
    assert found["sbatch"] == (FAIL, "sbatch is not on PATH")
    assert found["controller"][0] == FAIL
    assert found["adapter"] == (SKIP, "Slurm does not answer")
    assert found["accounting"] == (SKIP, "Slurm does not answer")
    assert found["munge"][0] == FAIL
    assert found["configuration"] == (OK, "defaults: there is no file")
    assert found["site"] == (SKIP, "not configured: everybody's own jobs only")


def test_a_slurm_conf_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "slurm.conf"
    code, found = checks(tmp_path, SLURM_CONF=str(missing), PATH=os.environ["PATH"])
    assert code == 2
    assert found["slurm.conf"] == (FAIL, f"SLURM_CONF={missing} cannot be read")


def test_a_damaged_database_and_a_missing_spool_are_found(tmp_path: Path) -> None:
    state = tmp_path / ".local" / "state" / "slurmwrap"
    state.mkdir(parents=True)
    (state / "user.db").write_bytes(b"scrambled eggs" * 500)
    (tmp_path / "none.toml").write_text('[site]\nspool = "/nonexistent/spool"\n')
    _, found = checks(tmp_path)
    assert found["database"] == (FAIL, f"database {state}/user.db is damaged")
    assert found["site"] == (FAIL, "no directory: site.spool: /nonexistent/spool")
    assert found["configuration"] == (OK, str(tmp_path / "none.toml"))


def test_a_configuration_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text('[slurm]\nadapter = "pyslrum"\n')
    code, out, err = doctor(tmp_path)
    assert (code, out) == (78, "")
    assert "slurm.adapter must be one of auto, commands, pyslurm, not 'pyslrum'" in err


def test_for_people_there_is_a_line_for_each_and_the_way_out_below_it(tmp_path: Path) -> None:
    code, out, err = doctor(tmp_path)
    lines = out.splitlines()
    assert (code, err) == (2, "")
    assert lines[0] == "ok    configuration  defaults: there is no file"
    assert lines[1] == "fail  commands       not on PATH: sbatch, scontrol, squeue, scancel, sinfo"
    assert lines[2] == " " * 21 + "Install Slurm's client commands, or load the site's slurm module."
    assert "\033" not in out


def ground() -> Ground:
    return Ground(config=Config(), environ={}, uid=0, commands=SlurmCommands({"PATH": "/nonexistent"}))


def test_a_check_that_goes_wrong_is_a_failure_and_the_others_go_on() -> None:
    def good(where: Ground) -> Check:
        return Check(name="good", state=OK, text="fine")

    def bad(where: Ground) -> Check:
        raise RuntimeError("no")

    assert examine(ground(), [bad, good]) == (
        Check(name="bad", state=FAIL, text="the check itself failed: RuntimeError: no"),
        Check(name="good", state=OK, text="fine"),
    )


@pytest.mark.parametrize(
    ("states", "wanted"),
    [((), OK), ((SKIP,), OK), ((OK, SKIP, WARN), WARN), ((FAIL, WARN, OK), FAIL)],
)
def test_the_worst_counts_and_what_was_skipped_does_not(states: tuple[str, ...], wanted: str) -> None:
    assert worst([Check(name="x", state=state, text="") for state in states]) == wanted


def test_text_of_others_is_harmless() -> None:
    told = tell([Check(name="x", state=OK, text="cluster '\033[2Jlab'")], plain)
    assert told == "ok    x  cluster '\\x1b[2Jlab'"


def test_a_directory_of_somebody_elses_is_no_place_for_answers(tmp_path: Path) -> None:
    folder = tmp_path / f"slurmwrap-{os.geteuid()}"
    assert checks(tmp_path, TMPDIR=str(tmp_path))[1]["kept answers"][0] == OK
    folder.mkdir(mode=0o700)
    assert checks(tmp_path, TMPDIR=str(tmp_path))[1]["kept answers"] == (OK, str(folder))
    folder.chmod(0o777)
    assert checks(tmp_path, TMPDIR=str(tmp_path))[1]["kept answers"] == (
        WARN,
        f"{folder} is not this user's alone",
    )


def test_completion_is_found_where_it_was_installed(tmp_path: Path) -> None:
    bash = {"SHELL": "/bin/bash"}
    assert checks(tmp_path, **bash)[1]["completion"] == (OK, "bash: not installed")
    run = "from slurmwrap.cli.slurmwrap import main; main()"
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    words = [sys.executable, "-c", run, "completion", "bash", "--install"]
    subprocess.run(words, env=environ, check=True, capture_output=True, timeout=60)
    found = checks(tmp_path, **bash)[1]["completion"]
    assert found == (OK, f"bash: {tmp_path}/.local/share/bash-completion/completions/gsub")
