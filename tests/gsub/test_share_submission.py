"""gsub --share without Slurm: which jobs may, what goes to sbatch, the files of the job, and which jobs suit it."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from test_submit import FakeMemory, FakeSlurm, context, request, trial

from slurmwrap.config.load_config import Config, ShareSection
from slurmwrap.errors import RefusedError
from slurmwrap.gsub.prepare import prepare
from slurmwrap.gsub.send import send
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.profiling.colocation import GpuDemand, predict_pair
from slurmwrap.protocols import SbatchCall, SbatchResult
from slurmwrap.sbatch.share_option import find_sharing_obstacle

SCRIPT = b"#!/bin/bash\n#SBATCH --gres=gpu:1 -c 2 --mem=4G --time=60\n#GSUB --share --no-place\necho hello\n"
PROFILE = ResourceProfile(key="small", gpu_util=0.3, gpu_mem_mib=5000, cpus_busy=1.5, mem_mib_per_gpu=1000)


class ShareMemory(FakeMemory):
    folder: Path = Path()

    def share_dir(self) -> str:
        number = len(list(self.folder.iterdir()))
        for name in ("waiting", "running", f"job{number}"):
            (self.folder / name).mkdir(exist_ok=True)
        return str(self.folder / f"job{number}")


@pytest.fixture
def memory(tmp_path: Path) -> ShareMemory:
    found = ShareMemory(profiles={"small": PROFILE})
    found.folder = tmp_path
    return found


def submit(memory: ShareMemory, *words: str, slurm: FakeSlurm | None = None) -> tuple[FakeSlurm, list[str], dict]:
    said: list[str] = []
    slurm = slurm or FakeSlurm(next_id=100 + len(memory.submissions))
    at = replace(context(slurm, memory), say=said.append, environ={"HOME": "/home/alice", "SLURM_JOB_ID": "9"})
    send(prepare(request("--prerun=off", *words, script=SCRIPT), at), at, trial)
    return slurm, said, json.loads((Path(memory.submissions[-1].share) / "spec.json").read_text())


def test_the_files_of_a_shared_job_and_what_sbatch_gets(memory: ShareMemory) -> None:
    slurm, said, spec = submit(memory, "--resource-profile=small", "--export=ALL,A=b", "--output=%j.log")
    (call,) = slurm.calls
    directory = Path(memory.submissions[0].share)
    assert (call.script_path, call.stdin) == (f"{directory}/share.sh", None)
    # A GPU's share of a node has room for a second job: 32 CPUs and 256,000 MiB for 8 GPUs.
    assert {"--open-mode=append", "--job-name=train.sbatch", "--cpus-per-task=4", "--mem=30400M"} <= set(call.options)
    assert (directory / "slurm_script").read_bytes() == SCRIPT
    # The script sees the CPUs that its user asked for.
    assert (spec["cpus_per_task"], spec["time_s"], spec["output"], spec["truncate"]) == (2, 3600, "%j.log", True)
    assert spec["demand"]["gpu"]["gpu_util"] == 0.3
    assert (spec["demand"]["cpus"], spec["demand"]["mem_mib"], spec["demand"]["card_mib"]) == (1.5, 1200, 40000)
    environment = directory / "environment.json"
    assert json.loads(environment.read_text()) == {"HOME": "/home/alice", "A": "b"}
    assert stat.S_IMODE(environment.stat().st_mode) == 0o600
    assert (directory.parent / "waiting" / directory.name).read_text() == "101"
    assert said == ["--share: it may share a GPU with later jobs of yours"]
    (stored,) = memory.submissions
    # What two jobs need together and how long they take says nothing about one of them alone.
    assert (stored.profile_key, stored.tune, stored.time) == ("small+share", False, None)


def test_a_job_is_compared_with_those_that_wait_or_run_in_the_same_place(memory: ShareMemory) -> None:
    submit(memory, "--resource-profile=small")
    submit(memory, "--resource-profile=small", "--qos=low")
    memory.profiles["full"] = replace(PROFILE, key="full", gpu_util=1.0)
    memory.profiles["large"] = replace(PROFILE, key="large", gpu_mem_mib=30_000)
    for key in ("full", "large"):
        assert submit(memory, f"--resource-profile={key}")[2]["pairs"] == {}
    running = memory.folder / "running"
    (memory.folder / "waiting" / Path(memory.submissions[0].share).name).rename(running / "job0")
    _, said, spec = submit(memory, "--resource-profile=small")
    first = Path(memory.submissions[0].share).name
    assert list(spec["pairs"]) == [first]
    one = GpuDemand(gpu_util=0.3, gpu_mem_mib=5000)
    assert spec["pairs"][first]["speed"] == pytest.approx(predict_pair(one, one).speed)
    assert said == ["--share: it may share a GPU with your job 101 (predicted 1.9x together)"]


def test_a_job_of_which_too_little_is_known_has_its_gpu_alone(memory: ShareMemory) -> None:
    _, said, spec = submit(memory, "--resource-profile=unknown")
    assert (spec["demand"], spec["pairs"]) == ({}, {})
    assert said == ["--share: it has its GPU alone: no profile of this job is known yet"]


def test_the_job_is_submitted_as_asked_if_slurm_refuses_the_room_for_a_second_one(memory: ShareMemory) -> None:
    def refuse(call: SbatchCall) -> SbatchResult | None:
        more = "--cpus-per-task=4" in call.options
        return SbatchResult(exit_code=1, stdout="", stderr="QOSMaxCpuPerJob", job_id=None) if more else None

    slurm = FakeSlurm(refuse=refuse)
    submit(memory, "--resource-profile=small", slurm=slurm)
    assert len(slurm.calls) == 2
    assert "--open-mode=append" in slurm.calls[1].options
    assert not any("mem" in option for option in slurm.calls[1].options)


@pytest.mark.parametrize(
    ("words", "script", "why"),
    [
        (("--array=0-3",), SCRIPT, "--pack"),
        (("-N2",), SCRIPT, "several nodes"),
        (("--gres=gpu:2",), SCRIPT, "2 GPUs"),
        (("--gres=gpu:1,nvme:1",), SCRIPT, "more than a GPU"),
        (("--signal=USR1@60",), SCRIPT, "--signal"),
        (("--no-requeue",), SCRIPT, "--no-requeue"),
        (("--export=NONE",), SCRIPT, "--export"),
        (("--export=ALL,HOME",), SCRIPT, "--export"),
        (("--retry",), SCRIPT, "retry"),
        (("--container=/bundle",), SCRIPT, "container"),
        ((), SCRIPT + b"/usr/bin/srun hostname\n", "srun"),
        ((), SCRIPT + b"scontrol requeue $SLURM_JOB_ID\n", "acts on its own job"),
    ],
)
def test_a_job_that_cannot_share_its_gpu_is_refused(words: tuple[str, ...], script: bytes, why: str) -> None:
    assert why in find_sharing_obstacle(request(*words, script=script))


@pytest.mark.parametrize("words", [(), ("--gres=gpu:a100:1",), ("--gres=gres:gpu:1",), ("--export=ALL,A=1,B=",)])
def test_an_ordinary_job_may_share_its_gpu(words: tuple[str, ...]) -> None:
    assert find_sharing_obstacle(request(*words, script=SCRIPT)) == ""


class ShardedSlurm(FakeSlurm):
    """Each GPU has 10 shards."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        return replace(found, nodes=tuple(replace(node, shards=10 * node.gpus) for node in found.nodes))


