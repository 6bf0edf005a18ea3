"""The files of a trial, used by real scripts: shims for every way of calling, and calls that bypass them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_layout import find_unshimmed_call, make_command_line
from slurmwrap.prerun.trial.trial_spec import TrialSpec

Trial = Callable[..., TrialResult]


def get_output(result: TrialResult) -> str:
    return result.logs[0].text


def test_slurm_commands_are_skipped_and_their_answers_imitated(trial: Trial) -> None:
    script = """#!/bin/bash
set -e
id=$(sbatch --parsable next.sh)
sbatch next.sh
scancel $id
scontrol requeue $SLURM_JOB_ID
echo "nodes: $(scontrol show hostnames "$SLURM_JOB_NODELIST")"
"""
    result = trial(script, environ={"SLURM_JOB_ID": "41", "SLURMD_NODENAME": "n3"})
    assert result.exit_code == 0
    assert result.refused == ("sbatch --parsable next.sh", "sbatch next.sh", "scancel 41", "scontrol requeue 41")
    lines = [line for line in get_output(result).splitlines() if "pre-run" not in line]
    assert lines == ["Submitted batch job 41", "nodes: n3"]


def test_a_prerun_command_runs_instead_of_the_script(trial: Trial) -> None:
    script = "#!/bin/bash\nexit 9\n"
    result = trial(script, "a", "b c", command='echo "$# $2"; srun -n8 python train.py 9')
    assert (result.layer, result.steps) == ("step", 3)
    assert get_output(result).splitlines()[0] == "2 b c"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/sh -e", "/bin/dash", "/bin/bash", "/bin/bash -l"])
def test_slurm_commands_are_shimmed_after_path_was_reset(trial: Trial, shell: str) -> None:
    script = f"#!{shell}\nexport PATH=/usr/bin:/bin\nsrun -N2 -n8 echo one task\nsbatch next.sh\n"
    result = trial(script, "x", environ={"SLURM_JOB_ID": "41"})
    assert result.refused == ("sbatch next.sh",)
    assert [line for line in get_output(result).splitlines() if "pre-run" not in line] == [
        "one task",
        "Submitted batch job 41",
    ]


@pytest.fixture
def fake_slurm(tmp_path: Path) -> Path:
    """A directory with commands in place of Slurm's; each prints that it ran."""
    (tmp_path / "slurm").mkdir()
    for name in ("srun", "sbatch", "scancel", "scontrol", "salloc", "mpirun"):
        (tmp_path / "slurm" / name).write_text('#!/bin/sh\necho "the real ${0##*/} $*"\n')
        (tmp_path / "slurm" / name).chmod(0o755)
    return tmp_path / "slurm"


def test_a_launcher_called_by_its_path_is_shimmed_in_bash(trial: Trial, fake_slurm: Path) -> None:
    lines = (
        f"export MPI_HOME={fake_slurm}",
        "$MPI_HOME/mpirun -np 16 echo one rank",
        "${MPI_HOME}/srun -n 8 echo one task",
        f"id=$({fake_slurm}/sbatch --parsable next.sh)",
        'f() { "$MPI_HOME"/scontrol requeue 5 | cat; }; f; echo "$id"',
    )
    result = trial("#!/bin/bash\nset -euo pipefail\n" + "\n".join(lines) + "\n", environ={"SLURM_JOB_ID": "41"})
    assert [line for line in get_output(result).splitlines() if "pre-run" not in line] == ["one rank", "one task", "41"]
    assert result.refused == ("sbatch --parsable next.sh", "scontrol requeue 5")


def has_user_namespaces() -> bool:
    return subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_user_namespaces(), reason="this kernel gives no user namespace")
def test_with_a_namespace_no_call_of_slurm_bypasses_the_shims(trial: Trial, fake_slurm: Path) -> None:
    slurm = fake_slurm
    lines = (
        f"env -i {slurm}/sbatch a",
        f"timeout 5 {slurm}/srun -n 8 echo one task",
        f"env -i PATH={slurm} scancel 5",
        f"python3 -c \"import os; os.execv('{slurm}/scontrol', ['scontrol', 'requeue', '5'])\"",
        f"{slurm}/scontrol show job 5",
    )
    environ = {"PATH": f"{Path(sys.executable).parent}:{slurm}:/usr/bin:/bin"}
    result = trial("#!/bin/sh\n" + "\n".join(lines) + "\n", environ=environ)
    assert result.refused == ("sbatch a", "scancel 5", "scontrol requeue 5")
    assert [line for line in get_output(result).splitlines() if "pre-run" not in line] == [
        "Submitted batch job 0",
        "one task",
        "the real scontrol show job 5",
    ]


