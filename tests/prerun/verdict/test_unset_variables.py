"""Failures by an environment variable that nothing has set: the job's own, unless Slurm or a launcher sets it there."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

OS = ("<frozen os>", 714, "__getitem__", "raise KeyError(key) from None")
JOIN = ("<frozen posixpath>", 76, "join", "a = os.fspath(a)")
NO_PATH = "TypeError: expected str, bytes or os.PathLike object, not NoneType"
NO_NUMBER = "TypeError: int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"


def tb(error: str, *frames: tuple[str, int, str, str]) -> str:
    rows = [f'  File "{file}", line {line}, in {name}\n    {code}\n' for file, line, name, code in frames]
    return "Traceback (most recent call last):\n" + "".join(rows) + error + "\n"


def own(error: str, code: str) -> str:
    return tb(error, ("/w/train.py", 41, "<module>", code))


def judge_output(text: str, gpus: int, source: str = "") -> str:
    spec = TrialSpec(
        trial_dir="/t", script="/t/script", script_name="train.sbatch", chdir="/w", gpus=gpus, nodes=-(-gpus // 8),
        mem_mib=16_000,
    )  # fmt: skip
    result = TrialResult(
        layer="exit", exit_code=1, seconds=20.0, crashed="Traceback" in text,
        logs=(LogTail(name="output", text=text),),
    )  # fmt: skip
    verdict = judge(
        spec, result, diagnose_run, lambda _: None, lambda path: source if source and path == "/w/train.py" else None
    )
    return verdict.outcome.value


def judge_line(error: str, source: str, *frames: tuple[str, int, str, str], gpus: int = 16) -> str:
    """Judge an error in the last line of `source`, which is /w/train.py."""
    rows = source.splitlines()
    text = tb(error, ("/w/train.py", len(rows), "<module>", rows[-1].strip()), *frames)
    return judge_output(text, gpus, source)


@pytest.mark.parametrize("gpus", [1, 8, 16])
@pytest.mark.parametrize(
    "text",
    [
        own("KeyError: 'DATA_ROOT'", "root = os.environ['DATA_ROOT']"),
        "[rank0]: " + "[rank0]: ".join(own("KeyError: 'D'", "root = os.environ['D']").splitlines(keepends=True)),
        tb("KeyError: 'DATA_ROOT'", ("/w/train.py", 4, "f", "p = join(os.environ['DATA_ROOT'], f'shard_{rank}')"), OS),
        tb("KeyError: 'DATA_ROOT'", ("/w/train.py", 4, "f", "setup(os.environ['DATA_ROOT'], world_size)"), OS),
        own("KeyError: 'DATA_PARALLEL_DIR'", "root = os.environ['DATA_PARALLEL_DIR']"),
        "/t/script: line 4: DATA_ROOT: unbound variable\n",
        "/t/script: line 4: SHARD_DIR: unbound variable\n",
        "/t/script: line 4: NUM_GPUS: unbound variable\n",
        "loading\n/t/script: line 4: DATA_ROOT: parameter null or not set\n",
        "/t/script: line 4: DATA_ROOT: set DATA_ROOT first\n",
        "/t/script: 4: DATA_ROOT: parameter not set\n",
        "/t/script:4: DATA_ROOT: parameter not set\n",
        "/t/script[4]: DATA_ROOT: parameter not set\n",
        "DATA_ROOT: Undefined variable.\n",
    ],
)
def test_a_variable_that_neither_slurm_nor_a_launcher_sets_fails_the_job(text: str, gpus: int) -> None:
    assert judge_output(text, gpus) == "fail"


MPI = (
    *("SLURM_STEP_ID", "SLURM_SRUN_COMM_HOST", "SLURMD_TRES_BIND", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"),
    *("MV2_COMM_WORLD_RANK", "I_MPI_HYDRA_HOST", "MPI_LOCALRANKID", "HYDRA_RMK", "HOROVOD_RANK", "PALS_RANKID"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK"),
)
TRAINING = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "NODE_RANK"),
    *("TORCHELASTIC_RUN_ID", "ACCELERATE_NUM_PROCESSES", "GROUP_WORLD_SIZE", "ROLE_RANK"),
)


@pytest.mark.parametrize("name", MPI)
@pytest.mark.parametrize("gpus", [1, 16])
def test_a_variable_of_slurm_or_mpi_proves_nothing(name: str, gpus: int) -> None:
    assert judge_output(own(f"KeyError: '{name}'", f"x = os.environ['{name}']"), gpus) == "inconclusive"
    assert judge_output(f"/t/script: line 4: {name}: unbound variable\n", gpus) == "inconclusive"
    assert judge_output(f"/t/script: 4: {name}: parameter not set\n", gpus) == "inconclusive"
    assert judge_output(f"/t/script: line 4: {name}: start this with srun\n", gpus) == "inconclusive"


@pytest.mark.parametrize("name", TRAINING)
def test_a_variable_of_a_launcher_proves_nothing_about_a_job_with_more_gpus(name: str) -> None:
    # a job on one GPU has the same launchers as its trial
    for gpus, expected in ((1, "fail"), (8, "inconclusive"), (16, "inconclusive")):
        assert judge_output(own(f"KeyError: '{name}'", f"x = os.environ['{name}']"), gpus) == expected
        assert judge_output(f"/t/script: line 4: {name}: unbound variable\n", gpus) == expected
    assert judge_line(NO_NUMBER, f"n = int(os.environ.get('{name}'))\n") == "inconclusive"
    assert judge_line(NO_NUMBER, f"v = os.getenv('{name}')\nn = int(v)\n") == "inconclusive"


@pytest.mark.parametrize(
    ("error", "source", "frames"),
    [
        (NO_PATH, "root = os.getenv('DATA_ROOT')\nopen(os.path.join(root, 'a'))\n", (JOIN,)),
        (NO_PATH, "files = os.path.join(os.environ.get('DATA_ROOT'), 'shards')\n", (JOIN,)),
        (NO_PATH, "root = os.getenv('R')\nds = load(os.path.join(root, 'a'), world_size=world_size)\n", (JOIN,)),
        (NO_PATH, "root = Path(os.environ.get('DATA_ROOT', None)) / f'rank{rank}'\n", ()),
        (NO_NUMBER, "n = int(os.environ.get('N_EPOCHS')) * world_size\n", ()),
        (NO_NUMBER, "v = os.getenv('N_EPOCHS')\nn = int(v)\n", ()),
        ('TypeError: can only concatenate str (not "NoneType") to str', "r = os.getenv('D')\nu = '/x/' + r\n", ()),
        ("AttributeError: 'NoneType' object has no attribute 'split'", "r = os.getenv('D')\nd = r.split(':')\n", ()),
        ("KeyError: 'DATA_ROOT'", "rank = int(os.environ['RANK'])\nd = os.environ['DATA_ROOT'] + f'/{rank}'\n", (OS,)),
    ],
)
def test_a_missing_value_read_without_a_default_fails_the_job(
    error: str, source: str, frames: tuple[tuple[str, int, str, str], ...]
) -> None:
    assert judge_line(error, source, *frames) == "fail"


def test_a_variable_that_is_read_only_without_peers_proves_nothing() -> None:
    source = "if world_size == 1:\n    data = os.environ['ONE_GPU_DATA']\n"
    assert judge_line("KeyError: 'ONE_GPU_DATA'", source, OS) == "inconclusive"
    # None may come from the number of processes and not from the variable
    source = "root = os.getenv('D')\npart = parts.get(world_size)\nf = os.path.join(part, root)\n"
    assert judge_line(NO_PATH, source, JOIN) == "inconclusive"
