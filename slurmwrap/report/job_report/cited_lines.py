"""Format the lines that a diagnosis cites, each between the lines around it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from slurmwrap.diagnosis.cited_context import find_own_place
from slurmwrap.diagnosis.log_rows import strip_prefix
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation
from slurmwrap.report.text_format import TextStyle, count, fit, width

# Largest number of cited lines of one run.
MAX_LINES = 8
# Largest width of a shortened line in columns.
_SHORT = 60
_RAISED = re.compile(r"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Warning|Exit))(?::|$)")
# Largest number of characters of one cited line.
MAX_TEXT = 300
_FRAME = re.compile(r'File "([^"\n]{1,400})", line \d+')


def format_citations(citations: Sequence[Citation], style: TextStyle, output: str = "") -> Iterator[str]:
    """Yield root causes first, with the lines around them; at most MAX_LINES unless `style.verbose` is set.

    `output`: the file of a pre-run's output, which its citations call "output".
    """
    if output:
        citations = [replace(one, source=output) if one.source == "output" else one for one in citations]
    ordered = sorted(citations, key=lambda citation: citation.role != "root")
    shown = ordered if style.verbose else ordered[:MAX_LINES]
    texts = frozenset(citation.text.strip() for citation in shown)
    for citation in shown:
        yield from (
            _format_in_place(citation, texts, style)
            if citation.before or citation.after
            else _format_lone_citation(citation, style)
        )
    if len(ordered) > len(shown):
        yield f"  | and {count(len(ordered) - len(shown), 'line')} more (-v shows all)"


def _format_lone_citation(citation: Citation, style: TextStyle) -> Iterator[str]:
    yield style.wrapped(f"| {format_citation_place(citation)}: {_format_text(citation, style)}", "  ", "  |   ")


def _format_in_place(citation: Citation, others: frozenset[str], style: TextStyle) -> Iterator[str]:
    yield style.wrapped(f"{format_citation_place(citation)}", "  ")
    yield from _format_context(citation.before, others, style)
    yield style.paint(style.wrapped(f"> {_format_text(citation, style)}", "    ", "    >   "), "bold")
    yield from _format_context(citation.after, others, style)


def _format_context(lines: Sequence[str], others: frozenset[str], style: TextStyle) -> Iterator[str]:
    """Yield neighbouring lines, without those that are cited themselves. Long paths of frames are cut at the start."""
    for line in lines:
        if line.strip() not in others:
            yield style.paint(fit(f"    | {_shorten_line(line, style.columns - 6)}", style.columns), "dim")


def _shorten_line(line: str, columns: int) -> str:
    frame = _FRAME.search(line)
    if frame is None or width(line) <= columns:
        return line
    parts = frame[1].split("/")
    while len(parts) > 1 and width(line) > columns:
        parts = parts[1:]
        line = line[: frame.start(1)] + "…/" + "/".join(parts) + frame.string[frame.end(1) :]
    return line


def format_short_citation(citations: Sequence[Citation]) -> str:
    """Return "AttributeError (model.py:7)" for the decisive line, or the beginning of that line."""
    root = next((one for one in citations if one.role == "root"), None)
    if root is None:
        return ""
    place = find_own_place(citations)
    raised = _RAISED.match(strip_prefix(root.text))
    what = raised[1].rpartition(".")[2] if raised else fit(root.text.strip(), _SHORT)
    return f"{what} ({place[0].rpartition('/')[2]}:{place[1]})" if place else f"{what} ({format_citation_place(root)})"


def format_citation_place(citation: Citation) -> str:
    """Return "slurm-81.out:812"; "kernel:n3" for lines without numbers."""
    return f"{citation.source}:{citation.line}" if citation.line else citation.source


def _format_text(citation: Citation, style: TextStyle) -> str:
    text = citation.text.strip()
    return text if style.verbose or len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
