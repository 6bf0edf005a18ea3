"""A night report of given records, with the same database and queries as at a site."""

from __future__ import annotations

from typing import Any

from slurmwrap.cli.record_access import JobRecords
from slurmwrap.cli.report import open_records_in_memory
from slurmwrap.config.load_config import Config
from slurmwrap.report.build_report import build
from slurmwrap.report.night_report import NightReport
from slurmwrap.store.report_figures import Figures, read
from slurmwrap.store.report_reader import Period, ReportReader


def figures_of(
    *,
    since: float,
    until: float,
    user: str = "",
    account: str = "",
    config: Config | None = None,
    switch_of: dict[str, str] | None = None,
    **records: Any,
) -> Figures:
    """`records`: as in cli.record_access.Known."""
    period = Period(since=since, until=until, user=user, account=account)
    with (
        open_records_in_memory(JobRecords(**records)) as database,
        ReportReader(database.path, period, database.connection) as reader,
    ):
        return read(database, reader, config or Config(), site=False, switch_of=lambda: switch_of or {})


def night_of(**given: Any) -> NightReport:
    """The complete night report. Values that are read lazily are read while the database is open."""
    period = Period(
        since=given.pop("since"),
        until=given.pop("until"),
        user=given.pop("user", ""),
        account=given.pop("account", ""),
        clusters=given.pop("clusters", ()),
    )
    config, switch_of = given.pop("config", None) or Config(), given.pop("switch_of", {})
    with (
        open_records_in_memory(JobRecords(**given)) as database,
        ReportReader(database.path, period, database.connection) as reader,
    ):
        return build(read(database, reader, config, site=False, switch_of=lambda: switch_of), config.nodes)
