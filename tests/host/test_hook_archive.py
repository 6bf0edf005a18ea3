"""Installation of the hooks: the files it writes and the settings it refuses.

Running hooks are tested in tests/node_hooks and tests/slurm.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from hook_site import SLURMCTLD_BLOCKS

from slurmwrap.errors import SlurmwrapError
from slurmwrap.host.hook_archive import Chained, InstalledHookSettings, install

PYTHON = str(Path(sys.executable).resolve())


@pytest.fixture
def settings(tmp_path: Path) -> InstalledHookSettings:
    return InstalledHookSettings(
        directory=tmp_path / "hooks",
        python=PYTHON,
        spool=Path("/shared/spool"),
        controller_dir=Path("/var/lib/it's here"),
        node_state_dir=Path("/run/a b/%n/$(state)"),
        cluster="c@SLEEP@",
        munge="/usr/bin/munge",
        munge_socket="",
        kernel_log="/dev/kmsg",
        nvidia_proc="/proc/driver/nvidia",
    )


def test_the_same_settings_give_the_same_files_byte_for_byte(settings: InstalledHookSettings, tmp_path: Path) -> None:
    files = install(settings)
    first = {path.name: path.read_bytes() for path in settings.directory.iterdir()}
    assert install(settings) == files
    assert {path.name: path.read_bytes() for path in settings.directory.iterdir()} == first
    assert sorted(first) == ["epilog", "epilog_slurmctld", "hooks.json", "node_hooks.pyz", "prolog"]


def test_settings_with_special_characters_are_quoted_in_the_hooks(settings: InstalledHookSettings) -> None:
    files = install(settings)
    for path, name, value in (
        (files.prolog, "state", "/run/a b/n0/$(state)"),
        (files.epilog, "python", PYTHON),
        (files.epilog_slurmctld, "directory", "/var/lib/it's here"),
        (files.epilog_slurmctld, "cluster", "c@SLEEP@"),
    ):
        assignments = [line for line in path.read_text().splitlines() if line.startswith(f"{name}=")]
        shown = subprocess.run(
            ["/bin/sh", "-c", f'{assignments[0]}\nprintf %s "${name}"'],
            env={"SLURMD_NODENAME": "n0"},
            capture_output=True,
            check=True,
        )
        assert shown.stdout.decode() == value
    assert json.loads((settings.directory / "hooks.json").read_text())["node_state_dir"] == "/run/a b/%n/$(state)"


def test_no_placeholder_is_left_in_the_hooks(settings: InstalledHookSettings) -> None:
    for path in install(replace(settings, cluster="lab")).prolog.parent.glob("*log*"):
        assert "@" not in path.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_hooks_pass_shellcheck_as_posix_shell(settings: InstalledHookSettings) -> None:
    chain = Chained(name="prolog_site", first="prolog", site="/etc/slurm/a b.sh")
    files = install(replace(settings, node_state_dir=Path("/run/a b/%n")), (chain,))
    shims = [str(path) for path in (files.prolog, files.epilog, files.epilog_slurmctld)]
    shims.append(str(settings.directory / "prolog_site"))
    checked = subprocess.run(["shellcheck", "--shell=sh", *shims], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_zipapp_holds_the_sources_and_byte_code_of_the_nodes_python(settings: InstalledHookSettings) -> None:
    with zipfile.ZipFile(install(settings).zipapp) as archive:
        names = set(archive.namelist())
    assert {"__main__.py", "node_hooks/epilog.py", "node_hooks/epilog.pyc", "pynvml.py"} <= names


def test_without_a_working_python_the_zipapp_holds_only_sources(settings: InstalledHookSettings) -> None:
    with zipfile.ZipFile(install(replace(settings, python="/nonexistent/python")).zipapp) as archive:
        assert not any(name.endswith(".pyc") for name in archive.namelist())


@pytest.mark.parametrize(
    ("changed", "culprit"),
    [
        ({"python": "python3"}, "python 'python3' is not an absolute path"),
        ({"munge": "munge"}, "munge 'munge' is not an absolute path"),
        ({"spool": Path("spool")}, "spool 'spool' is not an absolute path"),
        ({"spool": Path("/a\nb")}, "is not an absolute path"),
        ({"kernel_log": "dmesg"}, "kernel_log 'dmesg' is unknown"),
        ({"gate": "maybe"}, "gate 'maybe' is unknown"),
        ({"gate": "on"}, "the gate is on and published is not set"),
        ({"gate": "on", "published": "shared"}, "published 'shared' is not an absolute path"),
        ({"directory": Path("/opt/two words")}, "slurm.conf cannot name '/opt/two words'"),
    ],
)
def test_invalid_hook_settings_are_refused(
    settings: InstalledHookSettings, changed: dict[str, object], culprit: str
) -> None:
    with pytest.raises(SlurmwrapError, match=culprit.replace("(", r"\(")):
        install(replace(settings, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_hook_directory_writable_by_others_is_refused(settings: InstalledHookSettings, mode: int) -> None:
    settings.directory.mkdir()
    settings.directory.chmod(mode)
    with pytest.raises(SlurmwrapError, match="Slurm would run its files as root"):
        install(settings)
    assert list(settings.directory.iterdir()) == []


@pytest.mark.parametrize("blocked", [(), SLURMCTLD_BLOCKS])
@pytest.mark.parametrize("first", ["prolog", "gone"])
def test_a_chained_site_prolog_runs_as_slurm_would_start_it(
    settings: InstalledHookSettings, tmp_path: Path, first: str, blocked: tuple[signal.Signals, ...]
) -> None:
    """It runs even if slurmwrap's hook is missing, and with the signals blocked that slurmctld 22.05 blocks."""
    site = tmp_path / "it's the site's"
    site.write_text('#!/bin/sh\necho "$0 $SLURM_JOB_ID"\nenv >&2\nexit 3\n')
    site.chmod(0o755)
    chain = Chained(name="prolog_site", first=first, site=str(site))
    install(replace(settings, node_state_dir=tmp_path / "state"), (chain,))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        ran = subprocess.run(
            [settings.directory / "prolog_site"], env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, timeout=30
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (ran.returncode, ran.stdout) == (3, f"{site} 7\n")


def test_the_site_prolog_does_not_run_after_a_refusal_by_the_gate(
    settings: InstalledHookSettings, tmp_path: Path
) -> None:
    install(settings, (Chained(name="prolog_site", first="prolog", site=str(tmp_path / "never")),))
    (settings.directory / "prolog").write_text("#!/bin/sh\nexit 1\n")
    assert subprocess.run([settings.directory / "prolog_site"], env={}, timeout=30).returncode == 1


@pytest.mark.parametrize("gate", ["off", "on"])
def test_the_gate_is_enabled_only_in_the_prolog_and_only_by_its_setting(
    settings: InstalledHookSettings, gate: str
) -> None:
    files = install(replace(settings, gate=gate, published="/shared/published"))
    assert [f"gate={gate}\n" in path.read_text() for path in (files.prolog, files.epilog)] == [True, gate == "off"]
    kept = json.loads((settings.directory / "hooks.json").read_text())
    assert (kept["gate"], kept["published"], kept["nvidia_control"]) == (gate, "/shared/published", "/dev/nvidiactl")


def test_the_zipapp_contains_the_installed_nvidia_ml_py(settings: InstalledHookSettings) -> None:
    spec = find_spec("pynvml")
    assert spec is not None and spec.origin is not None
    with zipfile.ZipFile(install(settings).zipapp) as archive:
        assert archive.read("pynvml.py") == Path(spec.origin).read_bytes()
        assert "pynvml.pyc" in archive.namelist()
