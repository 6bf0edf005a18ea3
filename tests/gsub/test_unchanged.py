"""Changes that may have fixed an earlier failure: files, packages, access. Other failures refuse the job."""

from __future__ import annotations

from typing import Any

import pytest

from slurmwrap.gsub.refusals import Surroundings, select_unfixed_failures
from slurmwrap.model.evidence import Citation
from slurmwrap.model.past_failure import PastFailure

AT = 1_000_000.0
BEFORE, LATER = AT - 500, AT + 500
SITE = "/home/ada/venv/lib/python3.11/site-packages"


def failure(category: str, text: str, **more: Any) -> PastFailure:
    evidence = (Citation(source="slurm-47.out", line=3, text=text),)
    return PastFailure(**{"job_id": 47, "at": AT, "category": category, "reason": "", "evidence": evidence} | more)


def is_standing(one: PastFailure, times: dict[str, float], script: str = "#!/bin/sh\npython train.py\n") -> bool:
    def files_in(folder: str) -> list[str]:
        return sorted({p[len(folder) + 1 :].split("/")[0] for p in times if p.startswith(f"{folder}/")})

    around = Surroundings(
        script=script,
        chdir="/home/ada/run",
        environ={"HOME": "/home/ada", "PATH": "/usr/bin", "VIRTUAL_ENV": "/home/ada/venv"},
        inputs=("/data/given.pt",),
        code=("/home/ada/run/train.py",),
        changed_at=times.get,
        files_in=files_in,
    )
    return bool(select_unfixed_failures((one,), around))


MISSING = failure("incorrect_inputs", "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'")
BROKEN = failure("incorrect_inputs", "EOFError: Ran out of input", input_path="/data/a.pt")
IMPORT = failure("import_error", "ModuleNotFoundError: No module named 'einops'")
DENIED = failure("permission_error", "PermissionError: [Errno 13] Permission denied: '/scratch/ada/out/model.pt'")
KEY = failure("traceback_from_crash", "KeyError: 'learning_rate'")
COMMAND = failure("syntax_error", "/var/spool/slurmd/job47/slurm_script: line 4: nvcc: command not found")


@pytest.mark.parametrize(
    ("one", "times", "stands"),
    [
        (MISSING, {}, True),
        (MISSING, {"/home/ada/run/data/train.csv": BEFORE}, False),  # copied with its old time stamps
        (MISSING, {"/home/ada/run": LATER, "/home/ada": LATER}, True),
        (BROKEN, {"/data/a.pt": BEFORE}, True),
        (BROKEN, {"/data/a.pt": LATER}, False),
        (IMPORT, {SITE: BEFORE}, True),
        (IMPORT, {SITE: LATER}, False),
        (IMPORT, {"/home/ada/.local/lib/python3.11/site-packages": LATER}, False),
        (DENIED, {"/scratch/ada/out": BEFORE}, True),
        (DENIED, {"/scratch/ada/out": LATER}, False),  # chmod
        (failure("permission_error", "401 Client Error: gated repo"), {}, False),
        (KEY, {}, True),
        (KEY, {"/data/given.pt": LATER}, False),
        (KEY, {"/home/ada/run/config.yaml": LATER}, False),
        (KEY, {"/home/ada/run/config.yaml": BEFORE}, True),
        (KEY, {"/home/ada/run/slurm-47.out": LATER, "/home/ada/run/.swp": LATER}, True),
        (COMMAND, {"/usr/bin": BEFORE}, True),
        (COMMAND, {"/usr/bin": LATER}, False),
        (failure("cuda_failure", "CUDA error: unspecified launch failure"), {}, False),  # may be the node
        (failure("mpi_error", "MPI: Cannot create context for mpi/pmix"), {}, True),
        (failure("mpi_error", "lost connection", node="n3"), {}, False),
    ],
)
def test_a_failure_counts_until_something_that_may_have_caused_it_changed(
    one: PastFailure, times: dict[str, float], stands: bool
) -> None:
    assert is_standing(one, times) is stands


@pytest.mark.parametrize(
    ("line", "stands"),
    [
        ("python train.py", True),
        ("conda activate ml", False),
        ("module load cuda", False),
        ("# module load cuda", True),
        ("source $ENV/bin/activate", False),
        ("source ~/other/bin/activate", False),  # changed since the failure
    ],
)
def test_a_job_is_not_refused_if_its_packages_cannot_be_inspected(line: str, stands: bool) -> None:
    times = {SITE: BEFORE, "/home/ada/other/lib/python3.11/site-packages": LATER}
    assert is_standing(IMPORT, times, f"#!/bin/bash\n{line}\npython train.py\n") is stands
