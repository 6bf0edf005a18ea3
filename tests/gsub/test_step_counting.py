"""--count-steps: the variables that reach the job's environment."""

from __future__ import annotations

import pytest

from slurmwrap.gsub.send import add_counter_to_export, prepend_to_pythonpath

DIR, NAMED, PATH = "SLURMWRAP_STEP_DIR", "SLURMWRAP_STEP_NAMED", "PYTHONPATH=/counter"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        ("ALL", None),
        ("ALL,A=1", None),
        ("ALL,PYTHONPATH=/mine", "ALL,PYTHONPATH=/counter:/mine"),
        ("A=1,B", f"A=1,B,{DIR},{NAMED},{PATH}"),
        ("A,PYTHONPATH", f"A,PYTHONPATH,{DIR},{NAMED}"),  # PYTHONPATH already has the counter
        ("PYTHONPATH=/mine", f"PYTHONPATH=/counter:/mine,{DIR},{NAMED}"),
        ("PYTHONPATH=", f"PYTHONPATH=/counter,{DIR},{NAMED}"),
    ],
)
def test_the_counter_is_added_to_an_export_list(value: str | None, wanted: str | None) -> None:
    assert add_counter_to_export(value, "/counter") == wanted


def test_the_counter_comes_first_on_pythonpath() -> None:
    assert [prepend_to_pythonpath("/counter", path) for path in ("", "/mine", "/a:/b")] == [
        "/counter", "/counter:/mine", "/counter:/a:/b",
    ]  # fmt: skip
