"""Advice: one sentence with the names from the error message."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.advice import fill_template, find_specific_advice, make_printable
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.evidence import Evidence, LogTail

TRACEBACK = 'Traceback (most recent call last):\n  File "/home/ann/train.py", line 7, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("ModuleNotFoundError: No module named 'apex.amp'", "'apex.amp'"),
        ("ImportError: cannot import name 'Tensor' from 'typing' (/usr/lib/typing.py)", "'typing' has no 'Tensor'"),
        (
            "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
            "libcudart.so.11.0",
        ),
        ("train.py: error: unrecognized arguments: --lerning-rate 3", "'--lerning-rate'"),
        ("train.py: error: the following arguments are required: --data, --out", "--data, --out"),
        ("TypeError: f() got an unexpected keyword argument 'use_cache'", "'use_cache'"),
        ("AttributeError: module 'numpy' has no attribute 'bool'", "'numpy' has no 'bool'"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", "'/data/train.bin'"),
        ("PermissionError: [Errno 13] Permission denied: '/data/out'", "'/data/out'"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0", "2.00 GiB"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 12.3 GiB for an array", "12.3 GiB"),
        (
            "RuntimeError: The server socket has failed to listen. port: 29500, EADDRINUSE, address already in use",
            "29500",
        ),
        ("OSError: [Errno 28] No space left on device: '/scratch/ckpt.pt'", "'/scratch/ckpt.pt'"),
        ("KeyError: 'label'", "'label'"),
        ("IndexError: list index out of range", "IndexError"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 9x2)", "(4x8 and 9x2)"),
    ],
)
def test_the_advice_names_what_the_message_names(line: str, named: str) -> None:
    log = LogTail(name="out", text=f"{TRACEBACK}{line}\n")
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(log,)))
    assert named in found.advice
    assert found.advice.endswith(".")


def test_advice_names_a_command_that_was_not_found() -> None:
    assert "'pyhton'" in find_specific_advice("syntax_error", "run.sh: line 3: pyhton: command not found")


def test_a_message_without_names_gets_the_advice_of_its_category() -> None:
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(LogTail(name="out", text="MemoryError\n"),)))
    assert found.advice == CATEGORIES["cpu_oom"].advice


def test_names_in_advice_have_no_control_characters_and_are_cut() -> None:
    assert make_printable("a\x1b[31m\x9b\u202eb\n") == "a[31mb"
    assert len(make_printable("x" * 10_000)) == 120


def test_a_template_is_filled_once_and_is_empty_if_a_name_is_missing() -> None:
    assert fill_template("Install {name}.", {"name": "{other}", "other": "x"}) == "Install {other}."
    assert (fill_template("Install {name}.", {"name": None}), fill_template("Install {name}.", {})) == ("", "")
