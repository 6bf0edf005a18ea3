"""Installing into a tree and uninstalling: what is written, refused, kept, and left after a crash at any point."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from images import MORE, SLURM_CONF, SLURM_UID, install, make_image, make_plan, read_context, seen, uninstall

from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.install import check_installation
from slurmwrap.install import check_installation as checking
from slurmwrap.install import install_workflow as hooks_flow
from slurmwrap.install import uninstall as remove
from slurmwrap.install.install_output import diff, make_lines_harmless, plan_json, plan_text
from slurmwrap.install.manifest import FILE
from slurmwrap.install.plan_installation import SAME, UPGRADE

HOOKS = "usr/local/lib/slurmwrap/hooks"

DIFF = r"""--- /etc/slurm/slurm.conf
+++ /etc/slurm/slurm.conf
@@ -3,6 +3,10 @@
 SlurmUser=slurm
 AuthInfo=cred_expire=120,socket=/run/munge/other.socket
-Prolog=/etc/slurm/prolog.sh # health check
+# slurmwrap keeps: Prolog=/etc/slurm/prolog.sh # health check
 Epilog=/etc/slurm/epilog.d/*
 Include more.conf
-NodeName=n[0-3] CPUs=4
\ No newline at end of file
+NodeName=n[0-3] CPUs=4
+# BEGIN slurmwrap: `slurmwrap hooks uninstall` takes this block out
+Prolog=/usr/local/lib/slurmwrap/hooks/prolog_site
+EpilogSlurmctld=/usr/local/lib/slurmwrap/hooks/epilog_slurmctld_site
+# END slurmwrap
--- /etc/slurm/more.conf
+++ /etc/slurm/more.conf
@@ -1,2 +1,2 @@
-PrologFlags=Serial
-EpilogSlurmctld=/opt/site/ended
+PrologFlags=Alloc,Serial
+# slurmwrap keeps: EpilogSlurmctld=/opt/site/ended
"""


def test_the_plan_is_the_diff_and_writes_nothing(image: Path) -> None:
    before = seen(image)
    _, plan = make_plan(image)
    assert diff(plan.changes).replace("\r", "") == DIFF
    assert plan.conflicts == ()
    assert seen(image) == before


def test_settings_are_taken_from_slurm_conf(image: Path) -> None:
    _, plan = make_plan(image)
    settings = plan_json(plan, ())["settings"]
    assert {key: settings[key] for key in ("cluster", "slurm_user", "munge_socket", "spool")} == {
        "cluster": "lab",
        "slurm_user": "slurm",
        "munge_socket": "/run/munge/other.socket",
        "spool": "/shared/slurmwrap/spool",
    }


def test_uninstalling_restores_the_tree_byte_for_byte(image: Path) -> None:
    before = seen(image)
    install(image, cli_filter="files")
    install(image, cli_filter="on")
    after = seen(image)
    assert before.keys() < after.keys()
    assert after["shared/slurmwrap/spool"][:3] == (0o1733, SLURM_UID, SLURM_UID)
    assert after["etc/slurm/slurm.conf"][:3] == (0o640, SLURM_UID, SLURM_UID)
    assert after["etc/slurm/epilog.d/zz-slurmwrap"][3] == after[f"{HOOKS}/epilog"][3]
    assert uninstall(image) == ()
    assert seen(image) == before


def test_a_second_installation_changes_nothing(image: Path) -> None:
    install(image)
    before = seen(image)
    _, plan = make_plan(image)
    assert plan.nothing_to_do
    install(image)
    assert seen(image) == before


def test_an_upgrade_writes_new_files_removes_old_ones_and_can_be_uninstalled(image: Path) -> None:
    before = seen(image)
    install(image)
    (image / HOOKS / "prolog").write_bytes(b"of an older release")
    add_known_digest(image, HOOKS + "/prolog", b"of an older release")
    _, plan = make_plan(
        image, release="24.11"
    )  # with 24.11 the site's lines stay, and the chained programs are removed
    states = {item.path.name: item.state for item in plan.items}
    assert (states["prolog"], states["epilog"]) == (UPGRADE, SAME)
    assert sorted(Path(path).name for path in plan.stale) == ["epilog_slurmctld_site", "prolog_site"]
    install(image, release="24.11")
    assert not (image / HOOKS / "prolog_site").exists()
    assert "\nProlog=/etc/slurm/prolog.sh" in (image / "etc/slurm/slurm.conf").read_text()
    assert uninstall(image) == ()
    assert seen(image) == before


def add_known_digest(image: Path, name: str, content: bytes) -> None:
    """Adds the digest of `content` to the manifest, as a file written by slurmwrap."""
    from slurmwrap.install.manifest import digest

    path = image / str(FILE).lstrip("/")
    plain = json.loads(path.read_text())
    for one in plain["files"]:
        if one["path"] == f"/{name}":
            one["digests"].append(digest(content))
    path.write_text(json.dumps(plain))


def test_a_file_that_slurmwrap_did_not_write_is_not_overwritten(image: Path) -> None:
    foreign = image / "etc/systemd/system/slurmwrap-report.timer"
    foreign.write_text("the administrator's\n")
    before = seen(image)
    with pytest.raises(SlurmwrapError, match=r"slurmwrap-report\.timer is there already and not slurmwrap's"):
        install(image)
    assert seen(image) == before


def test_a_cli_filter_of_the_site_is_kept_and_the_plan_tells_what_to_add(image: Path) -> None:
    (image / "etc/slurm/cli_filter.lua").write_text("-- the site's\n")
    _, plan = make_plan(image, cli_filter="files")
    assert [text for text in plan.conflicts if "slurm_cli_pre_submit" in text]


def test_a_changed_file_is_kept_and_named_by_uninstall(image: Path) -> None:
    before = seen(image)
    install(image)
    config = image / "etc/slurmwrap/config.toml"
    config.write_text(config.read_text() + "\n[mail]\nserver = 'mx'\n")
    _, plan = make_plan(image)
    assert plan.nothing_to_do
    assert uninstall(image) == (Path("/etc/slurmwrap/config.toml"), Path("/etc/slurmwrap"))
    assert seen(image).keys() - before.keys() == {"etc/slurmwrap", "etc/slurmwrap/config.toml"}


def test_uninstalling_keeps_later_changes_of_the_site_in_slurm_conf(image: Path) -> None:
    install(image)
    conf = image / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text().replace("CPUs=4", "CPUs=8") + "NodeName=n4\n")
    uninstall(image)
    assert conf.read_text() == SLURM_CONF.replace("CPUs=4", "CPUs=8") + "\nNodeName=n4\n"
    assert (image / "etc/slurm/more.conf").read_bytes() == MORE.encode()


def test_uninstalling_stops_if_slurmwraps_lines_in_slurm_conf_were_changed(image: Path) -> None:
    install(image)
    conf = image / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text().replace("hooks/prolog_site", "hooks/prolog_mine"))
    before = seen(image)
    with pytest.raises(SlurmwrapError, match="lines are not as they were written"):
        uninstall(image)
    assert seen(image) == before


def test_data_is_kept_unless_purge_is_given(image: Path) -> None:
    before = seen(image)
    install(image)
    (image / "shared/slurmwrap/spool/1.obs").write_text("found")
    (image / "shared/slurmwrap/spool/link").symlink_to(image / "etc")
    kept = (Path("/shared/slurmwrap/spool"), Path("/shared/slurmwrap"), Path("/shared"))
    assert uninstall(image) == kept
    install(image)
    (image / "var/lib/slurmwrap/site.db").write_text("x")
    uninstall(image, purge=True)
    assert seen(image) == before  # including the target of the link


def test_data_that_was_kept_can_be_purged_later(image: Path) -> None:
    before = seen(image)
    install(image)
    (image / "var/lib/slurmwrap/site.db").write_text("x")
    assert uninstall(image) == (Path("/var/lib/slurmwrap"),)
    assert (image / "etc/slurm/slurm.conf").read_text() == SLURM_CONF
    manifest = read_context(image).manifest
    assert manifest is not None
    assert (manifest.state, manifest.directories, manifest.files) == ("removed", ("/var/lib/slurmwrap",), ())
    (check,) = checking.check(manifest, read_context(image).system, dict)
    assert (check.state, check.text) == ("fail", "was taken back; left: /var/lib/slurmwrap")
    assert uninstall(image) == (Path("/var/lib/slurmwrap"),)
    assert uninstall(image, purge=True) == ()
    assert seen(image) == before


def test_purge_does_not_follow_a_link_in_place_of_a_directory(image: Path) -> None:
    install(image)
    (image / "srv/www").mkdir(parents=True)
    (image / "srv/www/index.html").write_text("somebody's")
    state = image / "var/lib/slurmwrap"
    for name, uid in (
        ("controller", SLURM_UID),
        ("reports", 0),
    ):  # made by SlurmUser as an attack, by the administrator on purpose
        (state / name).rmdir()
        (state / name).symlink_to("/srv/www")
        os.lchown(state / name, uid, uid)
    assert uninstall(image, purge=True) == ()  # the links themselves were in a directory of slurmwrap and are removed
    assert (image / "srv/www/index.html").read_text() == "somebody's"


def test_purge_does_not_empty_a_directory_behind_a_link_of_slurm_user(image: Path) -> None:
    install(image)
    (image / "srv/spool").mkdir(parents=True)
    (image / "srv/spool/kept").write_text("somebody's")
    shared = image / "shared"
    (shared / "slurmwrap").rename(shared / "moved")
    (shared / "slurmwrap").symlink_to("/srv")
    os.lchown(shared / "slurmwrap", SLURM_UID, SLURM_UID)
    remaining = uninstall(image, purge=True)
    assert {Path("/shared/slurmwrap/spool"), Path("/shared/slurmwrap")} <= set(remaining)
    assert (image / "srv/spool/kept").read_text() == "somebody's"


def test_purge_continues_after_a_tree_that_is_too_deep_to_walk(image: Path) -> None:
    install(image)
    spool = image / "shared/slurmwrap/spool"
    deep = os.open(spool, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    try:
        remaining = uninstall(image, purge=True)
        assert remaining in (
            (),
            tuple(Path(path) for path in ("/shared/slurmwrap/spool", "/shared/slurmwrap", "/shared")),
        )
    finally:
        subprocess.run(["rm", "-rf", str(spool)], check=True)


def test_a_file_replaced_by_a_link_is_kept_with_its_target(image: Path) -> None:
    install(image)
    config, kept = image / "etc/slurmwrap/config.toml", image / "srv/config.toml"
    kept.parent.mkdir()
    config.rename(kept)
    config.symlink_to("/srv/config.toml")
    assert Path("/etc/slurmwrap/config.toml") in uninstall(image)
    assert kept.exists()


def test_installation_stops_if_slurm_conf_changed_after_the_plan(image: Path) -> None:
    context, plan = make_plan(image)
    conf = image / "etc/slurm/slurm.conf"
    conf.write_text(SLURM_CONF + "\nNodeName=n4\n")
    with pytest.raises(SlurmwrapError, match=r"slurm\.conf was changed while the command was running"):
        hooks_flow.install(context, plan, (), 1.0, ())
    assert conf.read_text() == SLURM_CONF + "\nNodeName=n4\n"
    install(image)
    uninstall(image)
    assert conf.read_text() == SLURM_CONF + "\nNodeName=n4\n"


def test_control_characters_of_slurm_conf_are_escaped_in_the_plan(image: Path) -> None:
    conf = image / "etc/slurm/slurm.conf"
    conf.write_bytes(SLURM_CONF.encode().replace(b"# health check", b"# \x1b]0;title\x07\x1b[2J\xe9\x9b"))
    context, plan = make_plan(image)
    steps = hooks_flow.describe_steps(plan, context, (), by_hand=True, test=False)
    shown = make_lines_harmless(plan_text(plan, steps, lambda text, style: f"\x1b[1m{text}\x1b[0m"))
    assert r"Prolog=/etc/slurm/prolog.sh # \x1b]0;title\x07\x1b[2J" in shown and r"\x9b" in shown
    assert set(re.findall(r"\x1b.{3}", shown)) == {"\x1b[1m", "\x1b[0m"}


def test_nodes_that_were_unreachable_are_kept_in_the_manifest(image: Path) -> None:
    install(image)
    context = read_context(image)
    assert context.manifest is not None
    tree = hooks_flow.FileTree(root=image, trusted=frozenset({0, SLURM_UID}))
    system = hooks_flow.System(tree=tree)
    removal = remove.plan_uninstallation(context.manifest, tree)
    written = remove.restore_conf(removal, context.manifest, system)
    remove.remove_installation(removal, written, system, purge=True, behind=["n7"])
    manifest = read_context(image).manifest
    assert manifest is not None
    assert (manifest.state, manifest.nodes) == ("removed", {"n7": ""})
    assert {one.kind for one in manifest.files} == {"hook", "copy"}
    assert uninstall(image) == ()
    assert read_context(image).manifest is None


def test_a_directory_writable_by_others_is_refused(image: Path) -> None:
    (image / "usr/local").mkdir()
    (image / "usr/local").chmod(0o775)
    os.chown(image / "usr/local", 0, 50)
    before = seen(image)
    with pytest.raises(SlurmwrapError, match=r"/usr/local can be written by others \(uid 0, mode 0775\)"):
        install(image)
    assert seen(image) == before


def test_a_link_of_another_user_is_not_followed(image: Path) -> None:
    (image / "opt").mkdir()
    (image / "shared").symlink_to(image / "opt")
    os.lchown(image / "shared", 1234, 1234)
    with pytest.raises(SlurmwrapError, match="is a link that uid 1234 made"):
        make_plan(image)


def test_hooks_are_not_installed_in_a_directory_of_slurm_user(image: Path) -> None:
    (image / "opt/slurm").mkdir(parents=True)
    os.chown(image / "opt/slurm", SLURM_UID, SLURM_UID)
    with pytest.raises(SlurmwrapError, match="/opt/slurm can be written by others"):
        install(image, directory="/opt/slurm/hooks")


def test_a_spool_with_a_wrong_mode_is_reported_and_not_changed(image: Path) -> None:
    (image / "shared/slurmwrap/spool").mkdir(parents=True)
    _, plan = make_plan(image)
    assert plan.conflicts == (
        "/shared/slurmwrap/spool is uid 0's with mode 0755; it has to be slurm's with 1733: "
        "chown slurm /shared/slurmwrap/spool && chmod 1733 /shared/slurmwrap/spool",
    )


def test_a_missing_shared_directory_is_a_usage_error(image: Path) -> None:
    from slurmwrap.install import install_workflow as hooks_flow

    with pytest.raises(UsageError, match="need a shared directory"):
        hooks_flow.make(read_context(image), {}, "", None, "22.05")


def test_a_linked_slurm_conf_is_edited_at_its_target(image: Path) -> None:
    (image / "cm").mkdir()
    (image / "etc/slurm").rename(image / "cm/slurm")
    (image / "etc/slurm").symlink_to("/cm/slurm")  # as on clusters managed by Bright or Warewulf
    before = seen(image)
    install(image)
    assert "BEGIN slurmwrap" in (image / "cm/slurm/slurm.conf").read_text()
    uninstall(image)
    assert seen(image) == before


def test_platform_python_of_rhel_is_found(tmp_path: Path, image: Path) -> None:
    libexec = image / "usr/libexec"
    libexec.mkdir()
    (libexec / "platform-python").touch()
    _, plan = make_plan(image, python="/usr/bin/python3")
    assert plan.wanted.python == "/usr/bin/python3"  # as given by the option
    from slurmwrap.install.install_target import read_system_settings
    from slurmwrap.install.safe_files import FileTree

    context, _ = make_plan(image)
    conf = context.system.tree.real(Path("/etc/slurm/slurm.conf"))
    from slurmwrap.install.plan_installation import read_conf

    tree = FileTree(root=image, trusted=frozenset({0}))
    assert (
        read_system_settings(read_conf(context.system.tree, conf, None), tree, conf)["python"]
        == "/usr/libexec/platform-python"
    )


COUNTED_CALLS = ("rename", "mkdir", "unlink", "rmdir")


def run_and_kill_at(number: int, work: Callable[[], object]) -> bool:
    """Runs `work` in a child that is killed by SIGKILL just before its `number`th change of the file system.

    Returns whether the child was killed.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    count = 0

    def count_calls(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    code = 1
    try:
        for name in COUNTED_CALLS:
            setattr(os, name, count_calls(getattr(os, name)))
        work()
        code = 0
    finally:
        os._exit(code)


def all_named_hooks_exist(image: Path) -> bool:
    """Whether every hook of slurmwrap that slurm.conf names exists, so that Slurm works at this moment."""
    text = (image / "etc/slurm/slurm.conf").read_text()
    ours = [line.partition("=")[2] for line in text.splitlines() if "=/usr/local/lib/slurmwrap" in line]
    return all((image / path.lstrip("/")).exists() for path in ours)


# Testing every change takes half a minute, so `make test` tests every fifth change, always the same ones.
STRIDES = pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])


@STRIDES
@pytest.mark.parametrize("then", ["again", "back"])
def test_a_killed_installation_leaves_a_working_cluster_and_can_be_resumed(
    tmp_path: Path, then: str, stride: int
) -> None:
    if os.geteuid() != 0:
        pytest.skip("files of other owners need root")
    whole = make_image(tmp_path / "whole")
    before = seen(whole)
    install(whole)
    wanted, number = seen(whole), 0
    killed = True
    while killed:
        number += stride
        image = make_image(tmp_path / f"{number}")
        killed = run_and_kill_at(number, lambda image=image: install(image))
        assert all_named_hooks_exist(image), number
        if then == "again":
            install(image)
            found = seen(image)
            name = str(FILE).lstrip("/")
            assert {**found, name: wanted[name]} == wanted, number
        if read_context(image).manifest is not None:
            assert uninstall(image) == (), number
        remains = {name for name in seen(image) if not name.startswith("var/lib/slurmwrap-install")}
        assert {name: value for name, value in seen(image).items() if name in remains} == before, number
    assert number > 30


@STRIDES
def test_a_killed_uninstallation_leaves_a_working_cluster_and_can_be_resumed(tmp_path: Path, stride: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("files of other owners need root")
    before, number, killed = seen(make_image(tmp_path / "before")), 0, True
    while killed:
        number += stride
        image = make_image(tmp_path / f"{number}")
        install(image)
        killed = run_and_kill_at(number, lambda image=image: uninstall(image))
        assert all_named_hooks_exist(image), number
        if read_context(image).manifest is not None:
            assert uninstall(image) == (), number
        found = {name: one for name, one in seen(image).items() if not name.startswith("var/lib/slurmwrap-install")}
        assert found == before, number
    assert number > 20


def test_the_cli_filter_is_not_enabled_before_its_file_is_installed(image: Path) -> None:
    before = seen(image)
    with pytest.raises(SlurmwrapError, match="Slurm refuses every sbatch and srun on a host without"):
        install(image, cli_filter="on")
    assert seen(image) == before


def test_files_of_a_manual_installation_are_upgraded_and_its_lines_reported(image: Path) -> None:
    hooks = image / HOOKS
    hooks.mkdir(parents=True)
    (hooks / "prolog").write_text("#!/bin/sh\n# slurmwrap: prolog, named in slurm.conf.\n")
    (hooks / "hooks.json").write_text('{"node_state_dir": "/run/slurmwrap"}')
    (hooks / "epilog").write_text("#!/bin/sh\n# another program\n")
    conf = image / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text().replace("/etc/slurm/prolog.sh", f"/{HOOKS}/prolog"))
    _, plan = make_plan(image)
    states = {item.path.name: item.state for item in plan.items}
    assert (states["prolog"], states["hooks.json"], states["epilog"]) == (UPGRADE, UPGRADE, "conflict")
    assert [text for text in plan.conflicts if "was written by hand and names a hook of slurmwrap" in text]


def test_the_check_reports_changed_files_but_not_the_sites_configuration(image: Path) -> None:
    install(image)
    (image / "etc/slurmwrap/config.toml").write_text("[mail]\nserver = 'mx'\n")
    (image / HOOKS / "prolog").write_text("#!/bin/sh\n")
    context = read_context(image)
    found = check_installation.check(context.manifest, context.system, dict)
    changed = [one.text for one in found if "was changed" in one.text]
    assert len(changed) == 1
    assert f"{HOOKS}/prolog" in changed[0]
