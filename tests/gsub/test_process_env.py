"""The standard streams of gsub when its caller has closed some of them."""

from __future__ import annotations

import sys

import pytest

from slurmwrap.gsub.process_env import normalize_process


@pytest.mark.parametrize(("name", "number"), [("stdin", 0), ("stdout", 1), ("stderr", 2)])
def test_a_closed_standard_stream_is_opened_and_the_others_are_kept(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PYTHONIOENCODING", "LC_CTYPE"):  # normalize_process may remove LC_CTYPE
        monkeypatch.delenv(variable, raising=False)
    others = {other: getattr(sys, other) for other in ("stdin", "stdout", "stderr") if other != name}
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, None)
        normalize_process()
        opened = getattr(sys, name)
        kept = {other: getattr(sys, other) for other in others}
        for other, stream in others.items():
            setattr(sys, other, stream)
    assert opened is not None and opened.fileno() == number
    assert kept == others
