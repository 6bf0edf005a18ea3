"""The call of sacct that people are told is the one whose output is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmwrap.cli.whatif.whatif_command import whatif
from slurmwrap.sim.trace.sacct_dump import COMMAND

DOCS = Path(__file__).resolve().parents[3] / "docs" / "traces.md"


@pytest.mark.parametrize("text", [DOCS.read_text(encoding="utf-8"), whatif.__doc__ or ""], ids=["docs", "whatif"])
def test_the_call_is_told_whole(text: str) -> None:
    assert COMMAND in re.sub(r"\\\n\s*", "", text)
