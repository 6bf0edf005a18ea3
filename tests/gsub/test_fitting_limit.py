"""What gsub says about time limits: advice of --explain, and the report for rule `limit`."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from test_expected_run_time import SCRIPT, make_history, prepare_job
from test_submit import FakeMemory, FakeSlurm, context, request

from slurmwrap.config.load_config import Limit
from slurmwrap.console import Console
from slurmwrap.gsub.fitting_limit import find_fitting_limit
from slurmwrap.gsub.submit import run
from slurmwrap.gsub.time_request import make_time_request
from slurmwrap.model.lowered_limit import TimeRequest
from slurmwrap.model.resource_profile import ResourceProfile

HOUR = 3600


@pytest.mark.parametrize(
    ("words", "fits_s"),
    [
        (("--time=7-0",), 4 * HOUR),
        (("--time=5:00:00",), None),  # not clearly more
        (("--time=7-0", "--time-min=60"), None),
        (("--time=7-0", "--signal=B:USR1@14400"), 4.5 * HOUR),
        ((), None),
    ],
)
def test_a_clearly_lower_limit_is_advised(words: tuple[str, ...], fits_s: float | None) -> None:
    prepared = prepare_job(*words, own=make_history(2.4 * HOUR))
    assert find_fitting_limit(prepared, Limit()) == fits_s


def test_nothing_is_advised_by_a_few_runs_or_by_runs_of_other_jobs() -> None:
    assert find_fitting_limit(prepare_job("--time=7-0", own=make_history(2.4 * HOUR)), Limit(runs=7)) is None
    assert find_fitting_limit(prepare_job("--time=7-0"), Limit()) is None


def test_explain_names_the_option_to_write() -> None:
    prepared, stream = prepare_job("--explain", "--dry-run", "--time=7-0", own=make_history(2.4 * HOUR)), StringIO()
    run(prepared, context(FakeSlurm(), FakeMemory()), Console(program="gsub", stream=stream))
    advice = [line for line in stream.getvalue().splitlines() if "--time=" in line]
    assert advice == ["gsub: it asks for 7 d: --time=4:00:00 would fit these runs, and let it start in a gap"]


@pytest.mark.parametrize(
    ("words", "advised"),
    [
        (("--time=7-0",), ["--time-min=1:10:00"]),
        (("--time=7-0", "--time-min=60"), []),
        (("--time=7-0", "--signal=B:USR1@600"), []),
        (("--time=2:00:00",), []),
    ],
)
def test_a_job_that_resumes_is_advised_to_accept_a_shorter_limit(words: tuple[str, ...], advised: list[str]) -> None:
    prepared, stream = prepare_job("--explain", "--dry-run", *words), StringIO()
    prepared = replace(prepared, profile=ResourceProfile(key="train.py", saved_after_s=3000.0))
    run(prepared, context(FakeSlurm(), FakeMemory()), Console(program="gsub", stream=stream))
    lines = [line for line in stream.getvalue().splitlines() if "saves within 50 min" in line]
    assert [word.strip(":") for line in lines for word in line.split() if word.startswith("--time-min")] == advised


@pytest.mark.parametrize(
    ("words", "script", "reported"),
    [
        ((), SCRIPT, TimeRequest()),
        (("--signal=B:USR1@300",), SCRIPT, TimeRequest(warn_s=300)),
        (("--signal=RB:10@90",), SCRIPT, TimeRequest(warn_s=90)),
        (("--signal=USR1",), SCRIPT, TimeRequest(warn_s=60)),
        (("--time=60", "--time-min=30"), SCRIPT, TimeRequest(fixed="--time-min")),
        (("--deadline=2030-01-01",), SCRIPT, TimeRequest(fixed="--deadline")),
        (("--no-tune",), SCRIPT, TimeRequest(fixed="--no-tune")),
        (
            (),
            SCRIPT + b"left=$(squeue -h -j $SLURM_JOB_ID -o %L)\n",
            TimeRequest(fixed="its script reads its time limit (squeue)"),
        ),
        (
            (),
            SCRIPT + b"scontrol -o show job $SLURM_JOB_ID\n",
            TimeRequest(fixed="its script reads its time limit (scontrol -o show)"),
        ),
        ((), SCRIPT + b"scontrol requeue $SLURM_JOB_ID\n", TimeRequest()),
    ],
)
def test_what_is_reported_of_the_time_limit(words: tuple[str, ...], script: bytes, reported: TimeRequest) -> None:
    assert make_time_request(request(*words, script=script)) == reported
