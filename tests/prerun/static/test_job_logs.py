"""Log files that a script names, with the host's path of those that a container writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmwrap.node_hooks import log_tails
from slurmwrap.prerun.static import job_logs
from slurmwrap.sbatch.job_request import JobRequest, Origin, SbatchSetting, Script


def request_of(body: str, *settings: SbatchSetting) -> JobRequest:
    script = Script(path=None, name="s", content=f"#!/bin/bash\n{body}\n".encode())
    return JobRequest(script=script, chdir="/home/ada/run", settings=settings)


def logs_of(body: str, environ: dict[str, str] | None = None) -> list[str]:
    return list(job_logs.list_log_files(request_of(body), {"SCRATCH": "/scratch/ada", **(environ or {})}))


@pytest.mark.parametrize(
    ("body", "logs"),
    [
        ("python train.py > train.log 2>&1", ["/home/ada/run/train.log"]),
        ("mkdir -p l; cd l; srun python train.py &>> out.txt", ["/home/ada/run/l/out.txt"]),
        ("python train.py 2>&1 | tee -a $SCRATCH/x", ["/scratch/ada/x"]),
        ("srun bash -c 'python train.py > a.log'", ["/home/ada/run/a.log"]),
        ("torchrun train.py --log-file=a.log --log_level info", ["/home/ada/run/a.log"]),
        ("python train.py --output_dir $SCRATCH/o/ --data_dir d", ["/scratch/ada/o/"]),
        ("python train.py hydra.run.dir=h", ["/home/ada/run/h/"]),
        ("python train.py > ${LOG:-a.log}", ["/home/ada/run/a.log"]),
        # Data, and names that are known only when the job runs.
        ("zcat a.gz > a.csv; python gen.py > a.json; sort a > b", []),
        ("python train.py > log.$SLURM_JOB_ID 2> /dev/null", []),
        ("python train.py --log_interval 10 --logger wandb", []),
    ],
)
def test_logs_are_named_by_redirections_tee_and_options(body: str, logs: list[str]) -> None:
    assert logs_of(body) == logs


@pytest.mark.parametrize(
    ("command", "log"),
    [
        ("apptainer exec -B $SCRATCH/r:/out a.sif python t.py --log /out/t.log", "/scratch/ada/r/t.log"),
        ("apptainer exec a.sif python t.py --log /home/ada/run/t.log", "/home/ada/run/t.log"),
        ("singularity exec --pwd /out -B $SCRATCH/r:/out a.sif bash -c 'python t.py > t.log'", "/scratch/ada/r/t.log"),
        ("podman run -v $SCRATCH/r:/out:Z pt bash -c 'python t.py | tee /out/a/t.log'", "/scratch/ada/r/a/t.log"),
        ("docker run --mount type=bind,src=$PWD,dst=/w -w /w pt python t.py --log=t.log", "/home/ada/run/t.log"),
        ("podman run -v $SCRATCH/r:/out pt --output_dir /out", "/scratch/ada/r/"),
        ("podman run -v $SCRATCH/r:/out pt python t.py > t.log", "/home/ada/run/t.log"),
        ("ch-run -b $SCRATCH/r:/mnt/0 img -- sh -c 'python3 t.py >/mnt/0/t.log'", "/scratch/ada/r/t.log"),
        ("bwrap --ro-bind / / --bind $SCRATCH/r /out python t.py --log_file /out/t.log", "/scratch/ada/r/t.log"),
        ("enroot start --mount $SCRATCH/r:/out pt python t.py --log_file /out/t.log", "/scratch/ada/r/t.log"),
        (
            "srun --container-image=pt --container-mounts=$SCRATCH/r:/out,/data bash -c 'python t.py >& /out/t.log'",
            "/scratch/ada/r/t.log",
        ),
    ],
)
def test_a_log_inside_a_container_is_named_by_its_path_on_the_host(command: str, log: str) -> None:
    assert logs_of(command) == [log]


def test_a_log_that_stays_in_the_container_is_not_named() -> None:
    assert logs_of("podman run -v $SCRATCH/r:/out pt bash -c 'python t.py > /tmp/t.log'") == []


@pytest.mark.parametrize("name", ["APPTAINER_BIND", "SINGULARITY_BIND", "APPTAINER_BINDPATH"])
@pytest.mark.parametrize("exported", [True, False])
def test_what_a_variable_of_apptainer_binds_is_mapped_to_the_host(name: str, exported: bool) -> None:
    call = "srun apptainer exec -B /data a.sif python t.py --log /out/t.log"
    value = "/ref,$SCRATCH/r:/out:rw" if exported else "/ref,/scratch/ada/r:/out:rw"
    found = logs_of(f"export {name}={value}\n{call}") if exported else logs_of(call, {name: value})
    assert found == ["/scratch/ada/r/t.log"]


def test_logs_of_a_script_that_is_in_a_container_as_a_whole_are_mapped_by_its_mounts() -> None:
    options = {"container-image": "pt", "container-mounts": "/scratch/ada/r:/out,/home/ada/run"}
    settings = (SbatchSetting(option=o, value=v, origin=Origin.SCRIPT, where="script") for o, v in options.items())
    request = request_of("python t.py --log /out/t.log > a.log", *settings)
    assert job_logs.list_log_files(request) == ("/home/ada/run/a.log", "/scratch/ada/r/t.log")


def test_what_a_log_holds_before_the_job_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "old.log").write_text("Traceback\n")
    (tmp_path / "o" / "weights.bin").write_text("x")
    paths = [f"{tmp_path}/new.log", f"{tmp_path}/o/"]
    found = job_logs.find_log_ends(paths, os.getuid())
    assert list(found) == [*paths, f"{tmp_path}/o/old.log"]
    assert found[paths[0]] == found[paths[1]] == []
    assert found[f"{tmp_path}/o/old.log"][0] == 10


def test_gsub_and_the_readers_on_nodes_have_the_same_idea_of_a_log() -> None:
    assert (job_logs._LOG_SUFFIXES, job_logs._MOST) == (log_tails.LOG_SUFFIXES, log_tails.NAMED_LOGS)
