"""The user's line in a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from slurmwrap.prerun.verdict.python_traceback import Frame, blame

RANKS = """step 1
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 65, in <module>
[rank0]:     main()
[rank0]:     ^^^^^^
[rank0]:   File "/w/loss.py", line 28, in loss
[rank0]:     return nn.functional.cross_entropy(logits, tags)
[rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank0]:   File "/v/lib/python3.11/site-packages/torch/nn/functional.py", line 3555, in cross_entropy
[rank0]:     return torch._C._nn.cross_entropy_loss(
[rank0]: RuntimeError: Expected target size [32, 12], got [32, 24]
E1121 torch/distributed/elastic failed (exitcode: 1)
Traceback (most recent call last):
  File "/v/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_the_traceback_of_the_rank_and_the_innermost_user_line_are_found() -> None:
    found = blame(RANKS)
    assert found is not None
    assert found.error == "RuntimeError: Expected target size [32, 12], got [32, 24]"
    assert found.own == Frame(file="/w/loss.py", line=28, code="return nn.functional.cross_entropy(logits, tags)")
    assert len(found.frames) == 3


def test_a_syntax_error_without_a_traceback_header_is_found() -> None:
    found = blame("  File \"/w/a.py\", line 3\n    print(\n         ^\nSyntaxError: '(' was never closed\n")
    assert found is not None
    assert (found.own.line, found.error) == (3, "SyntaxError: '(' was never closed")


def test_the_first_error_of_a_chain_is_blamed() -> None:
    def chained() -> None:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise RuntimeError("b") from error

    found = blame(format_traceback(chained))
    assert found is not None
    assert found.error == "KeyError: 'a'"


def test_errors_without_a_message_and_with_several_lines_are_read() -> None:
    def failing() -> None:
        raise AssertionError

    def wordy() -> None:
        raise ValueError("first\nsecond")

    assert [b.error for f in (failing, wordy) if (b := blame(format_traceback(f)))] == [
        "AssertionError",
        "ValueError: first",
    ]


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):\n", "all well\n", "Traceback (most\nError: x"]
)
def test_text_without_a_traceback_has_no_blame(text: str) -> None:
    assert blame(text) is None


def format_traceback(function: Callable[[], None]) -> str:
    try:
        function()
    except Exception:
        return traceback.format_exc()
    return ""


def test_the_error_in_a_worker_is_blamed_instead_of_the_line_that_reraised_it() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 5, in <module>\n    for x in loader:\n'
        "KeyError: Caught KeyError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "/w/data.py", line 9, in __getitem__\n'
        "    return row['y']\nKeyError: 'y'\n"
    )
    found = blame(text)
    assert found is not None
    assert (found.error, found.own.file, found.own.line) == ("KeyError: 'y'", "/w/data.py", 9)


def test_a_traceback_with_ranks_behind_an_unfinished_progress_bar_is_found() -> None:
    rows = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 7, in step',
        "    log(x)",
        "ValueError: no",
    ]
    found = blame("Epoch 0:   0%|          | 0/8 [00:00<?, ?it/s]" + "\n".join(f"[rank0]: {row}" for row in rows))
    assert found is not None and (found.kind, found.own.line) == ("ValueError", 7)


@pytest.mark.parametrize(
    "bar", [" 12%|#2        | 31/250 [01:44<12:15,  2.01s/it]", "Epoch 1: 40%", "Sanity: | 0/? [00:00<?]"]
)
def test_a_traceback_behind_an_unfinished_progress_bar_is_found(bar: str) -> None:
    text = (
        f'{bar}Traceback (most recent call last):\n  File "/w/train.py", line 7, in step\n    log(x)\nValueError: no\n'
    )
    found = blame(text)
    assert found is not None and (found.kind, found.own.line) == ("ValueError", 7)
