"""What is wrong with a configuration file: all of it at once, where `load` stops at the first. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.config.config_errors import list_sections, place
from slurmwrap.config.load_config import Config, WrongKey, merge


def find_mistakes(path: str, text: str) -> tuple[str, ...]:
    """What keeps the file from being read: one line each, with `path:line`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return (f"{path}: {error}",)
    return tuple(f"{place(path, text, wrong.key)}: {_format_wrong_key(wrong)}" for wrong in _find_wrong_keys(tables))


def find_remarks(config: Config) -> tuple[str, ...]:
    """What can be read, and is hardly meant."""
    return tuple(_find_odd_values(config))


def _format_wrong_key(wrong: WrongKey) -> str:
    return f"{wrong}; {wrong.hint}" if wrong.hint else str(wrong)


def _find_wrong_keys(tables: Mapping[str, Any]) -> Iterator[WrongKey]:
    for part in _split_tables(tables):
        try:
            merge(Config(), part)
        except WrongKey as wrong:
            yield wrong


def _split_tables(tables: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Each key by itself. Of a section that does not exist the whole: one mistake, not one per key."""
    known = list_sections()
    for name, value in tables.items():
        if isinstance(value, Mapping) and value and name in known:
            yield from ({name: {key: one}} for key, one in value.items())
        else:
            yield {name: value}


def _find_odd_values(config: Config) -> Iterator[str]:
    nodes, kept, site = config.nodes, config.retention, config.site
    if nodes.lemon_ratio < nodes.suspect_ratio:
        yield "nodes.lemon_ratio is below nodes.suspect_ratio: a node is a lemon before it is suspect"
    if kept.keep_d < kept.detail_d:
        yield "retention.keep_d is below retention.detail_d: a run's details would outlive the run"
    if kept.detail_d < nodes.window_days:
        yield "retention.detail_d is below nodes.window_days: nodes are judged by less than the window"
    if config.report.to and not config.mail.server:
        yield "report.to names somebody, and mail.server is empty: no mail is sent"
    if config.prerun.grace_s < config.prerun.time_limit_s / 10:
        yield "prerun.grace_s is far below prerun.time_limit_s: jobs start before their trial can have found anything"
    if site.state_dir and not site.spool:
        yield "site.spool is empty: nothing arrives from nodes, and runs are judged by Slurm's words alone"
    if config.mode_of("gate") == "act" and not site.published:
        yield "rules.gate acts, and site.published is empty: the nodes' Prolog reads its permit there"
    if config.metrics.textfile and not config.metrics.textfile.endswith(".prom"):
        yield "metrics.textfile does not end with .prom: node_exporter reads no other files"
