"""Python libraries that submit jobs: submitit, dask-jobqueue, simple_slurm, and plain subprocess."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from engine import Site

pytestmark = [pytest.mark.lab, pytest.mark.callers]

SUBMITIT = """
import os, submitit
def work(x, fail=False):
    if fail:
        raise ValueError("a bug of its own")
    return x * x, len([g for g in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if g])
executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
executor.update_parameters(timeout_min=5, slurm_partition="gpu", mem_gb=1)
found = [executor.submit(work, 3).result()]
executor.update_parameters(gpus_per_node=2)
found.append(executor.submit(work, 4).result())
jobs = executor.map_array(work, [5, 6, 7])
found += [job.result() for job in jobs]
assert len({job.job_id.split("_")[0] for job in jobs}) == 1, jobs
try:
    executor.submit(work, 8, True).result()
except submitit.core.utils.FailedJobError as error:
    found.append("a bug of its own" in str(error))
print(found)
"""


def test_submitit_jobs_are_passed_through_and_return_their_results(site: Site, needs: Callable[..., None]) -> None:
    """submitit's jobs find their task by their own job id, so they are passed through."""
    needs("submitit")
    assert ast.literal_eval(site.python(SUBMITIT).splitlines()[-1]) == [
        (9, 0),
        (16, 2),
        (25, 2),
        (36, 2),
        (49, 2),
        True,
    ]
    assert site.split() == (["COMPLETED"] * 5 + ["FAILED"], 0)


DASK = """
from dask.distributed import Client
from dask_jobqueue import SLURMCluster
for gpus in (0, 2):
    more = [f"--gres=gpu:{gpus}"] if gpus else []
    with SLURMCluster(
        queue="gpu", cores=1, processes=1, memory="1GB", walltime="00:10:00", interface="lo", log_directory="logs",
        job_extra_directives=more,
    ) as cluster:
        cluster.scale(jobs=2)
        with Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            names = {one["name"] for one in client.scheduler_info(n_workers=-1)["workers"].values()}
            jobs = [int(job.job_id) for job in cluster.workers.values()]
            print([sorted(names), len(jobs) == len(set(jobs)) == 2, client.submit(sum, [1, 2, 3]).result()])
"""


def test_dask_jobqueue_gets_exactly_the_requested_workers(site: Site, needs: Callable[..., None]) -> None:
    """Two requested workers give two workers: no pre-run joins the scheduler."""
    needs("dask_jobqueue")
    found = [ast.literal_eval(line) for line in site.python(DASK).splitlines()]
    assert found == [[["SLURMCluster-0", "SLURMCluster-1"], True, 6]] * 2
    states, preruns = site.split()
    assert (len(states), preruns) == (4, 0)  # dask ends them with scancel


SIMPLE = """
from simple_slurm import Slurm
common = dict(partition="gpu", mem="500M", time="5", output="%j.out")
first = Slurm(**common).sbatch("echo one >order; sleep 1; echo one ended >>order")
second = Slurm(**common, gres="gpu:2", dependency=dict(afterok=first)).sbatch("echo two >>order")
third = Slurm(**common, gres="gpu:2", array="0-2", dependency=dict(afterok=second)).sbatch("echo three >>order")
print([type(one).__name__ for one in (first, second, third)], sorted({first, second, third}) == [first, second, third])
"""


def test_simple_slurm_reads_job_ids_and_dependencies_hold(site: Site, needs: Callable[..., None]) -> None:
    """The GPU jobs get pre-runs: one for the job, one for the array."""
    needs("simple_slurm")
    assert site.python(SIMPLE).splitlines()[-1] == "['int', 'int', 'int'] True"
    states, preruns = site.split()
    assert (states, preruns) == (["COMPLETED"] * 5, 2)
    assert (site.work / "order").read_text().splitlines() == ["one", "one ended", "two", "three", "three", "three"]


IDIOMS = """
import re, subprocess
from subprocess import DEVNULL, PIPE, STDOUT
gpus = ["--gres=gpu:2", "--mem=100", "-o", "/dev/null"]
script = "#!/bin/sh\\nexit 0\\n"
line = "sbatch --gres=gpu:2 --mem=100 -o /dev/null --wrap true"
call = ["sbatch", *gpus, "--wrap", "true"]
def run(*argv, **more):
    return subprocess.run(argv, text=True, **{"stdout": PIPE, "stderr": PIPE, **more})
found = [
    subprocess.check_output(call, text=True).split()[-1],
    re.fullmatch(r"Submitted batch job (\\d+)\\n", run(*call).stdout)[1],
    run(*call, stderr=STDOUT).stdout.split()[-1],
    subprocess.getoutput(line.replace("sbatch", "sbatch --parsable")),
    subprocess.getoutput(line + " 2>&1 | awk '{print $NF}'"),
    run("sbatch", "--parsable", *gpus, input=script).stdout,
    run("sbatch", "--parsable", *gpus, "/dev/stdin", input=script).stdout,
    run("bash", "-c", "sbatch --parsable --gres=gpu:2 --mem=100 -o /dev/null <(printf '#!/bin/sh\\nexit 0\\n')").stdout,
]
print([int(one) for one in found])
refused = run("sbatch", *gpus, "-p", "nowhere", "--wrap", "true")
print([refused.returncode, refused.stdout, "invalid partition" in refused.stderr])
"""


def test_the_job_id_is_read_by_common_subprocess_idioms(site: Site) -> None:
    """The job id as the last word, by a regular expression, from both streams joined, and by awk."""
    numbers, refused = (ast.literal_eval(line) for line in site.python(IDIOMS).splitlines())
    assert refused == [1, "", True]
    jobs = site.ended()
    assert [(job.id, job.state) for job in jobs if not job.is_prerun] == [(str(one), "COMPLETED") for one in numbers]


def test_sbatch_wait_returns_the_exit_code_of_the_job(site: Site) -> None:
    """-W returns the job's own exit code. The pre-run is first; a bare exit code on one GPU proves nothing."""
    call = ["sbatch", "-W", "--gres=gpu:2", "--mem=100", "-o", "/dev/null", "--wrap"]
    assert [site.run(*call, command).returncode for command in ("true", "exit 7")] == [0, 7]
    assert site.split() == (["COMPLETED", "FAILED"], 2)
