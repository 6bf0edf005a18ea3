"""Pages have the form that the tests of their commands need, and the names on them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_output import find_missing_lines
from doc_pages import (
    NOT_RUN,
    OTHERS,
    PAGES,
    ROOT,
    RUN,
    Block,
    find_indented_blocks,
    find_misindented_list_lines,
    list_all_marks,
    parse_blocks,
    parse_commands,
)
from doc_words import find_unknown_words
from docs_commands import each, examples, slurmwrap

GENERATED = ("docs/reference/",)  # their blocks are the commands' own help: test_help_runs.py


BLOCKS = [block for path in PAGES for block in parse_blocks(path)]
OF_COMMANDS = [block for block in BLOCKS if block.language in RUN]


def test_every_block_is_fenced_with_a_known_language() -> None:
    assert {str(page): lines for page in PAGES if (lines := find_indented_blocks(page))} == {}, (
        "put them between ``` with a language"
    )
    assert {str(page): lines for page in PAGES if (lines := find_misindented_list_lines(page))} == {}, (
        "lists that are not indented by fours"
    )
    assert [f"{block.where}: {block.language}" for block in BLOCKS if block.language not in (*RUN, *OTHERS)] == []


def test_files_named_on_pages_for_developers_exist() -> None:
    pages = [
        *(ROOT / "docs" / "decisions").glob("*.md"),
        ROOT / "docs" / "CONTRIBUTING.md",
        ROOT / "docs" / "glossary.md",
    ]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"`((?:slurmwrap|tests|templates|prolog|hooks)/[\w./-]*|[a-z_]+/[a-z_/]+\.py)`", text))
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / "slurmwrap" / name).exists()] == []


def test_files_named_for_static_checks_exist() -> None:
    text = (ROOT / "docs" / "prerun-reference.md").read_text(encoding="utf-8")
    rows = text.split("## What the static stage looks at")[1].split("\n\n")[2].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.rstrip(" |").rpartition(" | ")[2])}
    assert len(rows) > 10 and len(named) > 10
    assert [n for n in sorted(named) if not (ROOT / "slurmwrap" / "prerun" / "static" / f"{n}.py").exists()] == []


def test_no_text_block_contains_a_command() -> None:
    shown = [
        f"{block.where}: {line}"
        for block in BLOCKS
        if block.language == "text" and not block.page.startswith(GENERATED)
        for line in block.lines
        if re.match(r"(\$ )?(sudo )?(slurmwrap|gsub|make|apt-get|pip) [a-z-]", line)
    ]
    assert shown == []


def test_every_test_instruction_is_known_and_precedes_a_block() -> None:
    known = ("not run: ", "exit ", "as root", "first: ", "settled", "reads: ", "another output")
    marks = [mark for page in PAGES for mark in list_all_marks(page)]
    assert [mark for mark in marks if not mark.startswith(known)] == []
    assert marks == [mark for block in BLOCKS for mark in block.marks]


def test_a_block_that_is_not_run_has_a_known_reason() -> None:
    left = [block for block in OF_COMMANDS if block.not_run and not _good_reason(block)]
    assert [f"{block.where}: {block.not_run}" for block in left] == []


def _good_reason(block: Block) -> bool:
    if path := block.not_run.removeprefix("by ") if block.not_run.startswith("by ") else "":
        return (ROOT / path).exists()
    return block.not_run in NOT_RUN


def test_commands_in_blocks_exist_with_their_options() -> None:
    shown = [(block, command) for block in OF_COMMANDS for command in parse_commands(block)]
    assert len(shown) > 200
    assert [f"{block.page}:{one.line}: {wrong}" for block, one in shown for wrong in find_unknown_words(one.text)] == []


def test_commands_in_the_text_exist_with_their_options() -> None:
    wrong = []
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        shown = [" ".join(one.split()) for one in re.findall(r"(?<!`)`((?:[^`\n]|\n(?!\n))+)`", text)]
        shown = [one.replace("\\|", "|") for one in shown if re.match(r"(\S*/)?(slurmwrap|gsub|make)\s", one)]
        wrong += [f"{page.name}: `{one}`: {said}" for one in shown for said in find_unknown_words(one)]
    assert wrong == []


def test_help_examples_exist_with_their_options() -> None:
    shown = [(one.name, line) for one in each(slurmwrap()) for line in examples(one)]
    assert [f"{name} --help: {line}: {wrong}" for name, line in shown for wrong in find_unknown_words(line)] == []


def test_every_command_or_its_group_has_an_example() -> None:
    tree = slurmwrap()
    with_example = {one.path for one in each(tree) if len(one.path) > 1 and examples(one)}
    without = [one.name for one in each(tree) if not one.below and not {one.path, one.path[:-1]} & with_example]
    assert without == []


# Tests of the checks themselves, on pages with known faults.


def test_words_that_do_not_exist_are_reported() -> None:
    assert list(find_unknown_words("slurmwrap why --jsn 81")) == ["slurmwrap why has no option --jsn"]
    assert list(find_unknown_words("slurmwrap nodes lst")) == ["slurmwrap nodes has no command lst"]
    assert list(find_unknown_words('eval "$(slurmwrap lab nev)"')) == ["slurmwrap lab has no command nev"]
    assert list(find_unknown_words("A=1 gsub --pre-run=wait x.sbatch --not-ours")) == ["gsub has no option --pre-run"]
    assert list(find_unknown_words("gsub --prerun=later x")) == ["gsub --prerun has no later"]
    assert list(find_unknown_words("make tset")) == ["make has no target tset"]


def test_placeholder_words_are_accepted() -> None:
    assert list(find_unknown_words("slurmwrap prerun list [--failed|--running] [--since 7d]")) == []
    assert list(find_unknown_words("gsub --prerun=wait|off -G 16 --mem=4G SCRIPT --whatever")) == []
    assert list(find_unknown_words("slurmwrap nodes …")) == []


def test_blocks_instructions_and_commands_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "text\n\n<!-- test: exit 3 -->\n<!-- test: first: touch a\ntouch b -->\n"
        "```console\n$ gsub \\\n    x\nrefused\n# id\n```\n"
        "<!-- test: settled -->\nwords between\n```sh\ncat <<END\n$ x\nEND\n# only words\nid\n```\n\n    indented\n"
    )
    monkeypatch.setattr("doc_pages.ROOT", tmp_path)
    first, second = parse_blocks(page)
    assert (first.page, first.line, first.marks) == ("page.md", 6, ("exit 3", "first: touch a\ntouch b"))
    assert [(one.line, one.text, one.output) for one in parse_commands(first)] == [
        (7, "gsub \\\n    x", ("refused",)),
        (10, "id", ()),
    ]
    assert (second.marks, list_all_marks(page)[-1]) == ((), "settled")
    assert [one.text for one in parse_commands(second)] == ["cat <<END\n$ x\nEND", "id"]
    assert find_indented_blocks(page) == [22]


PRINTED = """\
Job 7 train
  of swtest-alice, 4 GPUs, submitted 2026-11-21 20:18
  train.py:28: RuntimeError: bad size
---------
"""


@pytest.mark.parametrize(
    ("shown", "lost"),
    [
        (("Job 1 train", "  of ada, 16 GPUs, submitted 2025-01-02 03:04"), []),  # names, numbers and dates differ
        (("Job 1 train", "…", "  train.py:9: RuntimeError: bad size", "──"), []),
        (("Job 1 …", "…RuntimeError…size"), []),
        (("Job 1 other",), ["Job 1 other"]),
        (("  train.py:28: RuntimeError: bad size", "Job 7 train"), ["Job 7 train"]),  # in the wrong order
        (("Job 7",), ["Job 7"]),  # half a line without …
    ],
)
def test_lines_that_a_command_does_not_print_are_reported(shown: tuple[str, ...], lost: list[str]) -> None:
    assert find_missing_lines(shown, PRINTED, "swtest-alice") == lost


def test_a_list_that_the_site_would_break_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("- item\n  goes on\n\n  lost\n  - lost\n    - good\n\n    good\n")
    assert find_misindented_list_lines(page) == [4, 5]
