"""Backup controllers are named with what they need; with --no-edit slurm.conf is not changed."""

from __future__ import annotations

import io
import json
import os
import pwd
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from images import SLURM_CONF, install, make_plan, read_context, seen, uninstall

from slurmwrap.errors import SlurmwrapError
from slurmwrap.install import check_installation as checking
from slurmwrap.install.copy_to_nodes import make_bundle
from slurmwrap.install.install_output import diff, plan_json, plan_text
from slurmwrap.install.install_workflow import find_other_reconciler, make_controller_payload
from slurmwrap.install.manifest import FILE
from slurmwrap.install.safe_files import FileTree
from slurmwrap.install.slurm_conf import (
    explain_no_controller,
    list_controller_hosts,
    list_other_controllers,
    settings_of,
)
from slurmwrap.store.reconciler_host import FILE as FILE_OF_HOST

TWO_CONTROLLERS = "SlurmctldHost=ctl0(10.0.0.1)\nSlurmctldHost=ctl1.example.org(10.0.0.2)\n"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (TWO_CONTROLLERS, ("ctl0", "ctl1.example.org")),
        ("ControlMachine=a\nBackupController=b,c\n", ("a", "b", "c")),
        ("SlurmctldHost=only\nControlMachine=old\n", ("only",)),
        ("", ()),
    ],
)
def test_controller_hosts_are_read_from_new_and_old_keys(text: str, hosts: tuple[str, ...]) -> None:
    assert list_controller_hosts(settings_of("/c", lambda path: text)) == hosts


@pytest.mark.parametrize(
    ("host", "others"),
    [("ctl0", ["ctl1"]), ("ctl1.example.org", ["ctl0"]), ("CTL1", ["ctl0"]), ("", ["ctl1"]), ("x", ["ctl0", "ctl1"])],
)
def test_other_controllers_are_all_but_this_host(host: str, others: list[str]) -> None:
    assert list(list_other_controllers(("ctl0", "ctl1"), host)) == others
    assert bool(explain_no_controller(("ctl0", "ctl1"), host)) is (host == "x")


def test_a_lab_on_localhost_has_no_other_controllers() -> None:
    assert (list_other_controllers(("localhost",), "any"), explain_no_controller(("localhost",), "any")) == ((), "")


def test_the_plan_names_a_backup_controller_and_how_to_install_there(image: Path) -> None:
    conf = image / "etc/slurm/slurm.conf"
    conf.write_text(TWO_CONTROLLERS + SLURM_CONF)
    _, plan = make_plan(image)
    text = plan_text(plan, (), lambda text, *styles: text)
    assert plan_json(plan, ())["other_controllers"] == ["ctl1.example.org"]
    assert "Other controllers: for you to do\n  - ctl1.example.org: nothing is written there." in text
    assert "`slurmwrap hooks bundle --controller FILE.tar.gz`" in " ".join(text.split())
    assert plan.conflicts == ()


def test_a_controller_bundle_holds_slurm_users_directories_and_the_configuration(image: Path) -> None:
    context, plan = make_plan(image)
    with tarfile.open(fileobj=io.BytesIO(make_bundle(make_controller_payload(plan, context)))) as archive:
        found = {one.name: (one.isdir(), one.mode, one.uname) for one in archive}
    assert found["var/lib/slurmwrap/controller"] == found["var/lib/slurmwrap"] == (True, 0o700, "slurm")
    assert found["etc/slurmwrap/config.toml"] == (False, 0o644, "root")
    assert found["usr/local/lib/slurmwrap/hooks/epilog_slurmctld"] == (False, 0o755, "root")


def test_with_no_edit_slurm_conf_lines_are_shown_and_checked_but_not_written(image: Path) -> None:
    before, conf = seen(image), image / "etc/slurm/slurm.conf"
    more, original = image / "etc/slurm/more.conf", conf.read_bytes()
    install(image, edit=False)
    assert conf.read_bytes() == original
    plan = make_plan(image)[1]  # --no-edit is remembered
    assert "+Prolog=/usr/local/lib/slurmwrap/hooks/prolog_site" in diff(plan.changes)
    assert check_slurm_conf(image) == [checking.FAIL, checking.FAIL]

    kept = {image / str(one.path).lstrip("/"): one.after.encode("latin-1") for one in plan.changes}
    originals = {path: path.read_bytes() for path in kept}
    assert set(kept) == {conf, more}
    for path, content in kept.items():  # as configuration management does
        path.write_bytes(content)
    assert check_slurm_conf(image) == [checking.OK]
    assert make_plan(image)[1].nothing_to_do
    (image / str(FILE).lstrip("/")).rename(image / "aside")  # as on a newly installed controller
    assert diff(make_plan(image, edit=False)[1].changes) == ""
    (image / "aside").rename(image / str(FILE).lstrip("/"))

    with pytest.raises(SlurmwrapError, match="slurmwrap does not edit it"):
        uninstall(image)
    for path, content in originals.items():
        path.write_bytes(content)
    uninstall(image, purge=True)
    assert seen(image) == before


def check_slurm_conf(image: Path) -> list[str]:
    context = read_context(image)
    assert context.manifest is not None
    checks = checking.check(context.manifest, make_plan(image)[0].system, dict)
    return [one.state for one in checks if one.what == "slurm.conf"]


def test_a_reconciler_on_another_host_is_found_while_it_makes_passes(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    system = SimpleNamespace(alive=True, here="ctl0.example.org", tree=FileTree(root=Path("/"), trusted=frozenset({0})))
    me = pwd.getpwuid(os.geteuid()).pw_name
    found = []
    for host, age in (("ctl1", 10), ("ctl0", 10), ("ctl1", 1000)):
        (tmp_path / FILE_OF_HOST).write_text(json.dumps({"host": host, "at": time.time() - age}))
        (tmp_path / FILE_OF_HOST).chmod(0o644)
        found.append(find_other_reconciler(system, str(tmp_path), me))  # type: ignore[arg-type]
    assert found == ["ctl1", "", ""]
