"""off.json: no user can switch slurmwrap off or on for a site, by the commands or by a file of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.cli import off as off_commands
from slurmwrap.config.config_defaults import SiteSection
from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.store.lowered_limits import LoweredLimitFile
from slurmwrap.store.site_switch import SiteSwitch, read_site_switch, write_site_switch

USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")


@pytest.fixture
def config(open_dir: Path) -> Config:
    """A site of the user who runs the tests, with a private state directory and a published one."""
    for name, mode in (("published", 0o755), ("state", 0o700)):
        (open_dir / name).mkdir()
        (open_dir / name).chmod(mode)
    site = SiteSection(published=str(open_dir / "published"), state_dir=str(open_dir / "state"))
    return replace(Config(), site=site)


def list_site_files(config: Config) -> list[tuple[str, bytes]]:
    folders = (Path(config.site.published), Path(config.site.state_dir))
    return [(str(path), path.read_bytes()) for folder in folders for path in sorted(folder.iterdir())]


def run_as_user(call: Callable[[], None]) -> str:
    """Run in a child process with the rights of an ordinary user; return the error that it raised, "" for none."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        said = "no error"
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            call()
        except SlurmwrapError as error:
            said = str(error)
        except BaseException as error:
            said = f"unexpected: {error!r}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    return said


@needs_root
def test_a_user_can_neither_switch_off_nor_on(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_commands, "load", lambda environ: config)
    assert "Permission denied" in run_as_user(lambda: off_commands.off(note="mine", wait=True))
    assert (read_site_switch(config), list_site_files(config)) == (None, [])
    write_site_switch(config.site.published, SiteSwitch(at=5.0, by="root", note="upgrade"))
    before = list_site_files(config)
    assert "Permission denied" in run_as_user(off_commands.on)
    assert run_as_user(lambda: off_commands.off(note="mine", wait=True)).startswith("slurmwrap is off already")
    assert list_site_files(config) == before


def owned_by_a_user(path: Path) -> None:
    os.chown(path, USER, USER)


def in_a_directory_of_a_user(path: Path) -> None:
    os.chown(path.parent, USER, USER)


def writable_by_all(path: Path) -> None:
    path.chmod(0o666)


def in_a_directory_writable_by_all(path: Path) -> None:
    path.parent.chmod(0o1777)


def behind_a_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


@needs_root
@pytest.mark.parametrize(
    "forge",
    [owned_by_a_user, in_a_directory_of_a_user, writable_by_all, in_a_directory_writable_by_all, behind_a_link, fifo],
)
def test_a_switch_that_a_user_could_have_written_does_not_count(config: Config, forge: Callable[[Path], None]) -> None:
    write_site_switch(config.site.published, SiteSwitch(at=5.0, by="root"))
    assert read_site_switch(config) == SiteSwitch(at=5.0, by="root")
    forge(Path(config.site.published) / "off.json")
    assert read_site_switch(config) is None


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"at": "x"}', b"\xff", b"null"])
def test_a_damaged_switch_of_root_still_switches_off(config: Config, content: bytes) -> None:
    path = Path(config.site.published) / "off.json"
    path.write_bytes(content)
    path.chmod(0o644)
    found = read_site_switch(config)
    assert found is not None and found.by == "someone"


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{", b"[7]", b'[{"job_id": "x"}]', b"\xff"])
def test_damaged_lowered_limits_are_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "limits.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"limits\.json cannot be read"):
        LoweredLimitFile(path).read()


def test_a_note_with_control_characters_is_stored_as_text(config: Config) -> None:
    write_site_switch(config.site.published, SiteSwitch(at=5.0, by="root", note="x\x1b[31m\n"))
    text = (Path(config.site.published) / "off.json").read_text()
    assert text.isprintable() and json.loads(text)["note"] == "x\x1b[31m\n"
