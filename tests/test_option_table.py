"""The table in docs/dropin.md agrees with the option table."""

from __future__ import annotations

import pytest
from option_table import PAGE, TREATMENT, option_table, with_table

from slurmwrap.model.placement_plan import PLACING
from slurmwrap.sbatch.option_table import ALIASES, BY_NAME, SBATCH


def test_the_page_has_the_generated_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, ".venv/bin/python .ci/option_table.py writes it anew"


def test_the_table_has_a_row_for_every_option() -> None:
    rows = option_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows[:-1]] == [f"--{option.name}" for option in SBATCH]
    assert "SBATCH_WAIT4SWITCH" in rows[-1]


def test_a_changed_option_has_the_releases_of_the_change() -> None:
    rows = {row.split("`")[1]: row.split(" | ") for row in option_table().splitlines()[2:-1]}
    assert rows["--power"][4] == "until 23.11"
    assert rows["--export-file"][4] == "not in 23.11"
    assert rows["--requeue"][2] == "none; optional from 25.11"
    assert rows["--segment"][3:5] == ["`SBATCH_SEGMENT_SIZE` (from 25.05)", "from 24.05"]


def test_the_treatment_table_names_existing_options() -> None:
    assert set(TREATMENT) <= set(BY_NAME) - set(ALIASES)
    assert [option for option in PLACING if "may be" not in TREATMENT[option]] == []


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        with_table("# a page\n")
