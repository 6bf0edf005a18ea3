"""Parse what Slurm shows about priorities: the configuration (PriorityScheme), and Nice or SiteFactor of jobs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurmwrap.model.queue_priority import PriorityScheme

_TRES_WEIGHT = re.compile(r"=([0-9]+)(?:\.[0-9]+)?")


def parse_priority_scheme(config: Mapping[str, str]) -> PriorityScheme:
    """Return the scheme that `scontrol show config` shows, as scontrol_parser.parse_config() returns it."""
    return PriorityScheme(
        plugin=config.get("PriorityType", "").removeprefix("priority/"),
        weights=sum(_parse_weight(text) for name, text in config.items() if name.startswith("PriorityWeight")),
        site_factor_plugin=config.get("PrioritySiteFactorPlugin", "") not in ("", "(null)", "none"),
    )


def _parse_weight(text: str) -> int:
    """Parse "1000", or the value of PriorityWeightTRES: "CPU=1000,GRES/gpu=3000"; 0 for "(null)"."""
    return int(text) if text.isdecimal() else sum(map(int, _TRES_WEIGHT.findall(text)))


def parse_priority_terms(text: str) -> Mapping[int, int]:
    """Parse rows of job id and number. A job in several partitions has several rows with the same number."""
    rows = (line.split() for line in text.splitlines())
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal() and _is_integer(row[1])}


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
