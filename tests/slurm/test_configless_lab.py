"""`slurmwrap hooks` with a configless node: no slurm.conf on it, its slurmd gets a copy from slurmctld."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import Lab, restart_controller, started
from waiting import wait_until

from slurmwrap.lab import lab_cgroups, machine
from slurmwrap.lab.lab_directories import LabDirectories

pytestmark = [pytest.mark.lab, pytest.mark.slow]
# /run/slurm/conf is slurmd's link to its copy, and before it has the copy it looks for MUNGE in the default place.
NODE = """mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/slurm && mkdir /run/munge &&
ln -s {socket} /run/munge/munge.socket.2 && exec slurmd -D -N n1 --conf-server 127.0.0.1:{port}
"""


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    with started(lab_scratch / "lab-configless", "--no-hooks", "--no-reconcile", "--nodes", "2", "--gpus", "1") as lab:
        layout = LabDirectories(lab.dir)
        text = layout.slurm_conf.read_text()
        layout.slurm_conf.write_text(text + "SlurmctldParameters=enable_configless\n")
        os.kill(int((layout.node("n1") / "slurmd.pid").read_text()), 15)
        restart_controller(lab)
        wait_until(lambda: "is UP" in lab.run(["scontrol", "ping"]).stdout, "slurmctld answers")
        (port,) = [line.partition("=")[2] for line in text.splitlines() if line.startswith("SlurmctldPort=")]
        groups = lab_cgroups.lab_groups(layout.cgroup_name) if lab_cgroups.why_not(layout.cgroup_name) == "" else {}
        node = machine.launcher("n1", layout.node("n1") / "hosts", groups)
        script = NODE.format(socket=layout.munge_socket, port=port)
        argv = [*node, machine.program("unshare"), "-m", "/bin/sh", "-c", script]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            cache = layout.node("n1") / "spool" / "conf-cache" / "slurm.conf"
            wait_until(cache.exists, "slurmd has fetched slurm.conf")
            wait_until(lambda: set(lab.run(["sinfo", "-hN", "-o", "%T"]).stdout.split()) == {"idle"}, "n1 is idle")
            yield lab
        finally:
            process.terminate()
            process.wait()


def test_hooks_are_installed_run_and_removed_on_a_configless_node(lab: Lab) -> None:
    layout, base = LabDirectories(lab.dir), lab.dir / "base"
    (base / "units").mkdir(parents=True)
    manifest = f"--manifest={base}/manifest/m.json"
    options = [
        f"--shared={base}/shared", f"--directory={base}/hooks", f"--state-dir={base}/state",
        f"--node-state-dir={layout.node('%n')}/state", f"--unit-dir={base}/units", f"--config={base}/config.toml",
        f"--kernel-log=file:{layout.kernel_log('%n')}", f"--nvidia-proc={layout.node('%n')}/nvidia", manifest,
    ]  # fmt: skip
    cache = layout.node("n1") / "spool" / "conf-cache" / "slurm.conf"

    refused = lab.slurmwrap("hooks", "plan", *options, f"--slurm-conf={cache}")
    assert refused.returncode == 2 and "is the copy that Slurm keeps on a configless node" in refused.stderr

    done = lab.slurmwrap("hooks", "install", "--test-node=n1", *options, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes read the new lines" in done.stderr
    assert "on n1: observations of Prolog and Epilog were accepted" in done.stderr
    assert f"Prolog={base}/hooks/prolog" in cache.read_text()
    checked = lab.slurmwrap("hooks", "check", "--json", "--nodes=all", manifest, timeout=400)
    found = {one["what"]: (one["state"], one["text"]) for one in json.loads(checked.stdout)["checks"]}
    assert found["nodes"] == ("ok", "n[0-1]: read the lines")

    cache.write_text(cache.read_text().replace(f"Prolog={base}/hooks/prolog", ""))  # as with an old copy
    checked = lab.slurmwrap("hooks", "check", "--json", "--nodes=n1", manifest, timeout=400)
    found = {one["what"]: (one["state"], one["text"]) for one in json.loads(checked.stdout)["checks"]}
    assert found["nodes"] == (
        "fail",
        "n1: its slurmd is configless and has not fetched the new lines yet (restart slurmd there)",
    )
    lab.run(["scontrol", "reconfigure"])

    taken = lab.slurmwrap("hooks", "uninstall", "--purge", manifest, timeout=400)
    assert taken.returncode == 0, taken.stderr
    assert "slurmwrap: `slurmwrap hooks" not in cache.read_text() and not (base / "hooks").exists()
    assert set(lab.run(["sinfo", "-hN", "-o", "%E"]).stdout.split()) == {"none"}
