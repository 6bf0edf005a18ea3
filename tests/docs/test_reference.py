"""Generated pages agree with the code, and their hand-written parts are checked against the code."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import docs_man
import docs_pictures
import docs_reference
import pytest
from doc_pages import ROOT
from docs_commands import each, examples, gsub, slurmwrap
from docs_tables import FOR_PEOPLE, INSIDE

from slurmwrap.sbatch.option_table import OWN

DUE = "make reference writes it anew"
NAME = re.compile(r"(?:GSUB|SLURMWRAP)_[A-Z][A-Z_]*")


def test_reference_pages_are_up_to_date() -> None:
    given = docs_reference.pages()
    assert {name: (docs_reference.PAGES / name).read_text(encoding="utf-8") for name in given} == given, DUE


def test_man_pages_are_up_to_date() -> None:
    pages = (path for path in docs_man.PAGES.rglob("*") if path.is_file())
    found = {str(path.relative_to(docs_man.PAGES)): path.read_text(encoding="utf-8") for path in pages}
    assert found == docs_man.pages(), DUE


def test_pictures_are_up_to_date() -> None:
    drawn = docs_pictures.pictures()
    assert {name: (docs_pictures.IMAGES / name).read_text(encoding="utf-8") for name in drawn} == drawn, DUE


def test_a_picture_is_xml_with_a_title_and_loads_nothing() -> None:
    for content in docs_pictures.pictures().values():
        root = ElementTree.fromstring(content)
        assert root.findtext("{http://www.w3.org/2000/svg}title")
        assert re.findall(r"(?:href|src)=|url\((?!#)", content) == []


def test_mandoc_reports_no_fault_in_the_man_pages() -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed (Debian: apt-get install mandoc)")
    argv = ["mandoc", "-T", "lint", "-W", "warning", *sorted(docs_man.PAGES.glob("man*/*"))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_man_page_has_the_text_of_the_help() -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed (Debian: apt-get install mandoc)")
    argv = ["mandoc", "-T", "ascii", docs_man.PAGES / "man1" / "slurmwrap-lab.1"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    words = " ".join(re.sub(r".\x08", "", shown).split())
    (command,) = (one for one in each(slurmwrap()) if one.name == "slurmwrap lab kernel")
    assert "SYNOPSIS slurmwrap lab up [OPTIONS] slurmwrap lab status [OPTIONS]" in words
    assert f"lab kernel {command.blocks[0].text} Example: {examples(command)[0]}" in words.replace(
        "Examples:", "Example:"
    )


def test_every_gsub_option_is_in_its_help() -> None:
    documented = {word for section in gsub() for row in section.rows for word in row.words}
    assert documented == {f"--{option.name}" for option in OWN}


def named_in_code() -> set[str]:
    """GSUB_ and SLURMWRAP_ variables in the string constants of the code and in shipped files."""
    found: set[str] = set()
    fields_of_the_journal = ROOT / "slurmwrap/reconcile/event_log.py"
    for path in {*(ROOT / "slurmwrap").rglob("*.py")} - {fields_of_the_journal}:
        source = path.read_text(encoding="utf-8")
        if not NAME.search(source):
            continue
        constants = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
        found |= {text for text in constants if isinstance(text, str) and NAME.fullmatch(text)}
    for folder in ("prolog", "hooks", "templates"):
        for path in (path for path in (ROOT / folder).rglob("*") if path.is_file()):
            found |= set(NAME.findall(path.read_text(encoding="utf-8")))
    return found


def test_every_variable_that_the_code_names_is_in_the_reference() -> None:
    own = {option.variable for option in OWN if option.variable}
    old = {"SLURMWRAP_SLURM_TIMEOUT_S"}  # a configuration key, like all of that form
    assert named_in_code() - old == own | set(FOR_PEOPLE) | set(INSIDE)


def test_every_schema_has_title_and_description_and_records_agree() -> None:
    schemas = [json.loads(path.read_text(encoding="utf-8")) for path in docs_reference.SCHEMAS.glob("*.json")]
    assert len(schemas) > 10
    assert [one for one in schemas if not one.get("title") or not one.get("description")] == []
    records = [(name, json.dumps(record)) for one in schemas for name, record in one.get("$defs", {}).items()]
    assert len(dict(records)) == len(set(records))


@pytest.mark.slow
def test_the_wheel_installs_the_man_pages_where_man_looks(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(argv, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    found = {name.partition("/data/share/man/")[2] for name in names if "/data/share/man/" in name}
    assert found == set(docs_man.pages())
