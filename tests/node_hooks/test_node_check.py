"""The check of a node: the program in the zipapp, with the real nvidia-ml-py on a stand-in for NVIDIA's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hook_site import OLD_PYTHON, USER, Site, add_gpu, append, make_site

from slurmwrap.node_hooks import deadline_child, node_check

FAR = 1e9  # a value of time.monotonic() that no test reaches
# Left out where a test is about something else: what they find depends on this machine, and PyTorch takes seconds.
OF_THIS_MACHINE = ("compute", "infiniband", "clock", "disk")


def with_gpus(site: Site, library: str) -> Site:
    for minor, address in enumerate(("0000:05:00.0", "0000:06:00.0")):
        add_gpu(site, minor, address)
    site.setting("nvidia_control", "/dev/null")
    site.environ["LD_LIBRARY_PATH"] = library
    return site


@pytest.fixture
def node(site: Site, libnvml: Callable[..., str]) -> Site:
    return with_gpus(site, libnvml())


def check(
    site: Site, behaviour: str = "", python: str = "", user: int | None = None, **asked: Any
) -> tuple[list[str], dict[str, dict[str, str]], Any]:
    """Returns the names of the failed checks, the checks by name, and the record."""
    request = json.dumps({"gpus": 2, "seconds": 100, "skip": OF_THIS_MACHINE, **asked})
    shim = site.files.prolog.read_text()
    interpreter = python or shim.partition("\npython=")[2].partition("\n")[0]
    argv = [interpreter, "-I", "-S", site.files.zipapp, "check", site.files.zipapp.with_name("hooks.json"), request]
    environ = {**site.environ, "FAKE_NVML": behaviour}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, user=user, cwd="/")
    assert done.stdout, done.stderr
    record = json.loads(done.stdout)
    assert done.returncode == 0
    failed = [one["name"] for one in record["checks"] if one["state"] == "fail"]
    return failed, {one["name"]: one for one in record["checks"]}, record


def test_a_sound_node_passes_and_each_check_says_what_it_looked_at(node: Site) -> None:
    failed, checks, record = check(node, mounts=["/proc"])
    assert (failed, record["node"], record["reboot"]) == ([], "n0", False)
    assert list(checks) == [name for name, _ in node_check.CHECKS]
    assert checks["gpus"]["text"] == "NVML sees 2 GPUs, Slurm has 2"
    assert checks["mounts"]["state"] == "ok"


@pytest.mark.parametrize(
    ("behaviour", "name", "text"),
    [
        ("recovery@1=1", "gpu_state", "GPU 1 (0000:06:00.0): it asks for recovery action gpu_reset"),
        ("remap_pending@0=1", "gpu_state", "rows are to be remapped"),
        ("remap_failed@0=1", "gpu_state", "a row could not be remapped"),
        ("ecc_volatile@1=3", "gpu_state", "3 uncorrected memory errors"),
        ("retired_single=0 retired_double=0 retired_pending@0=1", "gpu_state", "pages are to be retired"),
        ("reasons@0=0x48", "clocks", "hw_slowdown"),
        ("process@0=4194999", "gpu_memory", "4194999"),
        ("used_mib@1=9000", "gpu_memory", "9000 MiB are in use"),
        ("lost@1=1", "gpus", "GPU 1"),
        ("init=9", "gpus", "NVML"),
    ],
)
def test_a_fault_of_one_gpu_fails_the_check_that_names_it(node: Site, behaviour: str, name: str, text: str) -> None:
    failed, checks, _ = check(node, behaviour)
    assert name in failed
    assert text in checks[name]["text"]


def test_a_gpu_that_slurm_has_and_nvml_does_not_see_fails(node: Site) -> None:
    _, checks, _ = check(node, gpus=3)
    assert (checks["gpus"]["state"], checks["gpus"]["text"]) == ("fail", "NVML sees 2 GPUs, Slurm has 3")


def test_the_record_says_when_nvml_asks_for_a_reboot(node: Site) -> None:
    _, checks, record = check(node, "recovery@0=2")
    assert (checks["gpu_state"]["state"], record["reboot"]) == ("fail", True)


def test_a_node_with_gpus_whose_driver_is_not_loaded_fails(site: Site) -> None:
    site.setting("nvidia_control", "/nonexistent")
    assert check(site)[0] == ["gpus"]
    assert check(site, gpus=0)[0] == []


def test_a_hanging_driver_is_abandoned_and_the_other_checks_are_made(node: Site) -> None:
    failed, checks, _ = check(node, "hang=nvmlInitWithFlags", seconds=4, mounts=["/proc"])
    assert "gpus" in failed
    assert list(checks) == [name for name, _ in node_check.CHECKS]


def test_a_gpu_that_fell_off_the_bus_fails_and_nvml_is_not_asked(node: Site) -> None:
    state = node.state
    state.mkdir(parents=True, mode=0o700)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (state / "gpu.fallen").write_text(json.dumps({"boot": boot, "text": "NVRM: Xid (PCI:0000:05:00): 79, gone"}))
    _, checks, _ = check(node)
    assert (checks["xid"]["state"], checks["gpus"]["state"]) == ("fail", "fail")
    append(node.kernel_log, "of an earlier boot")
    (state / "gpu.fallen").write_text(json.dumps({"boot": "an earlier one", "text": "NVRM: Xid 79"}))
    assert check(node)[0] == []


def test_a_missing_file_system_and_one_that_is_not_mounted_fail(node: Site, tmp_path: Path) -> None:
    _, checks, _ = check(node, mounts=[str(tmp_path / "none"), str(tmp_path), "/proc"])
    assert checks["mounts"]["state"] == "fail"
    assert "none: No such file" in checks["mounts"]["text"]
    assert f"{tmp_path}: nothing is mounted there" in checks["mounts"]["text"]
    assert "/proc" not in checks["mounts"]["text"]


def test_a_check_in_check_skip_is_not_made(node: Site) -> None:
    failed, checks, _ = check(node, "recovery@1=1", skip=["gpu_state", *OF_THIS_MACHINE])
    assert (failed, checks["gpu_state"]["state"]) == ([], "skipped")


def test_slurm_user_checks_gpus_without_the_marks_of_root(node: Site) -> None:
    node.state.mkdir(parents=True, mode=0o700)
    # pytest's own directories are closed to other users.
    node.environ["LD_LIBRARY_PATH"] = shutil.copytree(node.environ["LD_LIBRARY_PATH"], f"{node.root}/library")
    private = Path(f"/tmp/slurmwrap-check-{USER}")
    try:
        failed, checks, _ = check(node, user=USER)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    assert (failed, checks["gpus"]["state"]) == ([], "ok")


def test_the_program_runs_under_python_3_6(open_dir: Path, munge_socket: str, libnvml: Callable[..., str]) -> None:
    if os.geteuid() != 0 or not os.access(OLD_PYTHON, os.X_OK):
        pytest.skip("needs root and Python 3.6")
    site = with_gpus(make_site(open_dir, munge_socket, str(OLD_PYTHON)), libnvml())
    failed, checks, _ = check(site, python=str(OLD_PYTHON), skip=["compute", "disk"])
    assert (failed, checks["gpus"]["state"]) == ([], "ok")


def make_node(**asked: Any) -> node_check.CheckedNode:
    """A node whose request is `asked`; its deadline is far away."""
    return node_check.CheckedNode(None, node_check.Request(asked), FAR)


def make_port(root: Path, adapter: str, port: int, state: str, *, errors: int = 0, layer: str = "InfiniBand") -> Path:
    place = root / adapter / "ports" / str(port)
    (place / "counters").mkdir(parents=True)
    (place / "link_layer").write_text(f"{layer}\n")
    (place / "state").write_text(f"{state}\n")
    (place / "counters" / "link_downed").write_text(f"{errors}\n")
    return place


def test_an_adapter_needs_one_active_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_check.time, "sleep", lambda seconds: None)
    make_port(tmp_path, "mlx5_0", 1, "4: ACTIVE")
    make_port(tmp_path, "mlx5_0", 2, "1: DOWN")
    make_port(tmp_path, "mlx5_2", 1, "1: DOWN", layer="Ethernet")
    assert node_check.check_infiniband(make_node(), str(tmp_path))[0] == "ok"
    make_port(tmp_path, "mlx5_1", 1, "2: INIT")
    assert node_check.check_infiniband(make_node(), str(tmp_path)) == ("fail", "mlx5_1: no port is ACTIVE")
    assert node_check.check_infiniband(make_node(), str(tmp_path / "none"))[0] == "skipped"


def test_an_error_counter_that_rises_fails_and_an_old_error_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = make_port(tmp_path, "mlx5_0", 1, "4: ACTIVE", errors=7)
    counter = port / "counters" / "link_downed"
    monkeypatch.setattr(node_check.time, "sleep", lambda seconds: None)
    assert node_check.check_infiniband(make_node(), str(tmp_path))[0] == "ok"
    monkeypatch.setattr(node_check.time, "sleep", lambda seconds: counter.write_text("8\n"))
    assert node_check.check_infiniband(make_node(), str(tmp_path)) == ("fail", "mlx5_0 port 1 link_downed rises")


def test_a_program_is_judged_by_its_exit_code_and_quoted_by_its_last_line() -> None:
    assert node_check._run_program(["/bin/sh", "-c", "echo a; echo b; exit 3"], FAR) == (False, "b")
    assert node_check._run_program(["/bin/sh", "-c", "echo none"], FAR) == (True, "none")
    assert node_check._run_program(["/nonexistent"], FAR)[0] is False


def test_an_error_in_a_check_is_a_failure() -> None:
    def broken(node: node_check.CheckedNode) -> tuple[str, str]:
        raise RuntimeError("unexpected")

    found = node_check._run_check("mounts", broken, make_node())
    assert (found["state"], found["text"]) == ("fail", "the check itself failed: RuntimeError: unexpected")
    assert node_check._judge_offset(-2.0, "chrony")[0] == "fail"
    assert node_check._judge_offset(0.001, "chrony")[0] == "ok"
    assert deadline_child.ENVIRONMENT.get(b"LD_LIBRARY_PATH") is None
