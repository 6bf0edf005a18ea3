"""Workflow engines, make, polling scripts, and jobs that submit jobs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from engine import Site
from waiting import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.callers]

SNAKEFILE = """
rule all:
    input: "report.txt"

rule prepare:
    output: "data.txt"
    resources: mem_mb=1000, runtime=5
    shell: "echo 42 >{output}"

rule train:
    input: "data.txt"
    output: "model_{seed}.txt"
    resources: mem_mb=1000, runtime=5, gpu=2
    shell: "echo $CUDA_VISIBLE_DEVICES >{output}; cat {input} >>{output}"

rule report:
    input: "model_1.txt", "model_2.txt"
    output: "report.txt"
    resources: mem_mb=1000, runtime=5
    shell: "cat {input} >{output}"
"""
SNAKEMAKE = ["snakemake", "--jobs", "4", "--seconds-between-status-checks", "2", "--latency-wait", "20"]


@pytest.mark.parametrize(
    ("how", "preruns"),
    [([], 2), (["--slurm-pass-command-as-script"], 0)],
    ids=["wrap", "stdin"],
)
def test_snakemake_with_its_slurm_plugin(site: Site, how: list[str], preruns: int, needs: Callable[..., None]) -> None:
    """GPU rules get a pre-run, and the workflow waits for the real jobs. `sbatch /dev/stdin` is passed through."""
    needs("snakemake", "snakemake_executor_plugin_slurm")
    site.write("Snakefile", SNAKEFILE)
    options = ["--executor", "slurm", "--default-resources", "slurm_partition=gpu", "--slurm-no-account"]
    quick = [
        "--slurm-init-seconds-before-status-checks",
        "2",
        "--slurm-status-command",
        "squeue",
    ]  # the lab has no slurmdbd
    done = site.run(*SNAKEMAKE, *options, *quick, *how, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _gpus_and_lines(site) == ([2, 2], ["42", "42"])
    assert site.split() == (["COMPLETED"] * 4, preruns)


def test_snakemake_with_a_submit_command(site: Site, needs: Callable[..., None]) -> None:
    """cluster-generic: the first line that the command prints is the job id."""
    needs("snakemake", "snakemake_executor_plugin_cluster_generic")
    site.write("Snakefile", SNAKEFILE.replace("gpu=2", 'gres="--gres=gpu:2"'))
    site.write("status", "#!/bin/sh\ncase $(squeue -h -t all -o %T -j $1) in COMPLETED) echo success ;;"
               " FAILED | CANCELLED) echo failed ;; *) echo running ;; esac\n")  # fmt: skip
    submit = "sbatch --parsable --mem={resources.mem_mb} -t {resources.runtime} {resources.gres}"
    options = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", submit]
    more = ["--default-resources", "gres='--nice=0'", "--cluster-generic-status-cmd", f"{site.work}/status"]
    done = site.run(*SNAKEMAKE, *options, *more, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _gpus_and_lines(site) == ([2, 2], ["42", "42"])
    assert site.split() == (["COMPLETED"] * 4, 2)


def _gpus_and_lines(site: Site) -> tuple[list[int], list[str]]:
    """(number of GPUs of each training, content of its input)."""
    lines = (site.work / "report.txt").read_text().splitlines()
    return [len(line.split(",")) for line in lines[::2]], lines[1::2]


# A launcher with the parts of Nextflow's that concern the submission: its name, its directives, the function that
# identifies it, and the files that Nextflow watches
# (modules/nextflow/.../executor/{SlurmExecutor,GridTaskHandler}.groovy and command-run.txt of 26.08).
# Nextflow itself was not available.
COMMAND_RUN = """#!/bin/bash
#SBATCH -J nf-train_(1)
#SBATCH -o {work}/.command.log
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -t 00:05:00
#SBATCH --mem 100M
#SBATCH -p gpu
#SBATCH {gpus}
set -e
set -u
on_exit() {{ printf -- $? >{work}/.exitcode; }}
nxf_launch() {{
    /bin/bash -ue {work}/.command.sh
}}
nxf_main() {{
    trap on_exit EXIT
    touch {work}/.command.begin
    nxf_launch
}}
nxf_main
"""
STATUS = ["squeue", "--noheader", "-o", "%i %t", "-t", "all", "-u"]


@pytest.mark.parametrize(("gpus", "code"), [("--gres=gpu:2", 0), ("--gres=gpu:2", 3), ("-n1", 0)])
def test_nextflows_calls_of_sbatch_and_squeue(site: Site, gpus: str, code: int) -> None:
    """Nextflow joins both streams, looks for `Submitted batch job N`, polls squeue, and relies on .exitcode."""
    site.write(".command.run", COMMAND_RUN.format(work=site.work, gpus=gpus))
    site.write(".command.sh", f"#!/bin/bash -ue\necho once >>runs\nexit {code}\n")
    done = site.run("sh", "-c", "exec sbatch .command.run 2>&1")
    found = re.findall(r"^Submitted batch job (\d+)$", done.stdout, re.MULTILINE)
    assert (done.returncode, len(found), done.stdout.count("\n")) == (0, 1, 1), done.stdout
    word = "CD" if code == 0 else "F"
    seen = wait_for(
        lambda: site.run(*STATUS, site.user).stdout.splitlines(), lambda now: f"{found[0]} {word}" in now, 60
    )
    assert f"{found[0]} {word}" in seen
    assert (site.work / ".exitcode").read_text() == str(code)
    assert (site.work / "runs").read_text() == "once\n"
    assert site.split() == (["COMPLETED" if code == 0 else "FAILED"], 0)


MAKEFILE = """
submit = sbatch --parsable --mem=100 -o /dev/null
data := $(shell $(submit) --wrap 'echo data >>order')
model := $(shell $(submit) --gres=gpu:2 --dependency=afterok:$(data) --wrap 'echo model >>order')
all:
\t@id=$$($(submit) --dependency=afterok:$(model) --wrap 'echo report >>order'); \\
\twhile squeue -h -j $$id | grep -q .; do sleep 0.5; done; echo $(data) $(model) $$id
"""


def test_make_with_dependent_jobs_and_a_polling_loop(site: Site) -> None:
    """A chain of job ids; a job that depends on a GPU job does not depend on its pre-run."""
    site.write("Makefile", MAKEFILE)
    done = site.run("make", "--silent")
    assert done.returncode == 0, done.stderr
    jobs = [job for job in site.ended() if not job.is_prerun]
    assert done.stdout.split() == [job.id for job in jobs]
    assert site.split() == (["COMPLETED"] * 3, 1)
    assert (site.work / "order").read_text().splitlines() == ["data", "model", "report"]


def test_a_failed_pre_run_breaks_the_dependency_chain(site: Site) -> None:
    """After a job cancelled by its pre-run, afterok is never met; afternotok is met once."""
    script = site.write("train.sh", "#!/bin/sh\n#SBATCH --gres=gpu:2 --mem=100 -o /dev/null\nnosuchprogram_xyz\n")
    site.write("broken.py", "import this_is_not_there\n")
    script.write_text(script.read_text().replace("nosuchprogram_xyz", "python3 broken.py"))
    train = site.run("sbatch", "--parsable", str(script)).stdout.strip()
    call = ["sbatch", "--parsable", "--mem=100", "-o", "/dev/null", "--kill-on-invalid-dep=yes", "--wrap"]
    then = site.run(*call, "echo ok >>order", f"--dependency=afterok:{train}")
    assert then.returncode == 0, then.stderr
    otherwise = site.run(*call, "echo not >>order", f"--dependency=afternotok:{train}")
    assert otherwise.returncode == 0, otherwise.stderr
    site.ended()
    assert (site.work / "order").read_text() == "not\n"


def test_jobs_that_submit_jobs_submit_each_once(site: Site) -> None:
    """A CPU job that submits a GPU job, and a GPU job that submits the next job: each exactly once."""
    site.write("inner.sh", "#!/bin/sh\n#SBATCH --gres=gpu:2 --mem=100 -o inner.%j\necho inner >>order\n")
    outer = site.write("outer.sh", "#!/bin/sh\n#SBATCH --mem=100 -o outer.out\nsbatch inner.sh\n")
    assert site.run("sbatch", "-W", str(outer)).returncode == 0
    assert site.split() == (["COMPLETED"] * 2, 0)
    assert re.fullmatch(r"Submitted batch job \d+\n", (site.work / "outer.out").read_text())
    site.write("last.sh", "#!/bin/sh\necho last >>order\n")
    chain = "#!/bin/sh\n#SBATCH --gres=gpu:2 --mem=100 -o chain.%j\necho chain >>order\nsbatch --mem=100 last.sh\n"
    assert site.run("sbatch", "-W", str(site.write("chain.sh", chain))).returncode == 0
    assert site.split() == (["COMPLETED"] * 4, 1)
    assert sorted((site.work / "order").read_text().split()) == ["chain", "inner", "last"]


def test_snakemake_reports_a_rule_whose_pre_run_failed(site: Site, needs: Callable[..., None]) -> None:
    """The pre-run fails on one GPU; the workflow ends with the failure of the rule, and the job never runs."""
    needs("snakemake", "snakemake_executor_plugin_slurm")
    rule = 'rule train:\n    output: "model.txt"\n    resources: mem_mb=1000, runtime=5, gpu=2\n'
    site.write("Snakefile", rule + '    shell: "python3 broken.py; touch {output}"\n')
    site.write("broken.py", "import this_is_not_there\n")
    options = ["--executor", "slurm", "--default-resources", "slurm_partition=gpu", "--slurm-no-account"]
    quick = ["--slurm-init-seconds-before-status-checks", "2", "--slurm-status-command", "squeue"]
    done = site.run(*SNAKEMAKE, *options, *quick, timeout=170)
    assert (done.returncode, "Error in rule train" in done.stderr) == (1, True), done.stderr
    assert site.split() == (["CANCELLED"], 1)
    assert not (site.work / "model.txt").exists()
