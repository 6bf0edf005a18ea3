"""More programs of batch scripts: inline programs, scripts that start scripts, and the Python of each program."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.prerun.static.entry_points import list_entry_points
from slurmwrap.prerun.static.search_path import CONDA
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import EntryPoint


def find_single_entry(script: str, *args: str, **environ: str) -> EntryPoint:
    (entry,) = list_entry_points(script, "/w", args, environ, lambda path: None)
    return entry


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [
        ("true\npython - <<'EOF'\nimport os\nEOF\n", "import os\n", 3),
        ("python <<EOF | tee log\nprint(1)\nEOF\n", "print(1)\n", 2),
        ("python3 -u - a b <<-EOF\n\tprint(1)\n\tEOF\n", "print(1)\n", 2),
        ("srun -n1 \\\n  python -c 'import os\nprint(os)'", "import os\nprint(os)", 2),
        ('X=3; python -c "print($X)"', "print(3)", 1),
    ],
)
def test_an_inline_program_has_its_code_and_first_line(script: str, code: str, line: int) -> None:
    entry = find_single_entry(script)
    assert (entry.code, entry.code_line, entry.path) == (code, line, "")


@pytest.mark.parametrize(
    "script",
    ["python - <<EOF\nprint($X)\nEOF\n", 'python -c "$CODE"', "cat x | python -", "python - <<'EOF'\nprint(1)\n"],
)
def test_an_inline_program_with_unknown_text_gives_no_entry_point(script: str) -> None:
    assert list_entry_points(script, "/w", (), {}) == ()


@pytest.mark.parametrize(
    ("script", "argv"),
    [
        ("srun bash -c 'python a.py --x 1'", ("--x", "1")),
        ('V="--x 1"; bash -c "python a.py $V"', ("--x", "1")),
        ("sh -ec 'cd /w; exec python a.py'", ()),
        ("bash -c 'python a.py \"$1\"' name value", ("value",)),
        ("docker run --gpus all -v a:b image python a.py --y", ("--y",)),
        ("ls | xargs -n 1 python a.py --x", ("--x", UNKNOWN)),
        ("python < a.py", ()),
        ("python -u - --x < a.py", ("--x",)),
        ('f() { python a.py "$@"; }', (UNKNOWN,)),
        ("shift; python a.py $1", (UNKNOWN,)),
        ('D="--lr 3 --n $SLURM_NNODES"; python a.py $D', ("--lr", "3", "--n", UNKNOWN)),
        ("python $(pwd)/a.py", ()),
    ],
)
def test_programs_inside_other_commands_are_found(script: str, argv: tuple[str, ...]) -> None:
    entry = find_single_entry(script, "given")
    assert (entry.path, entry.argv) == ("/w/a.py", argv)


def test_a_started_script_is_read_with_its_arguments(tmp_path: Path) -> None:
    texts = {"/w/run.sh": "cd sub\nsrun python a.py $1\n", "/w/deep.sh": "./deep.sh\n"}
    (shell, entry) = list_entry_points("bash run.sh 7\n", "/w", (), {}, texts.get)
    assert (shell.kind, entry.path, entry.argv, entry.line, entry.file) == (
        "shell",
        "/w/sub/a.py",
        ("7",),
        2,
        "/w/run.sh",
    )
    assert len(list_entry_points("./deep.sh", "/w", (), {}, texts.get)) < 10


@pytest.mark.parametrize(
    ("script", "search"),
    [
        ("python a.py", "/usr/bin"),
        ("source /v/bin/activate; python a.py", "/v/bin:/usr/bin"),
        (". v/bin/activate\npython a.py", "/w/v/bin:/usr/bin"),
        ("export PATH=/x/bin:$PATH; python a.py", "/x/bin:/usr/bin"),
        ("conda activate e; python a.py", f"{CONDA}e:/usr/bin"),
        ("conda run -n e python a.py", f"{CONDA}e:/usr/bin"),
        ("module load x; python a.py", UNKNOWN),
        ("module list; python a.py", "/usr/bin"),
        ("module load x; source /v/bin/activate; python a.py", f"/v/bin:{UNKNOWN}"),
        ("if true; then source /v/bin/activate; fi; python a.py", UNKNOWN),
        ("uv run a.py", UNKNOWN),
    ],
)
def test_the_search_path_reflects_the_commands_of_the_script(script: str, search: str) -> None:
    assert find_single_entry(script, PATH="/usr/bin").search == search


@pytest.mark.parametrize(
    ("script", "modules"),
    [
        ("python a.py", ""),
        ("export PYTHONPATH=src; python a.py", "src"),
        ("PYTHONPATH=src:$PYTHONPATH python a.py", "src:"),
        ("PYTHONPATH=src true; python a.py", ""),
        ("source setup.sh; python a.py", UNKNOWN),
        ("export PYTHONPATH=$(tool):src; python a.py", f"{UNKNOWN}:src"),
    ],
)
def test_pythonpath_reflects_the_commands_of_the_script(script: str, modules: str) -> None:
    assert find_single_entry(script).modules == modules


def test_visible_devices_that_a_command_prints_are_unknown() -> None:
    assert find_single_entry("CUDA_VISIBLE_DEVICES=0,1 python a.py").devices == "0,1"
    assert find_single_entry("CUDA_VISIBLE_DEVICES=$(pick) python a.py").devices is None


def test_a_script_that_installs_packages_is_marked() -> None:
    assert find_single_entry("pip install x; python a.py").installs
    assert not find_single_entry("pip list; python a.py").installs
