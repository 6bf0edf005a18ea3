"""Programs that a batch script starts, found without running it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.prerun.static.entry_points import list_entry_points
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import EntryPoint

SCRIPT = """#!/bin/bash
#SBATCH -N2
set -euo pipefail
source venv/bin/activate
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
CFG="configs/a.yaml"   # which
nodes=( $(scontrol show hostnames) )
cat <<EOT
python not_this.py
EOT
srun --nodes=2 -n 2 \\
   torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 \\
   train.py --cfg $CFG --out "$SCRATCH/x" "$@" 2>&1 | tee log.txt
"""


def find_entries(script: str, *args: str, **environ: str) -> tuple[EntryPoint, ...]:
    return list_entry_points(script, "/w", args, environ)


def find_single_entry(line: str, *args: str, **environ: str) -> EntryPoint:
    entries = find_entries(line, *args, **environ)
    assert len(entries) == 1
    return entries[0]


def test_a_typical_script_starts_one_program() -> None:
    assert find_entries(SCRIPT, "--lr", "0.1") == (
        EntryPoint(
            kind="torchrun",
            path="/w/train.py",
            argv=("--cfg", "configs/a.yaml", "--out", f"{UNKNOWN}/x", "--lr", "0.1"),
            line=11,
            certain=True,
            interpreter="",
            cwd="/w",
            search=f"/w/venv/bin:{UNKNOWN}",
            whole=(
                *("srun", "--nodes=2", "-n", "2", "torchrun", "--nnodes", UNKNOWN, "--nproc_per_node", "8"),
                *("train.py", "--cfg", "configs/a.yaml", "--out", f"{UNKNOWN}/x", "--lr", "0.1"),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("line", "kind", "path", "argv"),
    [
        ("python train.py a 'b c'", "python", "/w/train.py", ("a", "b c")),
        ("/v/bin/python3.11 -u -W ignore sub/train.py", "python", "/w/sub/train.py", ()),
        ("./train.py --x", "python", "/w/train.py", ("--x",)),
        ("exec python ../train.py", "python", "/train.py", ()),
        ("A=1 B=2 nohup env C=3 timeout -k 5 60m numactl -N 0 python a.py &", "python", "/w/a.py", ()),
        ("srun -l -N4 --container-image=i python a.py", "python", "/w/a.py", ()),
        ("mpirun -np 8 -x A python a.py", "python", "/w/a.py", ()),
        ("apptainer exec --nv -B /d:/d image.sif python a.py", "python", "/w/a.py", ()),
        ("conda run -n env python a.py", "python", "/w/a.py", ()),
        ("uv run --with torch a.py", "python", "/w/a.py", ()),
        ("python -m torch.distributed.run --nnodes 2 --nproc-per-node=8 a.py x", "torchrun", "/w/a.py", ("x",)),
        ("accelerate launch --num_processes 8 --use_fsdp a.py --n 1", "accelerate", "/w/a.py", ("--n", "1")),
        ("deepspeed --num_gpus 8 a.py --deepspeed c.json", "deepspeed", "/w/a.py", ("--deepspeed", "c.json")),
        ('torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=$N a.py', "torchrun", "/w/a.py", ()),
        ("torchrun $OPTIONS a.py x", "torchrun", "/w/a.py", ("x",)),
        ("$CONDA_PREFIX/bin/python a.py", "python", "/w/a.py", ()),
        ("bash -e run.sh 1", "shell", "/w/run.sh", ("1",)),
        ("time { python a.py; }", "python", "/w/a.py", ()),
        ("cd sub && python a.py", "python", "/w/sub/a.py", ()),
        ('D=data; python a.py $D/x ${D} "${D}/a b"', "python", "/w/a.py", ("data/x", "data", "data/a b")),
    ],
)
def test_programs_behind_launchers_and_wrappers_are_found(
    line: str, kind: str, path: str, argv: tuple[str, ...]
) -> None:
    entry = find_single_entry(line)
    assert (entry.kind, entry.path, entry.argv) == (kind, path, argv)


@pytest.mark.parametrize(
    "line",
    [
        "if [ -f x ]; then python a.py; fi",
        "for i in 1 2; do python a.py; done",
        "main() { python a.py; }",
        "[ -f x ] && python a.py",
        "true || python a.py",
        "case $1 in a) python a.py;; esac",
        "(python a.py)",
        "git clone x . ; python a.py",
        "cat > a.py <<E\nx\nE\npython a.py",
        "cd $WHERE; python /w/a.py",
        "srun --container-image=i python a.py",
        "python ${SCRIPT:-a.py}",
    ],
)
def test_programs_that_may_not_run_or_may_be_created_later_are_not_certain(line: str) -> None:
    entry = find_single_entry(line)
    assert (entry.path, entry.certain) == ("/w/a.py", False)


@pytest.mark.parametrize(
    "line",
    [
        "echo python a.py",
        "# python a.py",
        "python --version",
        "exit 0; python a.py",
        "bash -c 'python a.py'",
        "torchrun --no-python bash a.sh",
        "$UNSET a.py",
        "for f in *.py; do echo $f; done",
        "x=$(python a.py)",
        "accelerate config",
        "'unclosed",
        '"$(',
        "",
    ],
)
def test_lines_without_a_python_file_give_no_entry_point(line: str) -> None:
    assert find_entries(line) == ()


def test_environment_variables_are_known_and_slurm_variables_are_unknown() -> None:
    entry = find_single_entry("python $CODE/a.py $SLURM_JOB_ID $HOME", CODE="/code", HOME="/h", SLURM_JOB_ID="3")
    assert (entry.path, entry.argv) == ("/code/a.py", (UNKNOWN, "/h"))


def test_the_default_value_of_an_unset_variable_is_the_interpreter() -> None:
    assert find_single_entry('srun "${PYTHON:-python}" a.py').interpreter == "python"
    assert find_single_entry('srun "${PYTHON:-python}" a.py', PYTHON="/v/python").interpreter == "/v/python"


def test_a_module_in_the_job_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").touch()
    (entry,) = list_entry_points("python -m pkg.train --x 1", str(tmp_path), ())
    assert (entry.kind, entry.path, entry.argv) == ("module", str(tmp_path / "pkg/train.py"), ("--x", "1"))
    (other,) = list_entry_points("python -m pytest", str(tmp_path), ())
    assert (other.kind, other.path) == ("module", "")


@given(st.text(alphabet="ab$(){}[]\"'`\\\n;&|<>#= pythonifdo.*-@", max_size=200))
def test_any_text_is_read_without_an_exception(script: str) -> None:
    for entry in find_entries(script):
        assert entry.line >= 1


@pytest.mark.parametrize("piece", ["$(", "${", "{", "((", '"', "'", "`", "<<E\n", "if ", "\\\n", "a=(", ">"])
def test_a_large_script_is_read_to_its_end(piece: str) -> None:
    assert all(entry.line >= 1 for entry in find_entries(piece * (60_000 // len(piece))))


@pytest.mark.parametrize(("line", "directory"), [("cd sub", "/w/sub"), ("pushd sub", ""), ("cd", "")])
def test_the_directory_is_known_only_after_cd_with_a_directory_name(line: str, directory: str) -> None:
    assert find_single_entry(f"{line}\npython train.py\n").cwd == directory
