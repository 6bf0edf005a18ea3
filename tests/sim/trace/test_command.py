"""The sacct command in documentation and help is the one whose output is parsed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmwrap.cli.whatif.whatif_command import whatif
from slurmwrap.sim.trace.sacct_dump import COMMAND

DOCS = Path(__file__).resolve().parents[3] / "docs" / "traces.md"


@pytest.mark.parametrize("text", [DOCS.read_text(encoding="utf-8"), whatif.__doc__ or ""], ids=["docs", "whatif"])
def test_the_documentation_contains_the_whole_sacct_command(text: str) -> None:
    assert COMMAND in re.sub(r"\\\n\s*", "", text)
