"""What `slurmwrap nodes gate` shows: the files that the reconciler writes for the nodes' Prolog gate. Read-only."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import tzinfo
from typing import Any

from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import group_alike
from slurmwrap.store.published import FAULTS, PERMIT, read_trusted


def describe_gate(
    place: str, trusted: Collection[int], zone: tzinfo | None, now: float
) -> tuple[list[dict[str, Any]], str]:
    """A row for each standing fault, and the same for people with the permit above; nothing where nothing is told."""
    permit, faults = _read_published(place, PERMIT, trusted), _read_published(place, FAULTS, trusted)
    if not permit:
        return [], "The gate is told nothing: the rule 'gate' is in observe mode, or no site is configured."
    until, allowed = float(permit.get("until", 0)), bool(permit.get("allowed"))
    stands = [f for f in faults.get("faults", []) if isinstance(f, dict)]
    rows = [{**fault, "allowed": allowed, "until": until} for fault in stands]
    return rows, "\n".join([_describe_permit(allowed, until, zone, now), *_format_table(stands, zone)])


def _describe_permit(allowed: bool, until: float, zone: tzinfo | None, now: float) -> str:
    if until < now:
        ended = text_format.moment(until, zone)
        return f"The permit ended {ended}: the gate refuses nothing (is the reconciler running?)."
    what = "may refuse" if allowed else "may not refuse (rule 'gate' is not in act mode, or the cap is used up)"
    return f"Until {text_format.moment(until, zone)} the gate {what}."


def _format_table(stands: list[dict[str, Any]], zone: tzinfo | None) -> list[str]:
    from slurmwrap.model.hostlist import fold

    if not stands:
        return ["No fault stands."]
    rows = [
        [fold(text_format.in_order(str(f["node"]) for f in group)), str(group[0]["cause"]), _format_since(group, zone)]
        for group in group_alike(stands, lambda fault: fault.get("cause"))
    ]
    return [text_format.table(("~node", "cause", "since"), rows, indent=0)]


def _format_since(group: Collection[dict[str, Any]], zone: tzinfo | None) -> str:
    return text_format.moment(min(float(fault["since"]) for fault in group), zone)[5:]


def _read_published(place: str, name: str, trusted: Collection[int]) -> dict[str, Any]:
    content = read_trusted(place, name, trusted) if place else None
    try:
        plain = json.loads(content) if content is not None else {}
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) else {}
