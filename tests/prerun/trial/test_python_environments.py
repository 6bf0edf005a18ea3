"""Trials of jobs in conda, virtualenv, uv and module environments: an environment with a Python of its own.

conda, mamba and Lmod are stand-ins that do what their documentation says to PATH and to the variables. uv is real where
it is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Outcome
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

# Shows which Python runs it, and whether counter and shims come first, before it trains.
TRAIN = """
import os, sys, time, onlyhere, torch.optim
first = sys.path[1] if sys.path[0] == os.path.dirname(os.path.abspath(__file__)) else sys.path[0]
print('prefix', sys.prefix, 'counter', os.path.basename(first))
print('shims', os.path.basename(os.environ['PATH'].split(':')[0]))
# A trial ends with the third step: what a pipe has not passed on by then is lost. tee writes its file last.
while os.path.exists('seen') and 'shims' not in open('seen').read():
    time.sleep(0.01)
optimizer = torch.optim.SGD()
for step in range(int(sys.argv[1])):
    print('before step', step + 1)
    optimizer.step()
"""
# `conda shell.bash hook` defines a function; `conda activate` evaluates `export PATH=...; export CONDA_PREFIX=...`.
CONDA_HOOK = """
__conda_exe() { command conda "$@"; }
conda() {
    case "$1" in
        activate) \\export CONDA_PREFIX="$2"; \\export PATH="$2/bin:$PATH"; \\export CONDA_SHLVL=1; \\hash -r ;;
        deactivate) \\unset CONDA_PREFIX ;;
        *) __conda_exe "$@" ;;
    esac
}
"""
# `conda run` writes a script that activates the environment and starts the command, and runs it by the shell.
CONDA = """#!{python}
import os, subprocess, sys, tempfile
words = sys.argv[2:]
assert sys.argv[1] == 'run', sys.argv
while words[0].startswith('-'):
    option = words.pop(0)
    if option in ('-p', '--prefix', '-n', '--name', '--cwd'):
        prefix = words.pop(0)
    else:
        assert option in ('--no-capture-output', '--live-stream', '-s'), option
with tempfile.NamedTemporaryFile('w', suffix='.sh', delete=False) as script:
    script.write('export CONDA_PREFIX={{0}} PATH={{0}}/bin:$PATH\\n'.format(prefix))
    script.write(' '.join("'" + word + "'" for word in words) + '\\n')
sys.exit(subprocess.call(['bash', script.name]))
"""
# Lmod's module is a function that evaluates what its program prints.
MODULE = """
module() {{
    case "$1" in
        load) eval 'export PATH={prefix}/bin:$PATH; export PYTHONPATH={extra}:$PYTHONPATH; export LOADEDMODULES=py/3' ;;
        purge) eval 'unset PYTHONPATH LOADEDMODULES; export PATH=/usr/bin:/bin' ;;
    esac
}}
"""


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment made by `python -m venv`, with a package that only it has."""
    prefix = tmp_path_factory.mktemp("envs") / "train"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    (packages,) = prefix.glob("lib/python*/site-packages")
    (packages / "onlyhere.py").touch()
    return prefix


@pytest.fixture
def places(job: Path, tmp_path: Path, environment: Path) -> dict[str, str]:
    """The places that the scripts of the tests name, and train.py."""
    (job / "train.py").write_text(TRAIN)
    tools, extra = tmp_path / "tools", tmp_path / "extra"
    tools.mkdir()
    extra.mkdir()
    # A site's own start code, which the counter must neither hide nor be hidden by.
    (extra / "sitecustomize.py").write_text("print('site customized')\n")
    for name in ("conda", "micromamba"):
        (tools / name).write_text(CONDA.format(python=sys.executable))
        (tools / name).chmod(0o755)
    (tools / "conda.sh").write_text(CONDA_HOOK)
    (tools / "lmod.sh").write_text(MODULE.format(prefix=environment, extra=extra))
    return {"env": str(environment), "tools": str(tools), "extra": str(extra)}


def run(trial: Callable[..., TrialResult], places: dict[str, str], lines: str, **fields: object) -> TrialResult:
    for name, place in places.items():
        lines = lines.replace("{" + name + "}", place)
    environ = {"PATH": f"{places['tools']}:/usr/bin:/bin"}
    return trial(f"#!/bin/bash\n{lines}\n", environ=environ, **fields)


