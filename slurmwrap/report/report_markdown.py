"""Turns a Page into Markdown as GitHub and GitLab read it.

Someone's words are in code spans: there no Markdown, HTML, link or mention is read (CommonMark 6.1).
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmwrap.escape import markdown, markdown_block, markdown_code
from slurmwrap.report import text_format
from slurmwrap.report.report_page import NUMERIC, UNTRUSTED, Column, Page, ReportTable, Section, format_value

MARKDOWN_MORE = 400  # characters of someone's words


def render_markdown(page: Page) -> str:
    """The page; ends with a line break."""
    return "\n\n".join(part for part in _format_parts(page) if part) + "\n"


def _format_parts(page: Page) -> Iterator[str]:
    yield f"# {markdown(page.title)}, {markdown_code(page.whose)}"
    yield markdown(page.period)
    yield f"**{markdown(page.verdict.sentence)}**"
    yield "\n".join(_format_markdown_figures(page))
    yield from _format_actions(page)
    for section in page.sections:
        yield from _format_section(section, page)
    yield from _format_ending(page)


def _format_markdown_figures(page: Page) -> Iterator[str]:
    for one in page.figures:
        rest = "; ".join(part for part in (one.detail, one.change) if part)
        yield f"- **{markdown(one.value)}** {markdown(one.label)}{f' ({markdown(rest)})' if rest else ''}"


def _format_actions(page: Page) -> Iterator[str]:
    if page.to_do:
        yield "## What to do"
    for one in page.to_do:
        yield markdown_code(text_format.fit(one.because, MARKDOWN_MORE))
        yield markdown_block(one.command, "sh")


def _format_section(section: Section, page: Page) -> Iterator[str]:
    yield f"## {markdown(section.title)}"
    if not section.has_something:
        yield markdown(section.empty)
    for line in section.lead:
        yield markdown(line)
    for table in section.tables:
        if table.title != section.title:
            yield f"### {markdown(table.title)}"
        yield markdown(table.lead)
        yield "\n".join(_format_table(table.seen, page))


def _format_table(table: ReportTable, page: Page) -> Iterator[str]:
    more = any(row.more or row.command for row in table.rows)
    heads = [markdown(column.alone or column.head) for column in table.columns] + ["more"] * more
    rules = ["--:" if column.kind in NUMERIC else ":--" for column in table.columns] + [":--"] * more
    yield _format_line(heads)
    yield _format_line(rules)
    for row in table.rows[: table.limit]:
        cells = [_format_cell(value, column, page) for column, value in zip(table.columns, row.values, strict=True)]
        said = [markdown_code(text_format.fit(part, MARKDOWN_MORE)) for part in (row.more, row.command) if part]
        yield _format_line([*cells, *([" ".join(said)] if more else [])])
    if len(table.rows) > table.limit:
        yield f"\nand {len(table.rows) - table.limit:,} more"


def _format_cell(value: object, column: Column, page: Page) -> str:
    text = format_value(value, column, page.zone)
    somebodys = column.kind in UNTRUSTED and value not in (None, ())
    return markdown_code(text_format.fit(text, MARKDOWN_MORE)) if somebodys else markdown(text)


def _format_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_ending(page: Page) -> Iterator[str]:
    if page.notes:
        yield "## Notes"
        yield "\n".join(f"- {markdown_code(text_format.fit(note, MARKDOWN_MORE))}" for note in page.notes)
    if page.glossary:
        yield "## Words and formulas"
        yield "\n".join(f"- **{markdown(term.name)}**: {markdown(term.meaning)}" for term in page.glossary)
