"""The class of a pending job in the site's queue order, by what the site publishes (adapter: reads published.json)."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.config.load_config import Config
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.submission import Submission
from slurmwrap.placement.relaxation import is_waiting
from slurmwrap.policy.queue_order import OrderSettings, PendingOrder, classify_job
from slurmwrap.profiling.published_run_times import find_published_run_time
from slurmwrap.profiling.run_time import make_run_time_query
from slurmwrap.report.order_text import format_order_class
from slurmwrap.store.published_files import list_trusted_uids, read_published

DescribeClass = Callable[[JobRecord, Submission | None], str]


def describe_queue_class(job: JobRecord, submission: Submission | None, config: Config, now: float) -> str:
    """Return "in class 2 of 6: usually runs 20 min on 4 GPUs"; "would be in ..." if the rule only advises.

    "" for a job that was not submitted with gsub, does not wait for its turn, or if the site publishes no order.
    """
    if submission is None or not is_waiting(job, now):
        return ""
    return read_queue_classes(config, now)(job, submission)


def read_queue_classes(config: Config, now: float) -> DescribeClass:
    """Read what the site publishes once, and return the function that describes the class of each of several jobs."""
    published = read_published(config.site.published, list_trusted_uids(config)) if config.site.published else None
    # A site that hides jobs from other users publishes no run times, so a job's class is not known.
    if published is None or published.order is None or not published.run_times or not published.fresh(now):
        return lambda job, submission: ""
    order, run_times = published.order, published.run_times
    settings = OrderSettings(index=order.index, thresholds=order.thresholds, most_wait_s=order.most_wait_s)

    def describe(job: JobRecord, submission: Submission | None) -> str:
        if submission is None or not is_waiting(job, now):
            return ""
        query = make_run_time_query(job.uid, job.gpus, job.account, job.partition, submission)
        pending = PendingOrder(
            job=job.address,
            gpus=job.gpus,
            waited_s=max(0.0, now - float(job.eligible_time or now)),
            estimate=find_published_run_time(run_times, submission.cluster, query),
        )
        text = format_order_class(pending, classify_job(pending, settings), settings)
        return f"{'' if order.acts else 'would be '}in {text}"

    return describe