@pytest.mark.parametrize(
    ("words", "profile", "gres"),
    [
        ((), PROFILE, "--gres=shard:3"),  # 30 % of its time, 15 % of its memory
        ((), replace(PROFILE, gpu_mem_mib=14_000), "--gres=shard:5"),  # 14,000 of 34,000 MiB
        ((), replace(PROFILE, gpu_util=0.95), ""),
        (("--gpus=1", "--gres=none"), PROFILE, ""),
        (("--mem-per-gpu=4G",), PROFILE, ""),
    ],
)
def test_a_small_job_asks_for_shards_where_the_site_wants_that(
    memory: ShareMemory, words: tuple[str, ...], profile: ResourceProfile, gres: str
) -> None:
    slurm, said = ShardedSlurm(), list[str]()
    memory.profiles["small"] = profile
    at = replace(context(slurm, memory), say=said.append, config=Config(share=ShareSection(shards=True)))
    asked = request("--prerun=off", "--resource-profile=small", *words, script=SCRIPT)
    send(prepare(asked, at), at, trial)
    (call,) = slurm.calls
    assert ([option for option in call.options if "shard" in option] or [""]) == [gres]
    assert (call.script_path == "train.sbatch") == bool(gres)
    assert ("other users" in said[0]) == bool(gres)
    assert memory.submissions[0].profile_key == "small+share"


def test_a_site_may_switch_it_off(memory: ShareMemory) -> None:
    at = replace(context(FakeSlurm(), memory), config=Config(share=ShareSection(enabled=False)))
    with pytest.raises(RefusedError, match="site has switched it off"):
        prepare(request("--prerun=off", script=SCRIPT), at)
