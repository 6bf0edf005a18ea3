"""The pre-run of every example without Slurm: one task, real PyTorch, the verdict that its README gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.host.run_command import run
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.static import job_inputs, static_stage
from slurmwrap.prerun.static.entry_points import list_entry_points
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge
from slurmwrap.sbatch.job_request import JobRequest, Script

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.sbatch"))

pytestmark = pytest.mark.torch


def get_verdict(directory: Path, script: str, *args: str, gpus: int, **fields: object) -> Verdict:
    """The verdict of `examples/<script>`, submitted from the root of a copy in `directory`."""
    copy = directory / "examples" / script
    shutil.copytree((EXAMPLES / script).parent, copy.parent)
    trial = directory / "trial"
    trial.mkdir(mode=0o700)
    shutil.copy(copy, trial / "slurm_script")
    spec = TrialSpec(
        trial_dir=str(trial),
        script=str(trial / "slurm_script"),
        script_name=script,
        args=args,
        chdir=str(directory),
        time_limit_s=allow(60.0),
        gpus=gpus,
        **fields,  # type: ignore[arg-type]
    )
    environ = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(directory),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_SUBMIT_DIR": str(directory),
        "SLURMD_NODENAME": "localhost",
    }
    return judge(spec, run_trial(spec, environ=environ), diagnose_run)


def test_every_example_has_a_test() -> None:
    assert [
        f"{name}/train.sbatch" for name in ("buggy", "corrupt_input", "ddp", "gpu_fault", "late_bug", "single")
    ] == SCRIPTS


def test_the_static_stage_finds_nothing_in_the_examples() -> None:
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    for script in SCRIPTS:
        content = (EXAMPLES / script).read_bytes()
        source = Script(path=script, name="train.sbatch", content=content)
        request = JobRequest(script=source, chdir=str(EXAMPLES.parent))
        assert static_stage.check(request, run=run, environ=environ, node_local=()) == (), script
        (entry,) = list_entry_points(content.decode(), request.chdir, ())
        assert entry.path == str(EXAMPLES / Path(script).parent / "train.py")


def test_the_bug_in_the_validation_is_found_after_the_steps(tmp_path: Path) -> None:
    assert get_verdict(tmp_path / "steps", "late_bug/train.sbatch", gpus=16).outcome is Outcome.PASS
    found = get_verdict(tmp_path / "rehearsal", "late_bug/train.sbatch", gpus=16, rehearse_s=allow(60.0))
    assert (found.outcome, found.layer) == (Outcome.FAIL, "exit")
    assert found.reason == "examples/late_bug/train.py:31: KeyError: 'total' (after 3 optimizer steps)"


def test_ddp_passes_with_its_measured_needs(tmp_path: Path) -> None:
    found = get_verdict(tmp_path, "ddp/train.sbatch", gpus=16)
    assert (found.outcome, found.layer, found.reason) == (Outcome.PASS, "optimizer", "3 optimizer steps ran on one GPU")
    assert found.measurement is not None
    assert 100 < (found.measurement.mem_peak_mib or 0) < 4000
    assert 0 < (found.measurement.cpus_used or 0) < 8
    assert (found.measurement.steps_per_s or 0) > 0


@pytest.mark.slow  # make test runs it in docs/tutorial.md and README.md, which name the line
def test_buggy_fails_at_the_line_of_its_loss(tmp_path: Path) -> None:
    found = get_verdict(tmp_path, "buggy/train.sbatch", gpus=16)
    line = next(
        n for n, text in enumerate((EXAMPLES / "buggy/train.py").read_text().splitlines(), 1) if "return nn.f" in text
    )
    assert (found.outcome, found.layer, found.category) == (Outcome.FAIL, "exit", "semantic_error")
    assert found.reason == f"examples/buggy/train.py:{line}: RuntimeError: Expected target size [32, 12], got [32, 24]"


@pytest.mark.slow
def test_single_passes_with_loader_workers_and_without_checkpoint(tmp_path: Path) -> None:
    found = get_verdict(tmp_path, "single/train.sbatch", "--save-to", str(tmp_path / "checkpoints"), gpus=1)
    assert (found.outcome, found.steps) == (Outcome.PASS, 3)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_gpu_fault_passes_because_only_its_gpu_is_broken(tmp_path: Path) -> None:
    assert get_verdict(tmp_path, "gpu_fault/train.sbatch", gpus=1).outcome is Outcome.PASS


def test_corrupt_input_fails_because_of_the_file(tmp_path: Path) -> None:
    data = tmp_path / "truncated.pt"  # torch.save writes a zip archive
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", os.urandom(1 << 20))
    os.truncate(data, 700_000)
    found = get_verdict(tmp_path, "corrupt_input/train.sbatch", str(data), gpus=4, inputs=(str(data),))
    assert (found.outcome, found.category, found.input_path) == (Outcome.FAIL, "incorrect_inputs", str(data))
    assert found.input_fault == "is truncated or corrupt: file is not a zip file"
    assert found.input_digest == job_inputs.digest(str(data))


@pytest.mark.slow
def test_corrupt_input_passes_with_the_valid_file_of_its_script(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLES / "corrupt_input/make_data.py"), str(tmp_path)], check=True)
    good, truncated = str(tmp_path / "good.pt"), str(tmp_path / "truncated.pt")
    assert job_inputs.inspect(good) is None
    assert job_inputs.inspect(truncated) is not None
    assert get_verdict(tmp_path, "corrupt_input/train.sbatch", good, gpus=4, inputs=(good,)).outcome is Outcome.PASS
