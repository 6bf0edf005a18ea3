"""gsub -M: a job for another cluster goes to sbatch unchanged, and is recorded under the cluster that took it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow

SCRIPT = "#!/bin/sh\n#SBATCH -G2 -J train\nhostname\n"
# Reports what it got; with --parsable it prints the job id as sbatch does.
SBATCH = """#!/bin/sh
echo "$*" >> {folder}/calls
case " $* " in *" --parsable "*) echo "81;west" ;; *) echo "Submitted batch job 81 on cluster west" ;; esac
exit {code}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slurm.conf").touch()
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    _install(tmp_path)
    return tmp_path


def _install(folder: Path, code: int = 0) -> None:
    (folder / "sbatch").write_text(SBATCH.format(folder=folder, code=code))
    (folder / "sbatch").chmod(0o755)


def _run(folder: Path, module: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "HOME": str(folder),
        "SLURM_CONF": str(folder / "slurm.conf"),
        "SLURMWRAP_CONFIG": str(folder / "absent.toml"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        input=stdin, capture_output=True, text=True, env=environ, cwd=folder, timeout=allow(60), check=False,
    )  # fmt: skip


def gsub(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return _run(folder, "slurmwrap.gsub.gsub_main", *words, stdin=stdin)


def find_submission(folder: Path) -> dict[str, object] | None:
    done = _run(folder, "slurmwrap.cli.slurmwrap", "why", "81", "-M", "west", "--json")
    return json.loads(done.stdout)["submission"] if done.returncode == 0 else None


def test_the_call_is_unchanged_one_line_says_why_and_the_record_names_the_cluster(folder: Path) -> None:
    done = gsub(folder, "-M", "west", "--retry", "train.sbatch", "--lr", "1")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 81 on cluster west\n")
    assert done.stderr.splitlines() == [
        "gsub: --clusters may send the job to a cluster that slurmwrap does not see. The call goes to sbatch unchanged."
    ]
    assert (folder / "calls").read_text() == "-M west train.sbatch --lr 1\n"
    found = find_submission(folder)
    assert found is not None
    assert (found["cluster"], found["name"], found["gpus"], found["prerun_mode"]) == ("west", "train", 2, "off")


def test_parsable_output_stays_alone_and_a_script_from_a_pipe_is_read_once(folder: Path) -> None:
    done = gsub(folder, "--parsable", "--cluster=west", stdin=SCRIPT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "81;west\n", "")
    found = find_submission(folder)
    assert found is not None
    assert found["cluster"] == "west"


def test_a_refusal_is_passed_on_and_nothing_is_recorded(folder: Path) -> None:
    (folder / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: no such cluster' >&2\nexit 1\n")
    done = gsub(folder, "-M", "wets", "--quiet", "train.sbatch")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "sbatch: error: no such cluster\n")
    assert find_submission(folder) is None
