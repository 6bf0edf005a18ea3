"""Markdown, CSV and JSON reports as parsed by their readers, with hostile names too."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import nights
import pytest
import report_schema
from jsonschema import Draft202012Validator
from markdown_it import MarkdownIt

from slurmwrap.report import report_formats
from slurmwrap.report.headline import build_page
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.text_format import visible
from slurmwrap.store.deserialize import record_from_json

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "report.schema.json"
NIGHTS = {
    "full": nights.full(),
    "hostile": nights.hostile(),
    "empty": nights.empty(),
    "own": nights.own(),
    "hostile own": nights.own(nights.HOSTILE),
}
READER = MarkdownIt("commonmark").enable("table")


# ---- Markdown


def list_token_types(text: str) -> set[str]:
    found = READER.parse(text)
    return {token.type for token in found} | {child.type for token in found for child in token.children or ()}


def test_hostile_names_add_no_markdown_elements() -> None:
    hostile = report_formats.render_markdown(build_page(nights.hostile()))
    assert list_token_types(hostile) == list_token_types(report_formats.render_markdown(build_page(nights.full())))
    assert list_token_types(hostile) & {"html_block", "html_inline", "link_open", "image"} == set()
    shown = [child.content for token in READER.parse(hostile) for child in token.children or ()]
    assert visible(nights.HOSTILE) in shown


def test_every_row_of_a_markdown_table_has_all_cells() -> None:
    for report, expected in ((nights.full(), 27), (nights.hostile(), 27), (nights.own(nights.HOSTILE), 13)):
        rendered = READER.render(report_formats.render_markdown(build_page(report)))
        tables = [table.split("</table>")[0] for table in rendered.split("<table>")[1:]]
        assert len(tables) == expected
        for table in tables:
            assert len({row.count("<td") + row.count("<th") for row in table.split("<tr>")[1:]}) == 1


# ---- CSV


def read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(StringIO(text)))


def test_one_csv_file_per_table() -> None:
    files = report_formats.render_files(build_page(nights.full()))
    tables = {table.key for section in build_page(nights.full()).sections for table in section.tables}
    assert set(files) == {f"{key}.csv" for key in tables} | {"figures.csv"}
    for name, text in files.items():
        assert len({len(row) for row in read_csv(text)}) == 1, name


def test_the_main_csv_file_has_unformatted_values() -> None:
    head, first, *_ = read_csv(report_formats.render_main_file(build_page(nights.full())))
    assert dict(zip(head, first, strict=True)) == {
        "category": "gpu_hardware",
        "domain": "infrastructure",
        "runs": "14",
        "runs_before": "6",
        "change": "8",
        "jobs": "9",
        "users": "6",
        "median_run_s": "6120",
        "p90_run_s": "21400",
        "p95_run_s": "60100",
        "gpus_1": "0",
        "gpus_2_4": "1",
        "gpus_5_8": "6",
        "gpus_over_8": "7",
        "gpu_hours": "812.4",
        "gpu_hours_before": "388.1",
        "share": "0.068612",
        "more": "infrastructure: the GPU, its link or its firmware failed",
    }


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_csv_cell_with_a_user_chosen_name_is_a_formula(text: str) -> None:
    files = [report_formats.render_files(build_page(night)) for night in (nights.hostile(text), nights.own(text))]
    cells = [cell for one in files for file in one.values() for row in read_csv(file) for cell in row]
    assert [cell for cell in cells if cell.startswith((text, visible(text)))] == []
    assert sum(cell.startswith(f"'{visible(text)}") for cell in cells) > 60


def test_a_night_without_failures_gives_a_csv_file_with_only_a_header() -> None:
    assert report_formats.render_main_file(build_page(nights.empty())) == "category\r\n"


# ---- JSON


@pytest.mark.parametrize("name", NIGHTS)
def test_json_is_valid_against_its_schema_and_can_be_read_back(name: str) -> None:
    text = report_formats.render_json(NIGHTS[name], made_by="slurmwrap 1")
    plain = json.loads(text)
    Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(plain)
    assert text.isascii()
    assert record_from_json(NightReport, plain) == NIGHTS[name]


def test_the_json_schema_is_valid_and_matches_the_records() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == report_schema.text(), "python .ci/report_schema.py writes it"
    Draft202012Validator.check_schema(report_schema.schema())


def test_a_field_of_another_type_is_invalid_against_the_schema() -> None:
    plain = report_formats.make_document(nights.full(), made_by="slurmwrap 1")
    plain["headline"]["jobs"] = "many"
    assert not Draft202012Validator(report_schema.schema()).is_valid(plain)
