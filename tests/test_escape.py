"""Escaping of foreign text for terminals, CSV cells, Markdown and Comment, for each kind of harmful text."""

from __future__ import annotations

import csv
import io

import pytest

from slurmwrap.escape import cell, comment, harmless, markdown, markdown_block, markdown_code, marked, utf8, visible

HARMLESS = "größe 模型 e\u0301 🧨 \\n"  # contains no harmful character
HARMFUL = {
    "\x1b[2J": "\\x1b[2J",  # ANSI
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "\x9b31m": "\\x9b31m",  # the same sequence with one C1 control character
    "a\r\nb": "a\\r\\nb",
    "a\tb": "a\\tb",
    "\u202eexe.sh\u2066": "\\u202eexe.sh\\u2066",  # bidirectional overrides
    "a\u2028b\u200bc": "a\\u2028b\\u200bc",  # line separator, zero width
    "\x00\x7f": "\\x00\\x7f",
    "\udcff\udc9b": "\\xff\\x9b",  # bytes that are not UTF-8
    "\ud800": "\\ud800",  # a lone surrogate
    "\U000e0041": "\\U000e0041",  # an invisible tag character
}


@pytest.mark.parametrize("text", ["", "train", HARMLESS])
def test_harmless_text_stays_unchanged(text: str) -> None:
    assert (visible(text), harmless(text), cell(text), marked(text, "?", 99)) == (text, text, text, text)


@pytest.mark.parametrize(("text", "spelt"), HARMFUL.items())
def test_single_line_text_has_all_harmful_characters_escaped(text: str, spelt: str) -> None:
    assert visible(text) == spelt
    assert visible(f"{HARMLESS}{text}{HARMLESS}") == f"{HARMLESS}{spelt}{HARMLESS}"


@pytest.mark.parametrize(("text", "spelt"), HARMFUL.items())
def test_multi_line_text_keeps_only_line_breaks_and_tabs(text: str, spelt: str) -> None:
    assert harmless(text) == spelt.replace("\\n", "\n").replace("\\t", "\t")


@pytest.mark.parametrize(
    ("mark", "kept"), [("?", "a?[2J?b??c"), (" ", "a [2J b  c"), ("", "a[2Jbc")], ids=["mark", "space", "nothing"]
)
def test_marked_text_is_replaced_character_by_character_and_cut(mark: str, kept: str) -> None:
    text = "a\x1b[2J\u202eb\r\nc"
    assert (marked(text, mark, 99), marked(text, mark, 2)) == (kept, kept[: 2 if mark else 1])


def test_files_and_the_journal_get_valid_utf8() -> None:
    assert utf8("é\udcff\ud800\n") == b"\xc3\xa9\\udcff\\ud800\n"


def test_a_comment_is_one_limited_line_after_the_existing_text() -> None:
    assert comment("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert comment("ours", "theirs") == "theirs | ours"
    assert comment("x" * 1000, "y" * 500) == f"{'y' * 500} | {'x' * 400}"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+a", "'+a"),
        ("-a", "'-a"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("a=1", "a=1"),
        ('a,"b"\n', 'a,"b"\\n'),
    ],
)
def test_a_csv_cell_is_never_a_formula_or_a_second_line(text: str, written: str) -> None:
    assert cell(text) == written
    out = io.StringIO()
    csv.writer(out).writerow([cell(text)])
    assert list(csv.reader(io.StringIO(out.getvalue()))) == [[written]]


def test_markdown_text_has_no_markup() -> None:
    assert markdown("[a](b) *c* <d> |&@#!~_`\\\u202e") == (
        "\\[a\\](b) \\*c\\* \\<d\\> \\|\\&\\@\\#\\!\\~\\_\\`\\\\\\\\u202e"
    )


@pytest.mark.parametrize(
    ("text", "span", "block"),
    [
        ("a|b", "`a\\|b`", "```sh\na|b\n```"),
        ("a``b", "```a``b```", "```sh\na``b\n```"),
        ("`", "`` ` ``", "```sh\n`\n```"),
        ("`a", "`` `a ``", "```sh\n`a\n```"),
        ("```\nx", "```` ```\\nx ````", "````sh\n```\\nx\n````"),
        ("", "`–`", "```sh\n\n```"),
        ("\x1b[2J", "`\\x1b[2J`", "```sh\n\\x1b[2J\n```"),
    ],
)
def test_text_cannot_end_a_markdown_code_span_or_block(text: str, span: str, block: str) -> None:
    assert (markdown_code(text), markdown_block(text, "sh")) == (span, block)
