"""What `slurmwrap report` reads: a place and a time in, one NightReport out. report.py shows it.

The site's database is asked where it lies; what a user may know (his own database, his spool, what the site sealed for
them) is put into one in memory and asked by the same queries.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from slurmwrap.cli.list_options import nothing_is_garbage
from slurmwrap.cli.record_access import JobRecords, RecordSource, of_period
from slurmwrap.config import Config
from slurmwrap.errors import RefusedError, SlurmError, UsageError
from slurmwrap.report.build_report import build
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.user_report import own_report
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store import schema
from slurmwrap.store.database import Database
from slurmwrap.store.in_memory import open_in_memory
from slurmwrap.store.report_figures import DETAIL_S, read
from slurmwrap.store.report_reader import Period, ReportReader


def build_report_of_night(
    place: RecordSource, config: Config, since: float, until: float, *, user: str = "", account: str = ""
) -> NightReport:
    """The report of what ended within [since, until), Unix seconds; of `user` or `account` alone where one is named.

    Who is neither root nor SlurmUser gets their own whatever is asked. StoreError.
    """
    period = Period(since=since, until=until, user=user, account=account)
    with nothing_is_garbage(), _open_database(place, period) as (database, reader, known):
        notes = known.notes if known else ()
        figures = read(database, reader, config, site=place.site, switch_of=lambda: _read_switches(config), notes=notes)
        report = build(figures, config.nodes)
    if known is None:
        return report
    return own_report(report, known.attempts, known.submissions, known.preruns)


def get_report_user(place: RecordSource, user: str) -> str:
    """The user whose report is meant: "me" is who asks. RefusedError where someone asks for another one's."""
    try:
        own = pwd.getpwuid(place.uid).pw_name
    except KeyError:
        own = ""
    if user == "me" and not own:
        raise UsageError(f"--user me: uid {place.uid} has no name")
    if user not in ("", "me", own) and not place.site:
        raise RefusedError(f"--user {user}: only root and SlurmUser see the jobs of others", hint="--user me")
    return own if user == "me" else user


@contextmanager
def _open_database(place: RecordSource, period: Period) -> Iterator[tuple[Database, ReportReader, JobRecords | None]]:
    """`Known`: what a user may know; None of the site's database."""
    if place.site:
        with Database.open(place.database, readonly=True) as database, ReportReader(place.database, period) as reader:
            yield database, reader, None
        return
    length = max(2 * (period.until - period.since), DETAIL_S)
    known = of_period(place, period.until - length)
    with of_records(known) as database, ReportReader(database.path, period, database.connection) as reader:
        yield database, reader, known


def of_records(known: JobRecords) -> Database:
    """A database in memory of what someone may know."""
    return open_in_memory(
        (schema.ATTEMPTS, known.attempts),
        (schema.PRERUNS, known.preruns),
        (schema.SUBMISSIONS, known.submissions),
        (schema.ACTIONS, known.actions),
        (schema.STRIKES, known.strikes),
        (schema.BLOCKED_INPUTS, known.blocked),
        (schema.INCIDENTS, known.incidents),
        (schema.DELAYS, known.delays),
    )


def _read_switches(config: Config) -> Mapping[str, str]:
    """Node -> the closest domain of the network it is in, by what Slurm knows now; {} where it does not answer."""
    try:
        topology = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s).snapshot().topology
    except SlurmError:
        return {}
    return {node: domain.name for domain in topology.domains if domain.level == 0 for node in domain.nodes}
