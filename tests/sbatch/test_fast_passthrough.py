"""The fast check of a call: every call that it passes through, the full parser passes to sbatch unchanged too."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.errors import ScriptError, UsageError
from slurmwrap.sbatch.command_line import split_command_line
from slurmwrap.sbatch.fast_passthrough import (
    FLAG_LETTERS,
    LETTERS_WITH_VALUE,
    LONG_FLAGS,
    LONG_WITH_VALUE,
    is_certain_passthrough,
    read_regular_file,
)
from slurmwrap.sbatch.job_request import GsubOptions
from slurmwrap.sbatch.option_table import BY_LETTER, BY_NAME, NONE, OWN_BY_NAME
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.passthrough import find_passthrough_reason

PLAIN = b"#!/bin/bash\n#SBATCH --mem=4G -c 2\nsrun python train.py --gpus 8\n"
GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task")


def passes_through(*words: str, script: bytes | None = PLAIN, environ: dict[str, str] | None = None) -> bool:
    return is_certain_passthrough(words, environ or {}, {"a.sh": script}.get)


# --- its tables agree with sbatch/option_table.py


def test_letters_with_a_value_are_those_of_the_option_table_except_G_D_d_k() -> None:
    takers = {letter for letter, option in BY_LETTER.items() if option.argument is not NONE}
    assert set(LETTERS_WITH_VALUE) == takers - {"G", "D", "d", "k"}  # -k takes its value attached only
    assert {BY_LETTER[letter].argument for letter in FLAG_LETTERS} == {NONE}


def test_long_names_match_the_option_table_with_and_without_value() -> None:
    assert {name for name in LONG_WITH_VALUE if BY_NAME[name].argument is NONE} == set()
    assert {name for name in LONG_FLAGS if BY_NAME[name].argument is not NONE} == set()


def test_no_gpu_option_gsub_option_or_chdir_is_in_the_tables() -> None:
    known = LONG_WITH_VALUE | LONG_FLAGS
    assert known & {*GPU_OPTIONS, *OWN_BY_NAME, "chdir", "ignore-pbs"} == frozenset()
    assert {option.name for name, option in BY_LETTER.items() if name in LETTERS_WITH_VALUE + FLAG_LETTERS} & {
        *GPU_OPTIONS,
        "chdir",
    } == set()


# --- which calls it passes through


@pytest.mark.parametrize(
    "words",
    [
        ("a.sh",),
        ("-N2", "-n", "8", "--mem=4G", "-H", "a.sh", "--gpus=8", "x"),
        ("-p", "gpu", "--parsable", "a.sh"),
        ("--wrap=nvidia-smi --gpus",),
        ("-J", "x", "--wrap=hostname"),
    ],
)
def test_a_plain_call_is_passed_through(words) -> None:
    assert passes_through(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("--gres=gpu:1", "a.sh"),
        ("-G2", "a.sh"),
        ("-HG2", "a.sh"),
        ("--gpus", "2", "a.sh"),
        ("--dry-run", "a.sh"),
        ("--exp", "a.sh"),  # ambiguous: --export, --explain ...
        ("--prerun=off", "a.sh"),
        ("--chdir=/tmp", "a.sh"),
        ("-D", "/tmp", "a.sh"),
        ("--dependency=afterok:77_5", "a.sh"),
        ("-dafterok:77_5", "a.sh"),
        ("--nodes", "2", "a.sh"),
        ("--mem=1", "--", "a.sh"),
        ("-N1", "a.sh", ":", "-N2"),
        ("-N1",),  # from stdin
        ("-", "a.sh"),
        ("other.sh",),  # found by PATH, or missing
        ("--wrap=x", "a.sh"),
        (),
    ],
)
def test_a_call_that_is_not_certain_is_parsed_in_full(words) -> None:
    assert not passes_through(*words)


@pytest.mark.parametrize(
    "line",
    [
        b"#SBATCH --gres=gpu:1",
        b"#SBATCH --gr",
        b"#SBATCH -HG 2",
        b"#SBATCH -N1 -G2",
        b"#SLURM --gpus=2",
        b"#SBATCH--gpus=2",
        b"#GSUB --explain",
        b"#SBATCH --g\\res=g\\pu:1",
        b'#SBATCH --comment="a b"',
        b"#SBATCH --tres-per-task=gres/gpu=1",
    ],
)
def test_a_script_with_an_uncertain_directive_is_parsed_in_full(line) -> None:
    assert not passes_through("a.sh", script=b"#!/bin/sh\n" + line + b"\nhostname\n")


@pytest.mark.parametrize("words", [("-p", "auto"), ("-pauto",), ("--partition=auto",)])
def test_a_partition_that_gsub_chooses_is_parsed_in_full(words: tuple[str, ...]) -> None:
    assert not passes_through(*words, "a.sh")
    assert not passes_through("a.sh", script=f"#!/bin/sh\n#SBATCH {' '.join(words)}\n".encode())
    assert not passes_through("a.sh", environ={"SBATCH_PARTITION": "auto"})
    assert passes_through("a.sh", environ={"SBATCH_PARTITION": "gpu"})


@pytest.mark.parametrize("name", ["GSUB_PRERUN", "GSUB_PASS", "SBATCH_GRES", "SBATCH_GPUS", "SBATCH_TRES_PER_TASK"])
def test_a_call_with_a_relevant_variable_is_parsed_in_full(name) -> None:
    assert (passes_through("a.sh"), passes_through("a.sh", environ={name: "1"})) == (True, False)


def test_every_variable_of_a_gpu_option_is_recognised() -> None:
    assert not any(passes_through("a.sh", environ={v: "1"}) for name in GPU_OPTIONS for v in BY_NAME[name].variables)


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    import os

    (tmp_path / "a.sh").write_bytes(PLAIN)
    os.mkfifo(tmp_path / "pipe")
    found = [read_regular_file(str(tmp_path / name)) for name in ("a.sh", "pipe", "none", ".")]
    assert found == [PLAIN, None, None, None]


# --- the result agrees with the full parser

_OPTIONS = st.sampled_from(sorted({*BY_NAME, *OWN_BY_NAME}))
_VALUES = st.sampled_from(["1", "gpu:2", "gres/gpu=2", "a", "4G", "off", "a.sh", "", ":", "gpu"])


@st.composite
def _words(draw: st.DrawFn) -> list[str]:
    words = []
    for _ in range(draw(st.integers(0, 4))):
        name, value = draw(_OPTIONS), draw(_VALUES)
        cut = name[: draw(st.integers(1, len(name)))] if draw(st.booleans()) else name
        letters = "".join(draw(st.lists(st.sampled_from(sorted(BY_LETTER)), min_size=1, max_size=3)))
        words += draw(
            st.sampled_from([[f"--{cut}={value}"], [f"--{cut}", value], [f"--{cut}"], [f"-{letters}{value}"]])
        )
        words += draw(st.sampled_from([[], [f"-{letters}", value]]))
    return words


@st.composite
def _calls(draw: st.DrawFn) -> tuple[list[str], dict[str, str], bytes]:
    magic = st.sampled_from([b"#SBATCH ", b"#SBATCH", b"#SLURM ", b"#GSUB ", b"# ", b""])
    lines = [draw(magic) + " ".join(draw(_words())).encode() for _ in range(draw(st.integers(0, 2)))]
    given = draw(st.lists(_OPTIONS, max_size=1))
    environ = {v: draw(_VALUES) for name in given if name in BY_NAME for v in BY_NAME[name].variables}
    environ |= {OWN_BY_NAME[name].variable: draw(_VALUES) for name in given if name in OWN_BY_NAME}
    rest = draw(st.sampled_from([["a.sh"], ["a.sh", "--gpus=2"], [], ["other.sh"]]))
    return [*draw(_words()), *rest], environ, b"\n".join([b"#!/bin/sh", *lines, b"srun x", b""])


@given(_calls())
def test_a_fast_passthrough_call_is_passed_on_unchanged_by_the_full_parser_too(call) -> None:
    words, environ, script = call
    files = {"/home/a/a.sh": script}
    if not is_certain_passthrough(words, environ, lambda name: files.get(f"/home/a/{name}")):
        return

    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory")
        return files[path]

    def fail_on_stdin() -> bytes:
        raise AssertionError("standard input must not be touched")

    with suppress(UsageError):
        assert split_command_line(words).without_own == tuple(words)
    try:
        request = parse_request(words, environ=environ, cwd="/home/a", read_script=read, read_stdin=fail_on_stdin)
    except (UsageError, ScriptError) as error:
        assert not (isinstance(error, UsageError) and error.hint)  # sbatch reports the error
        return
    assert request.own == GsubOptions()
    assert find_passthrough_reason(request) is not None
