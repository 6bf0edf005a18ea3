"""slurm/find_sbatch.py: Slurm's own sbatch is found where gsub replaces it, without an endless loop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.errors import SlurmwrapError
from slurmwrap.slurm.find_sbatch import find_sbatch, make_wrapper_environment


def _program(directory: Path, text: bytes) -> str:
    directory.mkdir()
    path = directory / "sbatch"
    path.write_bytes(text)
    path.chmod(0o755)
    return str(path)


def _environ(*folders: Path, **more: str) -> dict[str, str]:
    return {"PATH": ":".join(map(str, folders)), **more}


def test_a_script_that_calls_gsub_is_skipped(tmp_path: Path) -> None:
    _program(tmp_path / "a", b'#!/bin/sh\nexec gsub "$@"\n')
    _program(tmp_path / "b", f"#!{sys.executable}\nfrom slurmwrap.gsub.gsub_main import main\n".encode())
    own = _program(tmp_path / "c", b"\x7fELF gsub")
    environ = _environ(tmp_path / "none", tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert find_sbatch(environ) == own
    assert make_wrapper_environment(own, environ) == environ  # sbatch exports its environment to the job


def test_a_wrapper_of_the_site_is_used_once(tmp_path: Path) -> None:
    wrapper = _program(tmp_path / "site", b'#!/bin/sh\nexec /opt/other "$@"\n')
    own = _program(tmp_path / "bin", b"\x7fELF")
    environ = _environ(tmp_path / "site", tmp_path / "bin")
    assert find_sbatch(environ) == wrapper
    environ_after_wrapper = make_wrapper_environment(wrapper, environ)  # the wrapper called this process again
    assert find_sbatch(environ_after_wrapper) == own
    assert make_wrapper_environment(own, environ_after_wrapper) == environ
    # a mark that a job inherited does not count
    elsewhere = {**environ_after_wrapper, **{name: "1:/x" for name in environ_after_wrapper if name not in environ}}
    assert find_sbatch(elsewhere) == wrapper


def test_a_wrapper_that_calls_gsub_through_a_shell_is_recognised(tmp_path: Path) -> None:
    wrapper = _program(tmp_path / "site", b'#!/bin/sh\n/opt/other "$@"\n')
    own = _program(tmp_path / "bin", b"\x7fELF")
    environ = _environ(tmp_path / "site", tmp_path / "bin")
    look = "import os; from slurmwrap.slurm.find_sbatch import find_sbatch; print(find_sbatch(os.environ))"
    # `; true`: the call is not the last command, so that no shell uses exec for it
    inner, outer = '"$0" -c "$1"; true', '/bin/sh -c "$2" "$0" "$1"; true'
    call = ["/bin/sh", "-c", outer, sys.executable, look, inner]
    for named in ({}, {"GSUB_SBATCH": wrapper}):
        environ_after_wrapper = make_wrapper_environment(wrapper, {**environ, **named})
        found = subprocess.run(
            call, env=environ_after_wrapper, capture_output=True, text=True, timeout=allow(60), check=True
        )
        assert (found.stdout, found.stderr) == (f"{own}\n", "")


def test_a_configured_sbatch_that_is_gsub_is_skipped(tmp_path: Path) -> None:
    link = _program(tmp_path / "a", f"#!{sys.executable}\nfrom slurmwrap.gsub.gsub_main import main\n".encode())
    own = _program(tmp_path / "b", b"\x7fELF")
    assert find_sbatch(_environ(tmp_path / "a", tmp_path / "b", GSUB_SBATCH=link)) == own


def test_without_sbatch_the_error_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(SlurmwrapError, match="sbatch is not on PATH"):
        find_sbatch(_environ(tmp_path))
    _program(tmp_path / "a", b"#!/bin/sh\ngsub\n")
    with pytest.raises(SlurmwrapError, match="every sbatch on PATH is gsub itself") as caught:
        find_sbatch(_environ(tmp_path / "a"))
    assert caught.value.exit_code == 127
    assert find_sbatch(_environ(tmp_path / "a", GSUB_SBATCH="/opt/slurm/bin/sbatch")) == "/opt/slurm/bin/sbatch"
    assert os.environ.get("GSUB_SBATCH") is None
