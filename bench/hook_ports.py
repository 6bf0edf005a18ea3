"""Measure Prolog and Epilog of a node without network ports, and with 16 of them, in turn (root and munged needed).

Wall time, and CPU time, which says more on a busy machine.
The ports are files of a directory tree, so that the time of an adapter's firmware is not in it. docs/hooks.md has the
figures of a run.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("tests", "tests/node_hooks")]

from hook_site import Site, make_site  # noqa: E402
from port_tree import write_ib, write_net  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=20, help="runs of each hook")
    runs = options.parse_args().n
    with tempfile.TemporaryDirectory() as directory, _run_munged(Path(directory)) as socket:
        Path(directory).chmod(0o755)
        sites = {ports: _make_site(Path(directory), ports, socket) for ports in (0, 16)}
        took: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for _ in range(runs):
            for ports, site in sites.items():
                for hook in ("prolog", "epilog"):
                    took.setdefault((hook, ports), []).append(_time(site, hook))
        for site in sites.values():
            site.end()
        for hook in ("prolog", "epilog"):
            for index, kind in enumerate(("wall", "CPU")):
                none, many = (statistics.median(one[index] for one in took[hook, ports]) for ports in (0, 16))
                print(f"{hook}, {kind}: no port {none:.1f} ms, 16 ports {many:.1f} ms, {many / none:.2f} times")


@contextmanager
def _run_munged(home: Path) -> Iterator[str]:
    (home / "key").write_bytes(os.urandom(64))
    (home / "key").chmod(0o600)
    options = ("key-file", "log-file", "pid-file", "seed-file", "socket")
    argv = ["munged", "--foreground", "--force", *(f"--{name}={home / name.removesuffix('-file')}" for name in options)]
    environ = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}
    daemon = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (home / "socket").exists() and daemon.poll() is None:
            time.sleep(0.02)
        yield str(home / "socket")
    finally:
        daemon.terminate()
        daemon.wait(10)


def _make_site(root: Path, ports: int, socket: str) -> Site:
    home = root / str(ports)
    home.mkdir()
    site = make_site(home, socket, str(Path(sys.executable).resolve()))
    for number in range(ports // 2):
        write_ib(home / "sysfs-n0", f"mlx5_{number}/1")
        write_net(home / "sysfs-n0", f"eth{number}")
    return site


def _time(site: Site, name: str) -> tuple[float, float]:
    """Run the program of a hook as its shim starts it; return its wall and CPU time in ms."""
    program = site.files.zipapp
    argv = [sys.executable, "-I", "-S", str(program), name, str(program.with_name("hooks.json"))]
    start, spent = time.perf_counter(), _cpu_s()
    subprocess.run(argv, env={**site.environ, "SLURM_JOB_GPUS": ""}, check=True)
    return (time.perf_counter() - start) * 1000, (_cpu_s() - spent) * 1000


def _cpu_s() -> float:
    """Return the CPU time of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
