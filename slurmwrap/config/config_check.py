"""Find all mistakes of a configuration file at once (`load` stops at the first one), and suspicious values. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.config.config_errors import list_sections, locate_key
from slurmwrap.config.load_config import Config, WrongKey, merge


def find_mistakes(path: str, text: str) -> tuple[str, ...]:
    """Return the errors that keep the file from being read: one line each, with `path:line`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return (f"{path}: {error}",)
    return tuple(
        f"{locate_key(path, text, wrong.key)}: {_format_wrong_key(wrong)}" for wrong in _find_wrong_keys(tables)
    )


def find_remarks(config: Config) -> tuple[str, ...]:
    """Return remarks on values that are valid, but are probably not what the user meant."""
    return tuple(_find_suspicious_values(config))


def _format_wrong_key(wrong: WrongKey) -> str:
    return f"{wrong}; {wrong.hint}" if wrong.hint else str(wrong)


def _find_wrong_keys(tables: Mapping[str, Any]) -> Iterator[WrongKey]:
    for part in _split_tables(tables):
        try:
            merge(Config(), part)
        except WrongKey as wrong:
            yield wrong


def _split_tables(tables: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a table for each key, so that each is checked separately.

    A section that does not exist is yielded as a whole: it is one mistake, not one per key.
    """
    known = list_sections()
    for name, value in tables.items():
        if isinstance(value, Mapping) and value and name in known:
            yield from ({name: {key: one}} for key, one in value.items())
        else:
            yield {name: value}


def _find_suspicious_values(config: Config) -> Iterator[str]:
    nodes, kept, site = config.nodes, config.retention, config.site
    if nodes.lemon_ratio < nodes.suspect_ratio:
        yield "nodes.lemon_ratio is below nodes.suspect_ratio: a node is a lemon before it is suspect"
    if kept.keep_d < kept.detail_d:
        yield "retention.keep_d is below retention.detail_d: a run's details would outlive the run"
    if kept.detail_d < nodes.window_days:
        yield "retention.detail_d is below nodes.window_days: nodes are judged by less than the window"
    if config.report.to and not config.mail.server:
        yield "report.to names a recipient, but mail.server is empty: no mail is sent"
    if config.notify.url and not config.notify.url.startswith(("https://", "/", "http://localhost", "http://127.")):
        yield "notify.url is neither an https:// address nor the absolute path of a file: no message is sent"
    if config.prerun.grace_s < config.prerun.time_limit_s / 10:
        yield "prerun.grace_s is far below prerun.time_limit_s: jobs start before their pre-run can have found anything"
    if site.state_dir and not site.spool:
        yield "site.spool is empty: nothing arrives from nodes, and runs are judged by Slurm's records alone"
    if config.mode_of("gate") == "act" and not site.published:
        yield "rules.gate is act, but site.published is empty: the nodes' Prolog reads its permit there"
    if config.metrics.textfile and not config.metrics.textfile.endswith(".prom"):
        yield "metrics.textfile does not end with .prom: node_exporter reads no other files"
