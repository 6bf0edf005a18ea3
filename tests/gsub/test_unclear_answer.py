"""What gsub reports when it is unknown whether sbatch submitted the job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.gsub import gsub_script

SCONTROL = """#!/bin/sh
if [ "$*" = "show node -d -o" ]; then
    echo "NodeName=n0 CPUAlloc=0 CPUTot=32 Gres=gpu:8 RealMemory=256000 AllocMem=0 State=IDLE Partitions=gpu"
    exit
fi
cat > /dev/null
echo "PartitionName=gpu Default=YES Nodes=n0 State=UP MaxNodes=UNLIMITED"
echo "Configuration data as of 5"
echo "ClusterName = c"
"""
LOST = "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received"
UNKNOWN = "it is not known whether the job was submitted\ngsub: look with squeue --me before you try again"


@pytest.mark.parametrize(
    ("sbatch", "code", "said"),
    [
        (f"echo '{LOST}' >&2; exit 1", 1, f"{LOST}\ngsub: Slurm's answer to sbatch was lost: {UNKNOWN}\n"),
        ("kill -KILL $$", -9, f"gsub: sbatch was ended by signal 9: {UNKNOWN}\n"),
        ("echo 'sbatch: error: Invalid account' >&2; exit 1", 1, "sbatch: error: Invalid account\n"),
    ],
)
def test_an_unknown_outcome_of_sbatch_is_reported_with_its_cause(
    tmp_path: Path, sbatch: str, code: int, said: str
) -> None:
    for name, text in {"scontrol": SCONTROL, "sbatch": f"#!/bin/sh\necho >> {tmp_path}/calls\n{sbatch}\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("slurm.conf", "config.toml"):
        (tmp_path / name).touch()
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "SLURMWRAP_CONFIG": str(tmp_path / "config.toml"),
    }
    words = ["--prerun=off", "--no-tune", "--no-place", "--gpus=2", "--wrap=true"]
    argv = [sys.executable, gsub_script.__file__, *words]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=allow(60))
    assert done.stderr == said
    assert (done.returncode, done.stdout) == (code, "")
    assert (tmp_path / "calls").read_text() == "\n"  # sbatch was called once only
