"""File name patterns of sbatch(1), as far as an Epilog can resolve them; measured on Slurm 22.05.8."""

from __future__ import annotations

import re

import pytest

from slurmwrap.node_hooks.log_tails import known, readings

ENVIRON = {b"SLURM_JOB_ID": b"41", b"SLURM_JOB_USER": b"alice", b"SLURM_JOB_UID": b"1001"}
VALUES = known(ENVIRON, b"vm")


def read_paths(pattern: bytes, values: dict[bytes, bytes] = VALUES) -> list[bytes]:
    """Each reading as one path, regular expressions in angle brackets."""
    return [
        b"/" + b"/".join(part if isinstance(part, bytes) else b"<" + part.pattern + b">" for part in reading)
        for reading in readings(pattern, values, b"/home/alice")
    ]


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"/a/%j.out", b"/a/41.out"),
        (b"%j.out", b"/home/alice/41.out"),
        (b"../x/./%u_%U", b"/home/x/alice_1001"),
        (b"/a/%N-%n-%t-%s-%J", b"/a/vm-0-0-batch-41"),
        (b"/a/%5j.%%j", b"/a/00041.%j"),
        (b"/a/%A_%a", b"/a/41_4294967294"),
        (b"/a/\\%j\\.out", b"/a/%j.out"),
        (b"/a/%q%", b"/a/%q%"),
        (b"/a/100%", b"/a/100%"),
        (b"/a/line\nbreak'\"-%j", b"/a/line\nbreak'\"-41"),
    ],
)
def test_known_tokens_are_replaced(pattern: bytes, path: bytes) -> None:
    assert read_paths(pattern)[0] == path


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"/a/%x/%j.out", rb"/a/<[^/]+\Z>/41.out"),
        (b"/a/%x-%j.out", rb"/a/<[^/]+\-41\.out\Z>"),
        (b"/a/job%b", rb"/a/<job[0-9]+\Z>"),
    ],
)
def test_unknown_tokens_become_a_regular_expression(pattern: bytes, path: bytes) -> None:
    assert read_paths(pattern) == [path]


def test_array_ids_are_a_second_reading_unless_slurm_gives_them() -> None:
    assert read_paths(b"/a/%A_%a") == [b"/a/41_4294967294", rb"/a/<[0-9]+_[0-9]+\Z>"]
    array_values = known({**ENVIRON, b"SLURM_ARRAY_JOB_ID": b"40", b"SLURM_ARRAY_TASK_ID": b"7"}, b"vm")
    assert read_paths(b"/a/%A_%3a", array_values) == [b"/a/40_007"]


def test_a_job_name_given_by_slurm_is_used() -> None:
    assert read_paths(b"/a/%x", known({**ENVIRON, b"SLURM_JOB_NAME": b"a.*b"}, b"vm")) == [b"/a/a.*b"]


def test_text_around_a_token_is_matched_literally() -> None:
    ((component,),) = readings(b"/.*[a]%x", VALUES, b"/")
    assert isinstance(component, re.Pattern)
    assert component.match(b".*[a]name") and not component.match(b"xxaname") and not component.match(b".*[a]n/m")
