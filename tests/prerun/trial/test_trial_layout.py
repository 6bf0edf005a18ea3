"""What is laid beside a trial's script, met by real scripts: shims in every way of calling, and what goes past them."""

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


def text(result: TrialResult) -> str:
    return result.logs[0].text


def test_slurms_own_commands_are_left_out_and_feigned(trial: Trial) -> None:
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
    said = [line for line in text(result).splitlines() if "pre-run" not in line]
    assert said == ["Submitted batch job 41", "nodes: n3"]


def test_a_command_of_the_users_runs_in_the_scripts_place(trial: Trial) -> None:
    script = "#!/bin/bash\nexit 9\n"
    result = trial(script, "a", "b c", command='echo "$# $2"; srun -n8 python train.py 9')
    assert (result.layer, result.steps) == ("step", 3)
    assert text(result).splitlines()[0] == "2 b c"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/sh -e", "/bin/dash", "/bin/bash", "/bin/bash -l"])
def test_slurms_commands_are_met_after_path_was_set_anew(trial: Trial, shell: str) -> None:
    script = f"#!{shell}\nexport PATH=/usr/bin:/bin\nsrun -N2 -n8 echo one task\nsbatch next.sh\n"
    result = trial(script, "x", environ={"SLURM_JOB_ID": "41"})
    assert result.refused == ("sbatch next.sh",)
    assert [line for line in text(result).splitlines() if "pre-run" not in line] == [
        "one task",
        "Submitted batch job 41",
    ]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory of Slurm's real commands, which only say that they ran."""
    (tmp_path / "slurm").mkdir()
    for name in ("srun", "sbatch", "scancel", "scontrol", "salloc", "mpirun"):
        (tmp_path / "slurm" / name).write_text('#!/bin/sh\necho "the real ${0##*/} $*"\n')
        (tmp_path / "slurm" / name).chmod(0o755)
    return tmp_path / "slurm"


def test_a_launcher_called_by_its_path_is_met_in_bash(trial: Trial, installed: Path) -> None:
    lines = (
        f"export MPI_HOME={installed}",
        "$MPI_HOME/mpirun -np 16 echo one rank",
        "${MPI_HOME}/srun -n 8 echo one task",
        f"id=$({installed}/sbatch --parsable next.sh)",
        'f() { "$MPI_HOME"/scontrol requeue 5 | cat; }; f; echo "$id"',
    )
    result = trial("#!/bin/bash\nset -euo pipefail\n" + "\n".join(lines) + "\n", environ={"SLURM_JOB_ID": "41"})
    assert [line for line in text(result).splitlines() if "pre-run" not in line] == ["one rank", "one task", "41"]
    assert result.refused == ("sbatch --parsable next.sh", "scontrol requeue 5")


def namespaces_work() -> bool:
    return subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not namespaces_work(), reason="this kernel gives no user namespace")
def test_with_a_namespace_no_way_of_calling_slurm_goes_past_the_shims(trial: Trial, installed: Path) -> None:
    s = installed
    lines = (
        f"env -i {s}/sbatch a",
        f"timeout 5 {s}/srun -n 8 echo one task",
        f"env -i PATH={s} scancel 5",
        f"python3 -c \"import os; os.execv('{s}/scontrol', ['scontrol', 'requeue', '5'])\"",
        f"{s}/scontrol show job 5",
    )
    environ = {"PATH": f"{Path(sys.executable).parent}:{s}:/usr/bin:/bin"}
    result = trial("#!/bin/sh\n" + "\n".join(lines) + "\n", environ=environ)
    assert result.refused == ("sbatch a", "scancel 5", "scontrol requeue 5")
    assert [line for line in text(result).splitlines() if "pre-run" not in line] == [
        "Submitted batch job 0",
        "one task",
        "the real scontrol show job 5",
    ]


def test_what_goes_past_the_shims_meets_a_reservation_that_does_not_exist(trial: Trial) -> None:
    result = trial("#!/bin/sh\necho $SBATCH_RESERVATION $SALLOC_RESERVATION $SCANCEL_NAME\n")
    assert text(result) == "slurmwrap-prerun slurmwrap-prerun slurmwrap-prerun\n"


def test_where_shims_cannot_be_run_nothing_is(make_spec: Callable[..., TrialSpec]) -> None:
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
        ("#!/bin/bash\n/usr/bin/scontrol requeue 5\n", False),  # a function stands in its place
    ],
)
def test_without_a_namespace_a_script_that_changes_jobs_by_path_is_not_run(
    make_spec: Callable[..., TrialSpec], script: str, refused: bool
) -> None:
    assert bool(find_unshimmed_call(make_spec(script))) is refused


def test_a_script_out_of_reach_is_not_started(trial: Trial) -> None:
    result = trial("#!/bin/sh\necho started\n/usr/bin/scontrol requeue 5\n", overlay="off")
    assert (result.layer, result.logs) == ("supervisor", ())
    assert result.error.startswith("would call '/usr/bin/scontrol requeue'")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/usr/bin/env python3\n", ("/usr/bin/env", "python3", "SCRIPT", "a")),
        ("#! /bin/bash -l -e\n", ("/bin/bash", "-l -e", "SCRIPT", "a")),  # the kernel gives one argument
        ("#!/bin/sh -e\n", ("/bin/sh", "-e", "-c", '. TRIAL/shims/sh_env.sh; . "$0"', "SCRIPT", "a")),
        ("#!/bin/sh -c\n", ("/bin/sh", "-c", "SCRIPT", "a")),
    ],
)
def test_a_script_is_started_as_the_kernel_would(
    make_spec: Callable[..., TrialSpec], script: str, words: tuple[str, ...]
) -> None:
    spec = make_spec(script, "a")
    told = tuple(
        word.replace(spec.script, "SCRIPT").replace(spec.trial_dir, "TRIAL") for word in make_command_line(spec)
    )
    assert told == words


@pytest.mark.parametrize("script", ["echo no line\n", "#!\n"])
def test_a_script_without_an_interpreter_is_named(make_spec: Callable[..., TrialSpec], script: str) -> None:
    spec = make_spec(script)
    with pytest.raises(ValueError, match=spec.script):
        make_command_line(spec)
