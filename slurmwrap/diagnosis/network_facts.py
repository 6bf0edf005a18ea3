"""Format what a node's hooks recorded about its network ports, one line per fault, and grade such lines. Pure.

docs/records.md lists the facts. Root on that node wrote them, yet their types are checked. The line keeps everything
that later readers need (the node score reads it again), so nothing else is stored.

Thresholds. A link that goes down breaks the connections of a running job: Azure's node check (azurehpc-health-checks,
check_ib_link_flapping) accepts no such event, and NVIDIA's NVSentinel (nic-health-monitor, link-counter-detection)
counts `link_downed` above 0 as fatal, as it does local link integrity and buffer overrun errors. InfiniBand allows a
bit error rate of 1e-12, at most 120 symbol errors an hour (the same document, by IBTA and Oracle); symbol errors of HDR
and NDR are those that error correction left (NVIDIA, ibdiagnet manual, Bit Error Rate). NVSentinel warns
from 5 recoveries of a link a minute on; only the mean over the job is known here, so 5 an hour are the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from slurmwrap.escape import marked
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.observation import Context, Observation

DOWN, NOISY, SLOWER, SOME_ERRORS = "down", "noisy", "slower", "some_errors"
# Errors in an hour that a healthy link does not exceed. A job of less than an hour counts as one of an hour.
_MOST_PER_HOUR = {
    "symbol_error": 120,
    "port_rcv_errors": 120,
    "rx_crc_errors": 120,
    "link_error_recovery": 5,
    "local_link_integrity_errors": 0,
    "excessive_buffer_overrun_errors": 0,
}
_DOWN_COUNTERS = ("link_downed", "carrier_down_count")
_LINES, _CAP = 64, 500
_LINE = re.compile(
    r"network on (?P<node>[\w.-]{1,64}): (?P<link>InfiniBand port|Ethernet interface) (?P<port>[\w./:@-]{1,64}) "
    r"(?:(?P<down>went down |is gone|is \S{1,40}, it was )|(?P<slower>runs at )|(?P<noisy>has too many errors)"
    r"|(?P<some>has errors))"
)
_COUNT = re.compile(r"\((?:link_downed|carrier_down_count) (\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortEvent:
    """One line about a port. `kind`: DOWN, NOISY, SLOWER or SOME_ERRORS; only the first two can explain a failure."""

    node: str
    port: str  # "mlx5_0/1", "eth0"
    kind: str
    # The counter of lost links at the end, the same for two jobs that shared the node and saw one event; "" if unknown.
    downs: str
    text: str


def parse_port_event(text: str) -> PortEvent | None:
    """Return what a line of format_port_lines() says; None for any other line."""
    found = _LINE.match(text)
    if found is None:
        return None
    names = {"down": DOWN, "slower": SLOWER, "noisy": NOISY, "some": SOME_ERRORS}
    count = _COUNT.search(text)
    return PortEvent(
        node=found["node"],
        port=found["port"],
        kind=next(kind for name, kind in names.items() if found[name]),
        downs=count[1] if count else "",
        text=text,
    )


def list_broken_links(lines: tuple[str, ...]) -> list[PortEvent]:
    """Return the links that went down, or whose errors exceed what a healthy link has, lost ones first."""
    events = [event for line in lines if (event := parse_port_event(line)) and event.kind in (DOWN, NOISY)]
    return sorted(events, key=lambda event: event.kind != DOWN)


def format_port_lines(epilog: Observation) -> list[str]:
    """Return Evidence.network of one Epilog, e.g. `network on n3: InfiniBand port mlx5_0/1 went down 2 times (...)`.

    Lost links come first. [] for records of other hooks, and of hooks that read no ports.
    """
    found = epilog.facts.get("network")
    if epilog.context is not Context.EPILOG or not isinstance(found, Mapping):
        return []
    ports = found.get("changed")
    hours = _get_number(found.get("s")) / 3600
    lines = [
        f"network on {epilog.node}: {_format_name(port)} {fact}"[:_CAP]
        for port in (ports if isinstance(ports, list) else ())
        if isinstance(port, Mapping)
        for fact in _list_facts(port, hours)
    ]
    order = {DOWN: 0, NOISY: 1, SLOWER: 2, SOME_ERRORS: 3}
    events = [event for line in lines if (event := parse_port_event(line))]
    return [event.text for event in sorted(events, key=lambda event: order[event.kind])][:_LINES]


def _format_name(port: Mapping[str, Any]) -> str:
    kind = "InfiniBand port" if port.get("link") == "infiniband" else "Ethernet interface"
    return f"{kind} {_clean(port.get('port'))}"


def _list_facts(port: Mapping[str, Any], hours: float) -> Iterable[str]:
    new = port.get("new")
    counts = {str(name): int(_get_number(value)) for name, value in new.items()} if isinstance(new, Mapping) else {}
    name, lost = next(((name, counts.pop(name)) for name in _DOWN_COUNTERS if name in counts), ("", 0))
    total = f" ({name} {int(_get_number(port.get('downs')))})" if name else ""
    if port.get("gone") is True:
        yield "is gone"
    elif port.get("state"):
        yield f"is {_clean(port['state'])}, it was {_clean(port.get('was'))}{total}"
    elif lost:
        full = port.get("full")
        at_least = "at least " if isinstance(full, list) and name in full else ""
        yield f"went down {at_least}{lost} time{'s' * (lost != 1)} while the job ran{total}"
    if port.get("rate"):
        yield f"runs at {_clean(port['rate'])}, it ran at {_clean(port.get('was_rate'))}"
    known = {name: count for name, count in counts.items() if count > 0}
    if known:
        many = any(
            count > _MOST_PER_HOUR[name] * max(1.0, hours) for name, count in known.items() if name in _MOST_PER_HOUR
        )
        shown = ", ".join(f"{_clean(name)} {count}" for name, count in known.items())
        yield f"{'has too many errors' if many else 'has errors'}: {shown} in {hours:.1f} h"


def _get_number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e15 else 0.0


def _clean(value: object) -> str:
    """Return a value without spaces at its ends and control characters."""
    return marked("" if value is None else str(value), " ", 64).strip()
