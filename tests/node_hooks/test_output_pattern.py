"""sbatch's file name patterns as an Epilog can read them (sbatch(1); facts measured on Slurm 22.05.8)."""

from __future__ import annotations

import re

import pytest

from slurmwrap.node_hooks.log_tails import known, readings

ENVIRON = {b"SLURM_JOB_ID": b"41", b"SLURM_JOB_USER": b"alice", b"SLURM_JOB_UID": b"1001"}
VALUES = known(ENVIRON, b"vm")


def read(pattern: bytes, values: dict[bytes, bytes] = VALUES) -> list[bytes]:
    """Each reading as one path, expressions in angle brackets."""
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
def test_known_tokens_are_filled_in(pattern: bytes, path: bytes) -> None:
    assert read(pattern)[0] == path


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"/a/%x/%j.out", rb"/a/<[^/]+\Z>/41.out"),
        (b"/a/%x-%j.out", rb"/a/<[^/]+\-41\.out\Z>"),
        (b"/a/job%b", rb"/a/<job[0-9]+\Z>"),
    ],
)
def test_unknown_tokens_become_an_expression(pattern: bytes, path: bytes) -> None:
    assert read(pattern) == [path]


def test_an_array_is_the_second_reading_unless_slurm_says_which() -> None:
    assert read(b"/a/%A_%a") == [b"/a/41_4294967294", rb"/a/<[0-9]+_[0-9]+\Z>"]
    told = known({**ENVIRON, b"SLURM_ARRAY_JOB_ID": b"40", b"SLURM_ARRAY_TASK_ID": b"7"}, b"vm")
    assert read(b"/a/%A_%3a", told) == [b"/a/40_007"]


def test_a_job_name_that_slurm_tells_is_used() -> None:
    assert read(b"/a/%x", known({**ENVIRON, b"SLURM_JOB_NAME": b"a.*b"}, b"vm")) == [b"/a/a.*b"]


def test_what_the_user_wrote_around_a_token_is_taken_literally() -> None:
    ((component,),) = readings(b"/.*[a]%x", VALUES, b"/")
    assert isinstance(component, re.Pattern)
    assert component.match(b".*[a]name") and not component.match(b"xxaname") and not component.match(b".*[a]n/m")
