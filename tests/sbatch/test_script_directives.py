"""Directive lines are read by sbatch's rules; each case was tested with sbatch 22.05.8 (-v --test-only)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.sbatch.script_directives import (
    BadLine,
    has_foreign_directives,
    parse_directives,
    quote_word,
    replace_spans,
)


def words(*lines: str, release: tuple[int, int] | None = (22, 5)) -> list[list[str]]:
    content = "\n".join(("#!/bin/sh", *lines, "echo", "")).encode()
    return [[word.text for word in directive.words] for directive in parse_directives(content, release)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH -N2 -n 4", ["-N2", "-n", "4"]),
        ("#SBATCH--nodes=2", ["--nodes=2"]),
        ("#SBATCHX", ["X"]),
        ("#SLURM -J x", ["-J", "x"]),
        ("#SBATCH -N1 # two", ["-N1"]),
        ("#SBATCH -N2 --comment=a#b -J x", ["-N2", "--comment=a"]),
        (r"#SBATCH -J x\#y", ["-J", "x#y"]),
        ('#SBATCH --comment="a b" -J x', ["--comment=a b", "-J", "x"]),
        ('#SBATCH --comment="" -J x', ["--comment=", "-J", "x"]),
        ('#SBATCH --comment "" -J x', ["--comment"]),
        (r'#SBATCH -J "a\\ b\"c"', ["-J", r'a\ b"c']),
        ("""#SBATCH --comment='q"x'd"e f" """, ['--comment=q"xde f']),
        (r"#SBATCH -J a\ b", ["-J", "a", "b"]),
        (r"#SBATCH --comment \ x -n4", ["--comment"]),
        (r"#SBATCH --comment=\ -n4", ["--comment=", "-n4"]),
        (r"#SBATCH -J trail\\", ["-J", "trail\\"]),
        ("#SBATCH -n4 \\", ["-n4"]),
        ("#SBATCH\t-N2\f-n\v4\r-J\rz", ["-N2", "-n", "4", "-J", "z"]),
        ("#SBATCH -J HETJOB -N2", ["-J"]),
        ('#SBATCH -J "hetjob" -N2', ["-J", "hetjob", "-N2"]),
        ('#SBATCH --comment ":x" -n4', ["--comment", ":x", "-n4"]),
        ("#SBATCH", []),
        ("#GSUB --prerun=off # fast", ["--prerun=off"]),
    ],
)
def test_a_line_is_split_as_by_sbatch(line: str, expected: list[str]) -> None:
    assert words(line) == [expected]


SPACED = [
    (r"#SBATCH -J a\ b", ["-J", "a b"]),
    (r"#SBATCH --comment \ x -n4", ["--comment", " x", "-n4"]),
    (r"#SBATCH --comment=\ -n4", ["--comment= -n4"]),
    (r"#SBATCH -J a\\ b", ["-J", "a\\", "b"]),
    ("#SBATCH -J a\\\tb", ["-J", "a", "b"]),
]


@pytest.mark.parametrize(("line", "expected"), SPACED)
def test_since_24_05_a_backslash_escapes_a_space(line: str, expected: list[str]) -> None:
    assert words(line, release=(24, 5)) == [expected]


@pytest.mark.parametrize("line", [line for line, _ in SPACED[:3]])
def test_a_line_that_releases_split_differently_is_left_to_sbatch_if_unknown(line: str) -> None:
    with pytest.raises(BadLine, match="line 2: a space after a backslash") as raised:
        words(line, release=None)
    assert not raised.value.own
    assert words(line.replace("#SBATCH", "#GSUB"), release=None) == words(line, release=(24, 5))


@pytest.mark.parametrize(("line", "expected"), SPACED[3:])
def test_a_line_that_all_releases_split_alike_needs_no_known_release(line: str, expected: list[str]) -> None:
    assert words(line, release=None) == [expected]


@pytest.mark.parametrize("line", [" #SBATCH -N2", "##SBATCH -N2", "#sbatch -N2", "# SBATCH -N2", "#GSU --x", ""])
def test_a_comment_is_no_directive(line: str) -> None:
    assert words(line) == []


def test_directives_end_at_the_first_line_that_is_neither_blank_nor_comment() -> None:
    assert words("#SBATCH -N1", "\t  # more", "", " ", "#SBATCH -n2", "set -e", "#SBATCH -c3") == [["-N1"], ["-n2"]]


def test_line_numbers_and_spans_refer_to_the_script() -> None:
    content = b'#!/bin/sh\n\n#SBATCH -N2  --comment="a b" # c\n#GSUB --retry'
    first, second = parse_directives(content)
    assert (first.magic, first.line, content[first.start : first.stop]) == (
        "#SBATCH",
        3,
        b'#SBATCH -N2  --comment="a b" # c',
    )
    assert [content[word.start : word.stop] for word in first.words] == [b"-N2", b'--comment="a b"']
    assert (second.magic, second.line) == ("#GSUB", 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('#SBATCH "--comment=a', 'line 2: Unmatched `"` in ["--comment=a]'),
        ("#SBATCH :", "line 2: Unexpected `:` in [:]"),
        ("#SBATCH -N2 : -J x", "line 2: Unexpected `:` in [ : -J x]"),
    ],
)
def test_a_fatal_error_of_sbatch_names_the_line(line: str, message: str) -> None:
    with pytest.raises(BadLine) as caught:
        words(line)
    assert (str(caught.value), caught.value.line) == (message, 2)


@pytest.mark.parametrize(("line", "expected"), [("#SBATCH hetjob", True), ("#SBATCH -N2 hetjob", False)])
def test_hetjob_counts_only_as_the_first_word(line: str, expected: bool) -> None:
    content = f"#!/bin/sh\n{line}\n".encode()
    assert [directive.hetjob for directive in parse_directives(content)] == [expected]


def test_directives_of_other_schedulers_are_recognised() -> None:
    assert has_foreign_directives(b"#!/bin/sh\n#PBS -N x\n")
    assert has_foreign_directives(b"#!/bin/sh\n#BSUB -J x\n")
    assert not has_foreign_directives(b"#!/bin/sh\n# PBS -N x\n")


def test_only_the_replaced_bytes_change() -> None:
    assert replace_spans(b"abcdef", {(4, 5): b"EE", (1, 2): b""}) == b"acdEEf"


@given(st.text(min_size=1).filter(lambda text: "\n" not in text and "\0" not in text))
def test_a_quoted_word_is_parsed_back(text: str) -> None:
    try:
        raw = quote_word(text)
    except UnicodeEncodeError:
        return  # a lone surrogate cannot occur in a file name or an argument
    (directive,) = parse_directives(b"#!/bin/sh\n#SBATCH " + raw + b" --end\n")
    assert [word.text for word in directive.words] == [text, "--end"]


@pytest.mark.parametrize("text", ["", "a\nb", "a\0b"])
def test_a_text_that_no_line_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        quote_word(text)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_and_spans_stay_in_range(tail: bytes) -> None:
    content = b"#!/bin/sh\n#SBATCH " + tail
    try:
        directives = parse_directives(content)
    except BadLine:
        return
    for directive in directives:
        for word in directive.words:
            assert directive.start < word.start < word.stop <= directive.stop
