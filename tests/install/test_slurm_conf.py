"""slurm.conf read as Slurm reads it, and edits that can be reverted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.errors import SlurmwrapError
from slurmwrap.install.slurm_conf import Edit, SlurmConfSetting, applied, holds, named, reverted, settings_of

CONF = (
    "clustername = c # Prolog=/not/this\r\n"
    "#Prolog=/nor/this\n"
    'Prolog="/a b" PROLOGFLAGS=Alloc\n'
    "NodeName=n0 \\\n CPUs=4\n"
    "Include sub/more.conf\n"
    "SlurmctldParameters=a\\#b\n"
)


def test_settings_are_listed_in_slurms_order_with_file_and_line() -> None:
    files = {"/e/slurm.conf": CONF, "/e/sub/more.conf": "Epilog=/z"}
    found = settings_of("/e/slurm.conf", files.__getitem__)
    main = {"file": "/e/slurm.conf"}
    assert found == (
        SlurmConfSetting(
            key="clustername", value="c", line=1, text="clustername = c # Prolog=/not/this", alone=True, **main
        ),
        SlurmConfSetting(
            key="Prolog", value="/a b", line=3, text='Prolog="/a b" PROLOGFLAGS=Alloc', alone=False, **main
        ),
        SlurmConfSetting(
            key="PROLOGFLAGS", value="Alloc", line=3, text='Prolog="/a b" PROLOGFLAGS=Alloc', alone=False, **main
        ),
        SlurmConfSetting(key="NodeName", value="n0", line=4, text="NodeName=n0 \\", alone=False, **main),
        SlurmConfSetting(key="CPUs", value="4", line=4, text="NodeName=n0 \\", alone=False, **main),
        SlurmConfSetting(key="Epilog", value="/z", file="/e/sub/more.conf", line=1, text="Epilog=/z", alone=True),
        SlurmConfSetting(
            key="SlurmctldParameters", value="a\\#b", line=7, text="SlurmctldParameters=a\\#b", alone=True, **main
        ),
    )
    assert named(found, "prologflags")[0].value == "Alloc"


def test_includes_expand_the_cluster_name_and_continued_lines_are_joined() -> None:
    files = {
        "/e/slurm.conf": "ClusterName=lin\nINCLUDE sub/%c.conf # c\nProlog=/a\\\\\nEpilog=/b \\ \t\nTaskProlog=/c\n",
        "/e/sub/lin.conf": "include more.conf",
        "/e/sub/more.conf": "PrologFlags=Alloc\tPrologEpilogTimeout=9",
    }
    found = settings_of("/e/slurm.conf", files.__getitem__)
    assert [(one.key, one.value, one.line, one.alone) for one in found] == [
        ("ClusterName", "lin", 1, True), ("PrologFlags", "Alloc", 1, False), ("PrologEpilogTimeout", "9", 1, False),
        ("Prolog", "/a\\\\", 3, True), ("Epilog", "/b", 4, False), ("TaskProlog", "/c", 4, False),
    ]  # fmt: skip


def test_files_that_include_each_other_are_refused() -> None:
    with pytest.raises(SlurmwrapError, match="include each other"):
        settings_of("/a", lambda name: "Include /a\n")


LINE = st.text(alphabet=st.characters(max_codepoint=255, exclude_characters="\n\r"), max_size=20)


@given(lines=st.lists(LINE, max_size=8), ends=st.booleans(), where=st.sampled_from(["end", "top", "before"]))
def test_a_reverted_edit_restores_every_byte(lines: list[str], ends: bool, where: str) -> None:
    text = "\n".join(["ClusterName=c", *lines, "Prolog=/x # y"]) + ("\n" if ends else "")
    if text.split("\n").count("Prolog=/x # y") != 1 or text.split("\n").count("ClusterName=c") != 1:
        return
    before = "ClusterName=c" if where == "before" else ""
    edit = Edit(file="f", swaps=(("Prolog=/x # y", "# kept"),), block=("A=1", "B=2"), before=before, top=where == "top")
    if "# kept" in text.split("\n"):
        return
    after = applied(text, edit)
    assert holds(after, edit) and not holds(text, edit)
    assert reverted(after, edit, newline_at_end=ends) == text


def test_a_block_that_occurs_twice_is_not_reverted() -> None:
    edit = Edit(file="f", block=("A=1",))
    twice = applied(applied("x\n", edit), edit)
    with pytest.raises(SlurmwrapError, match="not as they were written"):
        reverted(twice, edit)
