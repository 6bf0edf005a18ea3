"""The class of a pending job, as `slurmwrap why` and `watch` tell it from what the site publishes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, job
from test_reconcile_pass import submission

from slurmwrap.cli.queue_class import describe_queue_class
from slurmwrap.config.load_config import Config, SiteSection
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.queue_priority import PublishedOrder
from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.profiling.published_run_times import format_line, join_lines, list_published_groups
from slurmwrap.profiling.run_time import make_run_time_query
from slurmwrap.protocols import Published
from slurmwrap.store.published_files import FilePublisher

ASKED = submission(81, profile_key="resnet", at=float(START))
WAITING: JobRecord = job(81, state="PENDING", reason="Priority", priority=5, start_time=None, end_time=None, nodes=())
ORDER = PublishedOrder(acts=True, index="shortest", thresholds=(100.0, 10_000.0), most_wait_s=43_200.0)


def publish(path: Path, order: PublishedOrder | None = ORDER, *, known: bool = True, at: float = START) -> Config:
    """Publishes an order and the run time of ASKED: 20 minutes."""
    query = make_run_time_query(WAITING.uid, WAITING.gpus, WAITING.account, WAITING.partition, ASKED)
    digest = next(list_published_groups("lab", query))[0]
    estimate = RunTimeEstimate(quantiles_s=(1200.0,) * len(QUANTILE_LEVELS), source=FROM_RUNS, n=4)
    lines = join_lines([format_line(digest, estimate, 0.0)]) if known else ""
    FilePublisher(path, "", lambda payload, **_: payload).publish(Published(at=at, order=order, run_times=lines))
    return Config(site=SiteSection(published=str(path)))


def test_the_class_and_the_reason_are_told(tmp_path: Path) -> None:
    config = publish(tmp_path)
    assert describe_queue_class(WAITING, ASKED, config, START) == "in class 2 of 3: usually runs 20 min on 2 GPUs"
    later = START + 50_000.0
    publish(tmp_path, at=later)
    assert describe_queue_class(WAITING, ASKED, config, later) == "in class 1 of 3: it has waited 13 h 55 min"


def test_advice_says_would_be(tmp_path: Path) -> None:
    config = publish(tmp_path, replace(ORDER, acts=False))
    assert describe_queue_class(WAITING, ASKED, config, START).startswith("would be in class 2 of 3: ")


@pytest.mark.parametrize(
    "record",
    [
        replace(WAITING, priority=0, reason="JobHeldUser"),
        replace(WAITING, eligible_time=START + 60),
        replace(WAITING, state="RUNNING"),
    ],
)
def test_a_job_that_does_not_wait_for_its_turn_has_no_class(record: JobRecord, tmp_path: Path) -> None:
    assert describe_queue_class(record, ASKED, publish(tmp_path), START) == ""


def test_without_a_submission_or_a_fresh_order_nothing_is_told(tmp_path: Path) -> None:
    config = publish(tmp_path)
    assert describe_queue_class(WAITING, None, config, START) == ""
    assert describe_queue_class(WAITING, ASKED, Config(), START) == ""
    assert describe_queue_class(WAITING, ASKED, config, START + 3600) == ""  # no reconciler runs any more
    assert describe_queue_class(WAITING, ASKED, publish(tmp_path, None), START) == ""
    # A site that hides jobs publishes no run times.
    assert describe_queue_class(WAITING, ASKED, publish(tmp_path, known=False), START) == ""