def test_calls_that_bypass_the_shims_name_a_reservation_that_does_not_exist(trial: Trial) -> None:
    result = trial("#!/bin/sh\necho $SBATCH_RESERVATION $SALLOC_RESERVATION $SCANCEL_NAME\n")
    assert get_output(result) == "slurmwrap-prerun slurmwrap-prerun slurmwrap-prerun\n"


def test_no_script_runs_where_shims_cannot_be_executed(make_spec: Callable[..., TrialSpec]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    spec = make_spec("#!/bin/bash\ntouch ran\n")
    argv = ["mount", "-t", "tmpfs", "-o", "noexec,size=10m", "slurmwrap-test", spec.trial_dir]
    script = Path(spec.script).read_bytes()
    if subprocess.run(argv, capture_output=True).returncode:
        pytest.skip("mounting is not possible here")
    try:
        Path(spec.script).write_bytes(script)
        result = run_trial(spec, environ={"PATH": "/usr/bin:/bin"})
    finally:
        subprocess.run(["umount", "-l", spec.trial_dir], check=True, capture_output=True)
    assert (result.layer, "mounted noexec?" in result.error) == ("supervisor", True)
    assert not Path(spec.chdir, "ran").exists()


@pytest.mark.parametrize(
    ("script", "refused"),
    [
        ("#!/bin/sh\n/usr/bin/scontrol requeue $SLURM_JOB_ID\n", True),
        ("#!/bin/sh\ntrap '/opt/slurm/bin/scontrol --quiet update JobId=5 Nice=3' USR1\n", True),
        ("#!/bin/sh\n/usr/bin/scontrol show hostnames\n", False),
        ("#!/bin/sh\nscontrol requeue 5\n", False),
        ("#!/bin/bash\n/usr/bin/scontrol requeue 5\n", False),  # a shell function replaces it
    ],
)
def test_without_a_namespace_a_script_that_changes_jobs_by_path_is_refused(
    make_spec: Callable[..., TrialSpec], script: str, refused: bool
) -> None:
    assert bool(find_unshimmed_call(make_spec(script))) is refused


def test_a_script_with_a_call_that_bypasses_the_shims_is_not_started(trial: Trial) -> None:
    result = trial("#!/bin/sh\necho started\n/usr/bin/scontrol requeue 5\n", overlay="off")
    assert (result.layer, result.logs) == ("supervisor", ())
    assert result.error.startswith("would call '/usr/bin/scontrol requeue'")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/usr/bin/env python3\n", ("/usr/bin/env", "python3", "SCRIPT", "a")),
        ("#! /bin/bash -l -e\n", ("/bin/bash", "-l -e", "SCRIPT", "a")),  # the kernel passes the rest as one argument
        ("#!/bin/sh -e\n", ("/bin/sh", "-e", "-c", '. TRIAL/shims/sh_env.sh; . "$0"', "SCRIPT", "a")),
        ("#!/bin/sh -c\n", ("/bin/sh", "-c", "SCRIPT", "a")),
    ],
)
def test_a_script_is_started_as_the_kernel_would(
    make_spec: Callable[..., TrialSpec], script: str, words: tuple[str, ...]
) -> None:
    spec = make_spec(script, "a")
    command = tuple(
        word.replace(spec.script, "SCRIPT").replace(spec.trial_dir, "TRIAL") for word in make_command_line(spec)
    )
    assert command == words


@pytest.mark.parametrize("script", ["echo no line\n", "#!\n"])
def test_a_script_without_an_interpreter_is_an_error_with_its_path(
    make_spec: Callable[..., TrialSpec], script: str
) -> None:
    spec = make_spec(script)
    with pytest.raises(ValueError, match=spec.script):
        make_command_line(spec)