@pytest.mark.parametrize(
    "lines",
    [
        "source {tools}/conda.sh; conda activate {env}; python train.py 9",
        "source {tools}/conda.sh; conda activate {env}; srun python3 -u train.py 9",
        "conda run -p {env} --no-capture-output python train.py 9",
        "srun conda run --prefix {env} python train.py 9",
        "micromamba run -p {env} python train.py 9",
        "source {env}/bin/activate; python train.py 9",
        "source {env}/bin/activate; deactivate; {env}/bin/python train.py 9",
        "{env}/bin/python train.py 9",
        "PY={env}/bin/python; srun -n4 $PY train.py 9",
        "export PATH={env}/bin:$PATH PYTHONNOUSERSITE=1 PYTHONSAFEPATH=; python train.py 9",
        "source {tools}/lmod.sh; module purge; module load py; python train.py 9",
        "source {tools}/lmod.sh; module load py; srun bash -c 'module load x; python train.py 9'",
        "source {tools}/lmod.sh; export -f module; srun bash -c 'module purge; module load x; python train.py 9'",
        "PYTHONPATH={extra} {env}/bin/python train.py 9",
        "env -u PYTHONPATH {env}/bin/python train.py 9",
        "env PYTHONPATH={extra} {env}/bin/python train.py 9",
        "env PYTHONPATH={extra} A=b {env}/bin/python train.py 9",
        "env -i PATH=$PATH {env}/bin/python -u train.py 9",
        "/usr/bin/env -u PYTHONPATH --chdir=. -- {env}/bin/python3 train.py 9",
        "srun env -C . PATH={env}/bin:$PATH PYTHONPATH= python train.py 9",
        'touch seen; A=b PYTHONPATH="$PWD:{extra}" {env}/bin/python -u train.py 9 | tee -a seen',
        "PYTHONPATH=.; A=1 B=2; X='a b=c' true; export PYTHONPATH=; {env}/bin/python train.py 9",
        "set -e; PY={env}/bin/python; if PYTHONPATH=. A= $PY train.py 9; then echo; fi",
        "{env}/bin/python -s -B train.py 9",
    ],
)
def test_three_steps_are_counted_in_the_environment_that_the_script_chooses(
    trial: Callable[..., TrialResult], places: dict[str, str], lines: str
) -> None:
    result = run(trial, places, lines)
    output = result.logs[0].text
    assert (result.layer, result.steps, result.step_source) == ("step", 3, "optimizer"), output
    assert f"prefix {places['env']} counter inject" in output
    assert "shims shims" in output
    assert ("site customized" in output) is ("module load" in lines or "extra}" in lines)


@pytest.mark.parametrize(
    ("option", "more", "seconds", "ending"),
    [
        ("-E", "", 20.0, "the script ran to its end; no optimizer step was seen; "),
        ("-S", "", 20.0, "the script ran to its end; no optimizer step was seen; "),
        ("-uI", "import time; time.sleep(60)", 2.0, "nothing failed; "),
    ],
)
def test_a_python_that_does_not_load_the_counter_is_named_as_the_reason(
    trial: Callable[..., TrialResult],
    make_spec: Callable[..., TrialSpec],
    places: dict[str, str],
    job: Path,
    option: str,
    more: str,
    seconds: float,
    ending: str,
) -> None:
    (job / "train.py").write_text(f"print('trains')\n{more}\n")
    line = f"{places['env']}/bin/python {option} train.py"
    result = run(trial, places, line, time_limit_s=seconds)
    verdict = judge(make_spec(f"#!/bin/bash\n{line}\n"), result, diagnose_run)
    why = f"with -{option[-1]}, Python does not load the step counter ('{line}"[:60]
    assert ending + why in verdict.reason
    assert verdict.outcome is (Outcome.INCONCLUSIVE if more else Outcome.PASS)


def test_uv_run_counts_in_the_environment_of_the_project(
    trial: Callable[..., TrialResult], places: dict[str, str], job: Path
) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed (pip install uv)")
    (job / "pyproject.toml").write_text('[project]\nname = "train"\nversion = "1"\nrequires-python = ">=3.8"\n')
    (job / ".venv").symlink_to(places["env"])
    result = run(trial, places, f"{uv} run --offline --no-sync python train.py 9")
    assert (result.layer, result.steps) == ("step", 3), result.logs[0].text
