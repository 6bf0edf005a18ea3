"""The updates of placement.retune on a real Slurm: the job runs, every srun in it works and SLURM_* is consistent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from realslurm import USERS, Lab

from slurmwrap.errors import SlurmError
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.placement.retune import make_retune_actions, undo
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, MemUnit, OptionChange, ResourceShape, Script
from slurmwrap.slurm.commands import SlurmCommands, make_action_argv

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE = USERS[0]

PROBE = """\
#!/bin/bash
echo "job $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE $SLURM_JOB_CPUS_PER_NODE $SLURM_JOB_NODELIST"
srun -Q bash -c 'echo "task $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE"'
echo "plain $?"
srun -Q --cpus-per-task="$SLURM_CPUS_PER_TASK" true
echo "own $?"
srun -Q -n1 -N1 -c1 true
echo "small $?"
"""
SHAPE = ResourceShape(
    nodes=2,
    max_nodes=2,
    tasks_per_node=2,
    gpus=4,
    gpus_per_node=2,
    gpu_unit=GpuUnit.GRES,
    cpus=4,
    cpu_unit=CpuUnit.PER_TASK,
    mem_mib=2000,
    mem_unit=MemUnit.PER_NODE,
)
PER_NODE = replace(SHAPE, gpu_unit=GpuUnit.PER_NODE, tasks_per_node=1)
ONE = replace(SHAPE, nodes=1, max_nodes=1, tasks_per_node=None, tasks=2, gpus=2)


GPUS = {GpuUnit.GRES: "gpu:", GpuUnit.PER_NODE: ""}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job of alice that waits for its begin time."""

    lab: Lab
    slurm: SlurmCommands
    job_id: str
    request: JobRequest
    output: Path

    def record(self) -> JobRecord:
        record = self.slurm.job(self.job_id)
        assert record is not None
        return record

    def apply(self, actions: tuple[SlurmAction, ...]) -> None:
        """Runs the command lines of the adapter as the owner of the job."""
        for action in actions:
            done = self.lab.run(make_action_argv(action), user=ALICE)
            if done.returncode:
                raise SlurmError(done.stderr)

    def start(self) -> None:
        """Sets the StartTime to now."""
        start = SlurmAction(verb=Verb.UPDATE_JOB, target=self.job_id, key="StartTime", value="now")
        self.apply((start,))

    def printed(self) -> str:
        """The sorted lines of the output, after the job ended."""
        self.lab.wait_job(self.job_id)
        return "\n".join(sorted(self.output.read_text().splitlines()))


@pytest.fixture
def home(lab: Lab) -> Iterator[Path]:
    path = lab.dir / f"retune-{os.getpid()}-{len(list(lab.dir.glob('retune-*')))}"
    path.mkdir()
    path.chmod(0o777)
    yield path


def submit_waiting_job(lab: Lab, home: Path, shape: ResourceShape, *more: str) -> Waiting:
    tasks = f"--ntasks-per-node={shape.tasks_per_node}" if shape.tasks_per_node else f"--ntasks={shape.tasks}"
    options = (
        *(f"--nodes={shape.nodes}", tasks, f"--cpus-per-task={shape.cpus}", f"--mem={shape.mem_mib}"),
        *(
            f"--{shape.gpu_unit.value}={GPUS[shape.gpu_unit]}{shape.gpus_per_node}",
            "--begin=now+1hour",
            "--time=5",
            f"--output={home}/%j.out",
            *more,
        ),
    )
    job_id = lab.submit(*options, user=ALICE, script=PROBE)
    request = JobRequest(script=Script(path=None, name="sbatch", content=PROBE.encode()), shape=shape)
    slurm = SlurmCommands({**os.environ, **lab.env})
    return Waiting(lab, slurm, job_id, request, home / f"{job_id}.out")


def start_and_read_output(job: Waiting) -> str:
    job.start()
    return job.printed()


def make_plan(**wishes: str) -> PlacementPlan:
    lines = (OptionChange(option=name.replace("_", "-"), value=value, reason="test") for name, value in wishes.items())
    return PlacementPlan(lines=tuple(lines))


def test_retuned_jobs_run_and_every_srun_has_the_new_values(lab: Lab, home: Path) -> None:
    cases = (
        (SHAPE, 6, 3000, "12(x2)"),
        (SHAPE, 2, 1500, "4(x2)"),
        (PER_NODE, 9, 3000, "9(x2)"),
        (ONE, 8, 2500, "16"),
        (ONE, 1, 1000, "2"),
    )
    jobs = [submit_waiting_job(lab, home, shape) for shape, *_ in cases]
    for job, (_, cpus, mem, _) in zip(jobs, cases, strict=True):
        new = make_plan(cpus_per_task=str(cpus), mem=f"{mem}M")
        actions = make_retune_actions(PlacementPlan(), new, job.request, job.record())
        assert [action.key for action in actions] == ["MinMemoryNode", "CPUsPerTask", "MinCPUsNode"]
        job.apply(actions)
        job.start()
    found, expected = [], []
    for job, (shape, cpus, mem, per_node) in zip(jobs, cases, strict=True):
        tasks = (shape.tasks_per_node or shape.tasks or 1) * (shape.nodes or 1)
        found.append(re.sub(r"(job .*) \S+$", r"\1 NODES", job.printed(), flags=re.MULTILINE).splitlines())
        task = f"task {cpus} {mem}"
        expected.append([f"job {cpus} {mem} {per_node} NODES", "own 0", "plain 0", "small 0", *[task] * tasks])
    assert found == expected


def test_excluded_nodes_and_switch_are_set_and_cleared_on_the_waiting_job(lab: Lab, home: Path) -> None:
    job = submit_waiting_job(lab, home, SHAPE, "--exclude=n0")
    old = make_plan(exclude="n0", switches="1@2:00")
    new = make_plan(exclude="n0,n1", switches="1@5:00")
    job.apply(make_retune_actions(old, new, job.request, job.record()))
    assert (job.record().exc_nodes, read_switches(job)) == ("n[0-1]", "1@00:05:00")
    job.apply(make_retune_actions(new, PlacementPlan(), job.request, job.record()))
    assert (job.record().exc_nodes, read_switches(job)) == ("", "1@00:00:00")  # no waiting time: see slurm/commands.py
    assert "plain 0" in start_and_read_output(job)


def test_undo_restores_the_values_that_a_refused_update_changed(lab: Lab, home: Path) -> None:
    job = submit_waiting_job(lab, home, SHAPE)
    before, new = job.record(), make_plan(cpus_per_task="4000")
    actions = make_retune_actions(PlacementPlan(), new, job.request, before)
    with pytest.raises(SlurmError, match="Requested partition configuration not available"):
        job.apply(actions)
    assert job.record().cpus != before.cpus
    job.apply(undo(actions, PlacementPlan(), job.request, before))
    assert job.record().cpus == before.cpus
    assert "own 0" in start_and_read_output(job)


def test_a_job_that_its_user_changed_is_not_retuned(lab: Lab, home: Path) -> None:
    job = submit_waiting_job(lab, home, SHAPE)
    job.apply((SlurmAction(verb=Verb.UPDATE_JOB, target=job.job_id, key="MinMemoryNode", value="2222"),))
    actions = make_retune_actions(PlacementPlan(), make_plan(mem="3000M"), job.request, job.record())
    lab.run(["scancel", job.job_id])
    assert actions == ()


def read_switches(job: Waiting) -> str:
    text = job.lab.run(["scontrol", "show", "job", "-o", job.job_id]).stdout
    found = re.search(r" Switches=(\S+)", text)
    return found[1] if found else ""
