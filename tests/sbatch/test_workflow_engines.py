"""Scripts of workflow engines and servers get no pre-run: another process waits for the job itself."""

from __future__ import annotations

import pytest

from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.passthrough import find_engine_reason, find_passthrough_reason, open_file

SUBMITIT = b"#!/bin/bash\n#SBATCH --gpus-per-node=2\nsrun python -u -m submitit.core._submit /home/a/logs\n"
DASK = (
    b"#!/usr/bin/env bash\n#SBATCH --gres=gpu:2\npython -m distributed.cli.dask_worker tcp://10.0.0.1:34607 --nanny\n"
)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"srun python -u -m submitit.core._submit /home/a/logs", "submitit"),
        (b"/opt/bin/python -m distributed.cli.dask_worker tcp://10.0.0.1:34607 --nthreads 1", "dask"),
        (b"dask worker tcp://10.0.0.1:8786", "dask"),
        (b"exec dask-cuda-worker --scheduler-file s.json", "dask"),
        (b"python -m dask_cuda.cli worker", "dask"),
        (b"nxf_launch() {\n/bin/bash -ue /w/.command.sh\n}\nnxf_main", "Nextflow"),
        (b"jupyter lab --no-browser --port 8888", "server"),
        (b"srun jupyter-notebook --ip=0.0.0.0", "server"),
        (b"code-server --auth none", "server"),
        (b"# python -m distributed.cli.dask_worker", None),
        (b"python train.py --logger dask_worker_logs", None),
        (b"jupyter nbconvert --execute train.ipynb", None),
        (b"python -m snakemake --target-jobs 'train:' --mode remote", None),
        (b"pip install submitit jupyterlab && python train.py", None),
    ],
)
def test_a_script_of_an_engine_or_server_is_recognised(line: bytes, said: str | None) -> None:
    found = find_engine_reason(b"#!/bin/bash\n#SBATCH --gres=gpu:2\n" + line + b"\n")
    assert found is None if said is None else found is not None and said in found


@pytest.mark.parametrize("script", [SUBMITIT, DASK])
def test_an_explicit_prerun_option_overrides_the_engine_check(script: bytes) -> None:
    def passes(*argv: str, **environ: str) -> bool:
        request = parse_request(
            (*argv, "a.sh"), environ=environ, cwd="/", read_script=lambda _: script, read_stdin=lambda: b""
        )
        return find_passthrough_reason(request) is not None

    assert passes("-G2")
    assert not passes("-G2", "--prerun=wait")
    assert not passes("-G2", GSUB_PRERUN="auto")


@pytest.mark.parametrize(
    ("path", "descriptor"),
    [
        ("/dev/stdin", 0), ("/dev/fd/63", 63), ("/proc/self/fd/3", 3), ("/dev/fd/", None), ("/dev/fd/x", None),
        ("dev/stdin", None), ("/dev/stdin2", None), ("/home/dev/fd/3", None), ("", None),
    ],
)  # fmt: skip
def test_a_script_that_is_an_open_file_is_recognised(path: str, descriptor: int | None) -> None:
    assert open_file(path) == descriptor
