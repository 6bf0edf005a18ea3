"""Which Python runs a program, and which modules it can import, found without importing them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from slurmwrap.host.run_command import run
from slurmwrap.prerun.static.entry_points import list_entry_points
from slurmwrap.prerun.static.python_interpreter import find_conda_prefix, find_missing_modules, find_python
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext


def make_context(environ: dict[str, str]) -> StaticContext:
    return StaticContext(script="j", run=run, environ=environ, node_local=("/dev/",), deadline=math.inf)


def find_single_entry(script: str, directory: Path, **environ: str) -> EntryPoint:
    (entry,) = list_entry_points(script, str(directory), (), environ)
    return entry


def find_python_path(script: str, directory: Path, **environ: str) -> str | None:
    python = find_python(find_single_entry(script, directory, **environ), make_context(environ))
    return python.path if python else None


def test_an_activated_environment_comes_before_path(environment: Path, tmp_path: Path) -> None:
    for line in ("python a.py", "srun python -u a.py", "torchrun a.py", "accelerate launch a.py"):
        script = f"source {environment}/bin/activate\n{line}"
        assert find_python_path(script, tmp_path, PATH="/usr/bin:/bin") == f"{environment}/bin/python", line


@pytest.mark.parametrize(
    "script",
    [
        "module load python\npython a.py",
        "eval $(tool)\npython a.py",
        "source setup.sh\npython a.py",
        "conda activate nowhere\npython a.py",
        "if true; then source E/bin/activate; fi\npython a.py",
        "uv run python a.py",
        "apptainer exec x.sif python a.py",
        "srun --container-image=x python a.py",
        "$PYTHON/bin/python a.py",
        "/no/such/python a.py",
    ],
)
def test_an_interpreter_that_cannot_be_determined_is_none(script: str, environment: Path, tmp_path: Path) -> None:
    assert find_python_path(script.replace("E/", f"{environment}/"), tmp_path, PATH=f"{environment}/bin") is None


def test_links_in_the_path_of_an_interpreter_are_not_resolved(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "env").symlink_to(environment)
    assert find_python_path("env/bin/python a.py", tmp_path) == f"{tmp_path}/env/bin/python"


def test_a_conda_environment_is_found_by_name_if_the_name_is_unique(tmp_path: Path) -> None:
    home = tmp_path / "miniconda3" / "envs" / "train"
    (home / "conda-meta").mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "python").write_text("#!/bin/sh\n")
    (home / "bin" / "python").chmod(0o755)
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin"}
    assert find_conda_prefix("train", environ) == str(home)
    assert find_python_path("conda activate train\npython a.py", tmp_path, **environ) == f"{home}/bin/python"
    assert (
        find_python_path("conda run -n train --no-capture-output python a.py", tmp_path, **environ)
        == f"{home}/bin/python"
    )
    (tmp_path / "anaconda3" / "envs" / "train" / "conda-meta").mkdir(parents=True)
    assert find_conda_prefix("train", environ) is None


def test_the_system_python_is_not_certain_to_be_the_same_on_the_node(tmp_path: Path) -> None:
    python = find_python(
        find_single_entry("/usr/bin/env python3 a.py", tmp_path, PATH="/usr/bin:/bin"), make_context({})
    )
    assert python is None or not python.certain


def test_missing_modules_are_found_without_an_import(environment: Path, tmp_path: Path) -> None:
    for name in ("loud", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('touched', 'w').close()\n")
    names = ("loud", "torch", "torhc", "os", "nothing_like_it")
    answer = find_missing_modules(
        names, [str(tmp_path)], f"{environment}/bin/python", make_context({"PYTHONPATH": str(tmp_path)})
    )
    assert answer is not None
    assert (answer.missing, answer.near) == (("torhc", "nothing_like_it"), {"torhc": "torch"})
    assert not (tmp_path / "touched").exists()


def test_missing_modules_are_unknown_if_the_interpreter_does_not_answer(tmp_path: Path) -> None:
    assert find_missing_modules(("x",), [], "/bin/false", make_context({})) is None
    assert find_missing_modules(("x",), [], "/bin/echo", make_context({})) is None
