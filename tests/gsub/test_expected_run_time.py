"""gsub's expected run time: from the site's table or the user's own runs, and what it changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO

import pytest
from test_submit import FakeMemory, FakeSlurm, context, request, trial

from slurmwrap.console import Console
from slurmwrap.gsub.expected_run_time import find_expected_run_time
from slurmwrap.gsub.prepare import prepare
from slurmwrap.gsub.send import send
from slurmwrap.gsub.submit import run
from slurmwrap.gsub.submit_context import PreparedJob
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.run_time import FROM_PRERUN, FROM_RUNS, FROM_USER, RunTimeEstimate, RunTimeSample
from slurmwrap.profiling.published_run_times import format_line, join_lines, list_published_groups
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery
from slurmwrap.protocols import Published

SCRIPT = b"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\nsrun python train.py --epochs 90\n"


@cache
def job() -> RunTimeQuery:
    """The job of `request()` as its run is stored."""
    sent = prepare(request(script=SCRIPT), context(FakeSlurm(), FakeMemory()))
    return RunTimeQuery(user="1001", key=sent.profile_key, length=(("epochs", "90"),), gpus=16, partition="gpu")


def make_history(run_s: float, of: RunTimeQuery | None = None) -> RunTimeHistory:
    history = RunTimeHistory()
    for _ in range(6):
        history.add(of or job(), RunTimeSample(run_s=run_s))
    return history


def publish(history: RunTimeHistory, of: RunTimeQuery | None = None) -> Published:
    lines = [
        format_line(digest, found, count)
        for digest, count, known in list_published_groups("lab", of or job())
        if (found := history.estimate(known)) is not None
    ]
    return Published(run_times=join_lines(lines))


def prepare_job(*words: str, own: RunTimeHistory | None = None, published: Published | None = None) -> PreparedJob:
    at = context(FakeSlurm(), FakeMemory(past_runs=own), published=published or Published())
    return prepare(request(*words, script=SCRIPT), at)


def test_without_earlier_runs_nothing_is_expected() -> None:
    assert prepare_job().run_time is None


def test_the_sites_table_and_the_own_runs_give_the_same_expectation() -> None:
    history = make_history(7200.0)
    own, published = prepare_job(own=history).run_time, prepare_job(published=publish(history)).run_time
    assert own is not None and published is not None
    assert (own.source, own.n, round(own.p50_s)) == (published.source, published.n, round(published.p50_s))
    assert (own.source, own.n) == (FROM_RUNS, 6)


def test_own_runs_of_the_job_count_more_than_the_sites_of_other_jobs() -> None:
    other = replace(job(), key="")
    found = prepare_job(own=make_history(7200.0), published=publish(make_history(60.0, other), other)).run_time
    assert found is not None and found.source == FROM_RUNS
    only_wide = prepare_job(own=RunTimeHistory(), published=publish(make_history(60.0, other), other)).run_time
    assert only_wide is not None and only_wide.source == FROM_USER


def test_a_job_that_is_known_to_be_short_gets_no_pre_run_in_spite_of_its_time_limit() -> None:
    assert prepare_job("--time=1-0").prerun == "auto"
    found = prepare_job("--time=1-0", own=make_history(125.0))
    assert found.prerun == "off"
    assert found.estimate is not None and found.estimate.run_source == "history"


def test_a_job_waits_for_locality_by_its_own_runs_and_not_by_those_of_other_jobs() -> None:
    def wait_for_locality(own: RunTimeHistory | None) -> int:
        (level, _) = prepare_job("--prerun=off", own=own).plan.levels
        return level.wait_s

    unknown, short = wait_for_locality(None), wait_for_locality(make_history(125.0))
    assert (unknown > 12, short) == (True, 12)
    assert wait_for_locality(make_history(125.0, replace(job(), key=""))) == unknown


def test_a_pre_run_counts_unless_runs_of_the_job_are_known() -> None:
    def find(own: RunTimeHistory | None, published: Published) -> RunTimeEstimate | None:
        at = context(FakeSlurm(), FakeMemory(past_runs=own), published=published)
        return find_expected_run_time(job(), at, prerun_s=900.0)

    other = replace(job(), key="")
    for own, published, source in (
        (None, Published(), FROM_PRERUN),
        (None, publish(make_history(60.0, other), other), FROM_PRERUN),
        (make_history(60.0, other), Published(), FROM_PRERUN),
        (make_history(60.0), Published(), FROM_RUNS),
        (None, publish(make_history(60.0)), FROM_RUNS),
    ):
        found = find(own, published)
        assert found is not None and found.source == source


def test_explain_uses_an_earlier_pre_run_of_the_same_program() -> None:
    # 32,000 steps of the data over 16 GPUs, half a second each.
    measurement = Measurement(steps=3, steps_per_s=2.0, total_steps=32_000, total_is_shared=True)

    def find(*words: str, own: RunTimeHistory | None = None) -> RunTimeEstimate | None:
        memory = FakeMemory(measurement=measurement, past_runs=own)
        return prepare(request(*words, script=SCRIPT), context(FakeSlurm(), memory)).run_time

    found = find("--explain", "--dry-run")
    assert found is not None and (found.source, round(found.p50_s)) == (FROM_PRERUN, 1000)
    of_runs = find("--explain", "--dry-run", own=make_history(7800.0))
    assert of_runs is not None and of_runs.source == FROM_RUNS
    assert find() is None


def test_explain_shows_the_expected_run_time_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    prepared, stream = prepare_job("--explain", "--dry-run", own=make_history(7800.0)), StringIO()
    assert run(prepared, context(FakeSlurm(), FakeMemory()), Console(program="gsub", stream=stream)) == 0
    assert "it usually runs 2 h 10 min (nine of ten within 2 h" in stream.getvalue()
    assert "by 6 runs of this job" in stream.getvalue()


def test_the_submission_records_the_length_options() -> None:
    memory = FakeMemory()
    at = context(FakeSlurm(), memory)
    send(prepare(request("--prerun=off", script=SCRIPT), at), at, trial)
    assert memory.submissions[0].length == (("epochs", "90"),)
