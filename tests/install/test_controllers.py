"""Backup controllers are named with what they need; a slurm.conf that is not ours to edit is left alone."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from images import SLURM_CONF, ground_of, install, planned, seen, uninstall

from slurmwrap.errors import SlurmwrapError
from slurmwrap.install import check_installation as checking
from slurmwrap.install.copy_to_nodes import make_bundle
from slurmwrap.install.install_output import diff, plan_json, plan_text
from slurmwrap.install.install_workflow import make_controller_payload
from slurmwrap.install.manifest import FILE
from slurmwrap.install.slurm_conf import (
    explain_no_controller,
    list_controller_hosts,
    list_other_controllers,
    settings_of,
)

TWO = "SlurmctldHost=ctl0(10.0.0.1)\nSlurmctldHost=ctl1.example.org(10.0.0.2)\n"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (TWO, ("ctl0", "ctl1.example.org")),
        ("ControlMachine=a\nBackupController=b,c\n", ("a", "b", "c")),
        ("SlurmctldHost=only\nControlMachine=old\n", ("only",)),
        ("", ()),
    ],
)
def test_controllers_are_read_from_both_spellings(text: str, hosts: tuple[str, ...]) -> None:
    assert list_controller_hosts(settings_of("/c", lambda path: text)) == hosts


@pytest.mark.parametrize(
    ("here", "left"),
    [("ctl0", ["ctl1"]), ("ctl1.example.org", ["ctl0"]), ("CTL1", ["ctl0"]), ("", ["ctl1"]), ("x", ["ctl0", "ctl1"])],
)
def test_the_others_are_those_that_this_machine_is_not(here: str, left: list[str]) -> None:
    assert list(list_other_controllers(("ctl0", "ctl1"), here)) == left
    assert bool(explain_no_controller(("ctl0", "ctl1"), here)) is (here == "x")


def test_a_lab_on_localhost_has_no_others() -> None:
    assert (list_other_controllers(("localhost",), "any"), explain_no_controller(("localhost",), "any")) == ((), "")


def test_the_plan_names_a_backup_and_what_goes_there(image: Path) -> None:
    conf = image / "etc/slurm/slurm.conf"
    conf.write_text(TWO + SLURM_CONF)
    _, plan = planned(image)
    text = plan_text(plan, (), lambda text, *styles: text)
    assert plan_json(plan, ())["other_controllers"] == ["ctl1.example.org"]
    assert "Other controllers: for you to do\n  - ctl1.example.org: nothing is written there." in text
    assert "`slurmwrap hooks bundle --controller FILE.tar.gz`" in " ".join(text.split())
    assert plan.conflicts == ()


def test_a_controllers_bundle_has_slurm_users_directories_and_the_configuration(image: Path) -> None:
    where, plan = planned(image)
    with tarfile.open(fileobj=io.BytesIO(make_bundle(make_controller_payload(plan, where)))) as archive:
        found = {one.name: (one.isdir(), one.mode, one.uname) for one in archive}
    assert found["var/lib/slurmwrap/controller"] == found["var/lib/slurmwrap"] == (True, 0o700, "slurm")
    assert found["etc/slurmwrap/config.toml"] == (False, 0o644, "root")
    assert found["usr/local/lib/slurmwrap/hooks/epilog_slurmctld"] == (False, 0o755, "root")


def test_lines_that_others_bring_are_shown_awaited_and_never_written(image: Path) -> None:
    before, conf = seen(image), image / "etc/slurm/slurm.conf"
    more, original = image / "etc/slurm/more.conf", conf.read_bytes()
    install(image, edit=False)
    assert conf.read_bytes() == original
    plan = planned(image)[1]  # --no-edit is remembered
    assert "+Prolog=/usr/local/lib/slurmwrap/hooks/prolog_site" in diff(plan.changes)
    assert edits_hold(image) == [checking.FAIL, checking.FAIL]

    kept = {image / str(one.path).lstrip("/"): one.after.encode("latin-1") for one in plan.changes}
    originals = {path: path.read_bytes() for path in kept}
    assert set(kept) == {conf, more}
    for path, content in kept.items():  # as configuration management does
        path.write_bytes(content)
    assert edits_hold(image) == [checking.OK]
    assert planned(image)[1].nothing_to_do
    (image / str(FILE).lstrip("/")).rename(image / "aside")  # the controller was made anew
    assert diff(planned(image, edit=False)[1].changes) == ""
    (image / "aside").rename(image / str(FILE).lstrip("/"))

    with pytest.raises(SlurmwrapError, match="slurmwrap does not edit it"):
        uninstall(image)
    for path, content in originals.items():
        path.write_bytes(content)
    uninstall(image, purge=True)
    assert seen(image) == before


def edits_hold(image: Path) -> list[str]:
    where = ground_of(image)
    assert where.manifest is not None
    held = checking.check(where.manifest, planned(image)[0].system, dict)
    return [one.state for one in held if one.what == "slurm.conf"]
