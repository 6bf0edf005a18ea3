"""The job that reads input files: when it is submitted, with which options, and the verdict for a broken file."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeClock, FakeSlurm, job

from slurmwrap.config.load_config import Config, Prerun
from slurmwrap.gsub import input_check, input_check_job
from slurmwrap.gsub.input_check import describe_input_check, select_environment, start_input_check
from slurmwrap.gsub.input_check_job import make_broken_input_verdict
from slurmwrap.model.cluster import Partition, Snapshot
from slurmwrap.model.verdict import Outcome, Verdict, verdict_from_json, verdict_to_json
from slurmwrap.prerun.inputs.check_files import FileFault
from slurmwrap.prerun.inputs.opened_files import OpenedFiles
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.protocols import SbatchCall, SbatchResult
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request

PASSED = Verdict(outcome=Outcome.PASS, layer="optimizer", reason="3 steps ran")
DELAYED = "it cannot start yet, and other jobs may write the file before"
PENDING = {"state": "PENDING", "start_time": None, "end_time": None}


class Slurm(FakeSlurm):
    """Refuses sbatch calls with `refusal`, and has a partition with a short time limit."""

    refusal = ""

    def snapshot(self) -> Snapshot:
        partitions = (Partition(name="gpu", default=True), Partition(name="short", max_time_s=600))
        return Snapshot(taken_at=0.0, nodes=(), default_partition="gpu", partitions=partitions)

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        found = super().sbatch(call)
        return SbatchResult(exit_code=1, stdout="", stderr=self.refusal, job_id=None) if self.refusal else found


def request(*words: str) -> JobRequest:
    script = b"#!/bin/sh\npython train.py\n"
    return parse_request([*words, "a.sh"], environ={}, cwd="/", read_script=lambda _: script, read_stdin=lambda: b"")


@pytest.fixture
def spec(tmp_path: Path) -> TrialSpec:
    """A trial that opened one file."""
    found = TrialSpec(trial_dir=str(tmp_path), script="script", real_job="7")
    Path(found.trial_dir, "opened").write_text("r\t/data/a.tar\n")
    return found


def start(spec: TrialSpec, slurm: FakeSlurm, *words: str, verdict: Verdict = PASSED, **settings: Any) -> list[str]:
    said: list[str] = []
    context = SimpleNamespace(
        slurm=slurm, clock=FakeClock(), config=Config(prerun=Prerun(**settings)), say=said.append,
        environ={"HOME": "/home/ada", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "8"},
    )  # fmt: skip
    start_input_check(spec, request("--gres=gpu:8", *words), verdict, context)  # type: ignore[arg-type]
    return said


def read_options(slurm: FakeSlurm) -> Mapping[str, str]:
    (call,) = slurm.submitted
    return dict(option.partition("=")[::2] for option in call.options)


def test_the_check_is_a_job_of_one_cpu_without_a_gpu_that_delays_no_other_job(spec: TrialSpec) -> None:
    slurm = Slurm()
    slurm.add(job(7, **PENDING))
    said = start(spec, slurm, "--account=physics", "--partition=short", "--nodelist=n1", "--mem=100G")
    found = read_options(slurm)
    assert {name: found[name] for name in ("--gres", "--cpus-per-task", "--nodes", "--account", "--partition")} == {
        "--gres": "none", "--cpus-per-task": "1", "--nodes": "1", "--account": "physics", "--partition": "short",
    }  # fmt: skip
    assert (found["--nice"], found["--time"], found["--begin"]) == ("2147483645", "10", "now+15")
    assert "--nodelist" not in found
    assert "CUDA_VISIBLE_DEVICES" not in slurm.submitted[0].environ
    assert said == ["job 8 reads the input files while job 7 waits for its GPUs"]


def test_a_partition_for_the_checks_can_be_configured(spec: TrialSpec) -> None:
    slurm = Slurm()
    start(spec, slurm, "--partition=short", inputs="all", inputs_partition="cpu", inputs_limit_s=7200)
    found = read_options(slurm)
    assert (found["--partition"], found["--time"], "--begin" in found) == ("cpu", "120", False)


@pytest.mark.parametrize(
    ("settings", "state", "outcome", "submitted"),
    [
        ({}, "PENDING", Outcome.PASS, True),
        ({}, "PENDING", Outcome.INCONCLUSIVE, True),
        ({}, "PENDING", Outcome.FAIL, False),
        ({}, "RUNNING", Outcome.PASS, False),
        ({"inputs": "all"}, "RUNNING", Outcome.PASS, True),
        ({"inputs": "off"}, "PENDING", Outcome.PASS, False),
    ],
)
def test_a_check_is_submitted_only_while_it_can_save_something(
    spec: TrialSpec, settings: dict[str, str], state: str, outcome: Outcome, submitted: bool
) -> None:
    slurm = Slurm()
    slurm.add(job(7, **{**PENDING, "state": state}))
    start(spec, slurm, verdict=Verdict(outcome=outcome, layer="exit", reason=""), **settings)
    assert bool(slurm.submitted) is submitted


def test_a_program_that_opened_no_data_gets_no_check(spec: TrialSpec) -> None:
    Path(spec.trial_dir, "opened").write_text(f"r\t{spec.trial_dir}/output\nr\t/usr/share/x.npy\nw\t/data/x.tar\n")
    slurm = Slurm()
    start(spec, slurm)
    Path(spec.trial_dir, "opened").unlink()
    start(spec, slurm)
    assert slurm.submitted == []


def test_a_partition_that_refuses_jobs_without_gpus_is_named_and_nothing_else_happens(spec: TrialSpec) -> None:
    slurm = Slurm()
    slurm.add(job(7, **PENDING))
    slurm.refusal = "sbatch: error: QOSMinGRES\n"
    said = start(spec, slurm)
    assert said[0] == "the input files are not read, because Slurm refuses a job without GPUs: QOSMinGRES"
    assert "prerun.inputs_partition" in said[1]
    slurm.away = True
    assert start(spec, slurm)[0].startswith("the input files are not read: ")


def test_the_check_gets_the_configuration_but_not_the_variables_of_the_pre_run() -> None:
    given = {"SLURMWRAP_PRERUN_INPUTS": "all", "XDG_STATE_HOME": "/s", "SLURM_JOB_ID": "8", "SBATCH_GRES": "gpu:1"}
    assert select_environment(given) == {"SLURMWRAP_PRERUN_INPUTS": "all", "XDG_STATE_HOME": "/s"}


def test_the_verdict_names_the_first_broken_file_the_fault_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK")
    faults = [
        FileFault(path=str(tmp_path / "a.npz"), text="is truncated", offset=2),
        FileFault(path="/b.npz", text="is empty"),
    ]
    found = make_broken_input_verdict(faults, str(tmp_path))
    assert found.reason == "broken input file: a.npz is truncated (at byte 2), and 1 more broken file"
    assert (found.outcome, found.layer, found.category) == (Outcome.FAIL, "inputs", "incorrect_inputs")
    assert (found.input_path, found.input_fault) == (str(tmp_path / "a.npz"), "is truncated")
    assert len(found.input_digest) == 64
    assert [one.message for one in found.findings] == ["a.npz is truncated (at byte 2)", "/b.npz is empty"]
    assert "replace the file" in found.findings[0].fix
    assert verdict_from_json(verdict_to_json(found)) == found


def test_jobs_with_the_same_arguments_are_noted(tmp_path: Path) -> None:
    input_check.note_same_arguments(tmp_path, tmp_path / "b")
    input_check.note_same_arguments(tmp_path, tmp_path / "c")
    assert (tmp_path / input_check.SAME_ARGUMENTS).read_text() == f"{tmp_path}/b\n{tmp_path}/c\n"


def test_what_a_check_found_is_described_for_the_user(tmp_path: Path) -> None:
    assert describe_input_check(tmp_path) == []
    fault = {"path": "/data/a.npz", "text": "is truncated", "offset": 1000, "certain": True, "why": "opened"}
    plain = {"files": 9, "read": 5, "known": 2, "faults": [fault], "complete": False}
    (tmp_path / input_check.RESULT).write_text(json.dumps(plain))
    assert describe_input_check(tmp_path) == [
        "9 files, 5 read completely and sound, 2 known to be sound, 1 broken; the check ended before all were read",
        "/data/a.npz is truncated (at byte 1,000); opened",
    ]


@pytest.mark.parametrize(
    ("state", "more", "spec_more", "program", "expected"),
    [
        ("PENDING", {}, {}, "x = load(path)\n", ""),
        ("PENDING", {}, {"delay": "it has a dependency"}, "", DELAYED),
        ("PENDING", {"dependency": "afterok:6"}, {}, "", DELAYED),
        ("RUNNING", {}, {}, "", "a part of it has started"),
        (
            "PENDING",
            {},
            {},
            "ImageFile.LOAD_TRUNCATED_IMAGES = True\n",
            "the program seems to go on after a broken file: train.py:1",
        ),
    ],
)
def test_a_job_that_may_not_need_the_file_as_it_is_is_not_cancelled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    more: dict[str, str],
    spec_more: dict[str, str],
    program: str,
    expected: str,
) -> None:
    (tmp_path / "train.py").write_text(program)
    slurm = FakeSlurm()
    slurm.add(job(7, **{**PENDING, "state": state}))
    monkeypatch.setattr(input_check_job, "is_kept_from_starting", lambda job_id: bool(more))
    spec = TrialSpec(trial_dir=str(tmp_path), script="script", real_job="7", chdir=str(tmp_path), **spec_more)  # type: ignore[arg-type]
    trial = SimpleNamespace(spec=spec, request=request("--gres=gpu:8"), job=None)
    context = SimpleNamespace(slurm=slurm, clock=FakeClock(), say=print, user="alice")
    check = input_check_job._InputCheck(trial, context, None, OpenedFiles(), threading.Event())  # type: ignore[arg-type]
    assert input_check_job._find_reason_not_to_cancel(check) == expected
    check.gone = "job 7 started"
    assert input_check_job._find_reason_not_to_cancel(check) == "job 7 started"
