"""The retry job that gsub submits with a job of --retry, and the program that it runs. Without Slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fakes import job
from test_submit import FakeMemory, FakeSlurm, context, request, trial

from slurmwrap.config.load_config import Config, Retry, SiteSection
from slurmwrap.gsub import retry_job
from slurmwrap.gsub.prepare import prepare
from slurmwrap.gsub.send import send
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.protocols import SbatchCall, SbatchResult

SITE = SiteSection(published="/srv/slurmwrap")


def submit(*words: str, config: Config | None = None, **changes: object) -> tuple[FakeSlurm, list[str]]:
    slurm: FakeSlurm = changes.pop("slurm", None) or FakeSlurm()  # type: ignore[assignment]
    said: list[str] = []
    at: SubmitContext = replace(context(slurm, FakeMemory()), config=config or Config(), say=said.append, **changes)
    send(prepare(request("--prerun=off", *words), at), at, trial)
    return slurm, said


def get_retry_calls(slurm: FakeSlurm) -> list[SbatchCall]:
    return [call for call in slurm.calls if str(call.script_path).endswith("retry_job.sh")]


def test_a_job_with_consent_gets_a_retry_job_without_gpus_that_waits_for_its_failure() -> None:
    slurm, said = submit("--retry", "--account=physics", "--partition=gpu")
    (call,) = get_retry_calls(slurm)
    assert slurm.calls[-1] is call and said == []
    assert {"--dependency=afternotok:101", "--kill-on-invalid-dep=yes", "--account=physics", "--partition=gpu"} <= set(
        call.options
    )
    assert not any("gpu" in option for option in call.options if not option.startswith("--partition"))
    # The options are its arguments too, so that it can submit the retry job of the next run.
    assert call.args[0] == "101"
    assert set(call.args[1:]) == {o for o in call.options if not o.startswith(("--parsable", "--dep", "--kill"))}


def test_the_users_sbatch_variables_do_not_reach_the_retry_job() -> None:
    slurm, _ = submit("--retry", environ={"SBATCH_GRES": "gpu:8", "PATH": "/bin"})
    (call,) = get_retry_calls(slurm)
    assert call.environ is not None and "SBATCH_GRES" not in call.environ and call.environ["PATH"] == "/bin"


def test_the_configured_partition_takes_the_place_of_the_jobs_own() -> None:
    slurm, _ = submit("--retry", "--partition=gpu", config=Config(retry=Retry(partition="cpu")))
    assert [o for o in get_retry_calls(slurm)[0].options if o.startswith("--partition")] == ["--partition=cpu"]


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ((), Config()),
        (("--no-retry",), Config(retry=Retry(default=True))),
        (("--retry",), Config(retry=Retry(own_job=False))),
        (("--retry",), Config(rules={"retry": "advise", "retry_elsewhere": "observe"})),
        (("--retry",), Config(site=SITE, rules={"retry": "act"})),
    ],
)
def test_there_is_no_retry_job_without_consent_or_where_it_would_not_act(
    words: tuple[str, ...], config: Config
) -> None:
    slurm, said = submit(*words, config=config)
    assert (len(slurm.calls), said) == (1, [])


def test_gsub_says_that_the_sites_reconciler_only_advises() -> None:
    slurm, (said,) = submit("--retry", config=Config(site=SITE))
    assert len(slurm.calls) == 1
    assert "only reports what it would do" in said and "slurmwrap why 101" in said


def test_a_refused_retry_job_is_reported_and_the_job_is_kept() -> None:
    no = SbatchResult(exit_code=1, stdout="", stderr="sbatch: error: QOSMinGRES\n", job_id=None)
    refusing = FakeSlurm(refuse=lambda call: no if str(call.script_path).endswith("retry_job.sh") else None)
    _, (said,) = submit("--retry", slurm=refusing)
    assert "QOSMinGRES" in said and "slurmwrap why 101" in said


def test_rerun_rules_act_for_own_jobs_unless_a_mode_is_set_or_a_site_reconciles() -> None:
    assert Config().mode_of("retry") == "advise"
    assert Config().for_own_jobs().mode_of("retry_elsewhere") == "act"
    assert Config().for_own_jobs().mode_of("drain") == "advise"
    assert Config(rules={"resize": "observe"}).for_own_jobs().mode_of("resize") == "observe"
    assert Config(site=SITE).for_own_jobs().mode_of("retry") == "advise"


@pytest.mark.parametrize(("needed", "settled"), [(1, True), (3, True), (10_000, False)])
def test_passes_are_repeated_until_one_is_complete_or_time_is_up(needed: int, settled: bool) -> None:
    calls, now = [0], [0.0]

    def run() -> bool:
        calls[0] += 1
        return calls[0] >= needed

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert retry_job.wait_for_pass(run, lambda: now[0], sleep) is settled
    assert now[0] <= retry_job.PATIENCE_S + retry_job.PAUSE_S


@pytest.mark.parametrize(
    ("state", "changes", "unfinished"),
    [
        ("PENDING", {}, True),
        ("FAILED", {}, False),
        ("PENDING", {"job_id": 90, "array_job_id": 81, "array_task_id": 1}, True),
        ("PENDING", {"job_id": 90}, False),
    ],
)
def test_a_job_that_runs_again_is_unfinished(state: str, changes: dict[str, object], unfinished: bool) -> None:
    shown = replace(job(81, state=state), **changes)  # type: ignore[arg-type]
    slurm = FakeSlurm(jobs_by_address={"x": shown})
    find: Callable[..., bool] = retry_job.is_unfinished
    assert find(slurm, "81", "alice") is unfinished
