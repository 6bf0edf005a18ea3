"""What a lab shall look like, and everything that follows from it: names, ports, switches, PCI addresses. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from slurmwrap.errors import UsageError

DEFAULT_BASE_PORT = 26800
ROOTS_PLACE = Path("/var/lib/slurmwrap-lab")  # root's lab, which everybody of the machine may use
ACCOUNT = "lab"  # everybody's, with --accounting
HIGHEST_PORT = 32767  # above it the kernel hands out ephemeral ports (net.ipv4.ip_local_port_range)
TOPOLOGIES = ("tree", "none")  # what Slurm knows of the network: topology/tree, or nothing
_CLUSTER = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")  # slurmctld makes it small, slurmdbd names tables by it
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]*\Z")
# sun_path of a UNIX socket (unix(7)) less its final NUL
_SOCKET_PATH_MAX = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """One lab. Memory is MiB per node; `directory` is absolute and resolved; every GPU is of `gpu_type`."""

    directory: Path
    nodes: int = 8
    gpus: int = 8  # per node
    cpus: int = 32  # per node; invented, the machine need not have them
    threads: int = 1  # CPUs of a core, of which Slurm gives all to one job
    mem_mib: int = 256_000
    # Leaf switches under one core switch.
    switches: int = 2
    topology: str = "tree"  # one of TOPOLOGIES
    slurm_user: str = "root"
    base_port: int = DEFAULT_BASE_PORT
    gpu_type: str = "a100"
    cluster: str = "lab"  # ClusterName
    # slurmdbd with a database of its own; limits of QOS and association are enforced
    accounting: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        """n0, n1, ..."""
        return tuple(f"n{index}" for index in range(self.nodes))

    @property
    def sockets(self) -> int:
        """Per node: two where its cores can be divided so."""
        return 2 if self.cpus // self.threads % 2 == 0 else 1

    @property
    def cores_per_socket(self) -> int:
        """Whole ones: `checked` saw to that."""
        return self.cpus // self.threads // self.sockets

    @property
    def controller_port(self) -> int:
        """SlurmctldPort."""
        return self.base_port

    @property
    def node_ports(self) -> tuple[int, ...]:
        """Port of each slurmd, in the order of `node_names`."""
        return tuple(self.base_port + 1 + index for index in range(self.nodes))

    @property
    def accounting_port(self) -> int:
        """DbdPort: the one above the nodes'."""
        return self.base_port + self.nodes + 1

    @property
    def ports(self) -> tuple[int, ...]:
        """All that the daemons take."""
        return (self.controller_port, *self.node_ports, *((self.accounting_port,) if self.accounting else ()))

    @property
    def leaves(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Leaf switches with their nodes: ib0 holds the first share of the nodes, and so on. None without a tree."""
        if self.topology != "tree":
            return ()
        bounds = [index * self.nodes // self.switches for index in range(self.switches + 1)]
        names = self.node_names
        return tuple((f"ib{i}", names[bounds[i] : bounds[i + 1]]) for i in range(self.switches))


def checked(spec: LabSpec) -> LabSpec:
    """`spec` itself; UsageError names the first flag that cannot be taken."""
    for flag, value, low, high in (
        ("--nodes", spec.nodes, 1, 256),
        ("--gpus", spec.gpus, 0, 16),
        ("--cpus", spec.cpus, 1, 1024),
        ("--threads", spec.threads, 1, 8),
        ("--mem-mib", spec.mem_mib, 512, 16_000_000),
        ("--switches", spec.switches, 1, spec.nodes),
        ("--base-port", spec.base_port, 1024, HIGHEST_PORT - len(spec.ports) + 1),
    ):
        if not low <= value <= high:
            raise UsageError(f"{flag} must be between {low} and {high}, not {value}")
    if spec.cpus % spec.threads:
        raise UsageError(f"--cpus={spec.cpus} are no whole cores of --threads={spec.threads}")
    if spec.topology not in TOPOLOGIES:
        raise UsageError(f"--topology must be {' or '.join(TOPOLOGIES)}, not '{spec.topology}'")
    if not _CLUSTER.match(spec.cluster):
        raise UsageError(
            f"--cluster '{spec.cluster}' is no name of a cluster",
            hint="use small letters, digits and _, a letter first, at most 40",
        )
    return _checked_directory(spec)


def cluster_of(directory: Path) -> str:
    """A ClusterName for the lab in `directory` (absolute, resolved): "lab" for root's own place, else made of it.

    Each lab counts its jobs from 1, and what a user keeps of their jobs goes by cluster and id.
    """
    if directory == ROOTS_PLACE:
        return "lab"
    return f"lab{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}"


def _checked_directory(spec: LabSpec) -> LabSpec:
    text = str(spec.directory)
    if not _PLAIN_PATH.match(text) or text == "/":
        # slurm.conf splits values at blanks, '#' and ',' and expands '%'; none of it can be escaped there.
        raise UsageError(
            f"--dir '{text}' cannot stand in slurm.conf", hint="use letters, digits and ._+@- in an absolute path"
        )
    socket = spec.directory / "run" / "munge" / "munge.socket.lock"  # longer than the database's
    if len(str(socket)) > _SOCKET_PATH_MAX:
        raise UsageError(
            f"--dir '{text}' is too long for MUNGE's socket", hint="choose a directory with a shorter path"
        )
    return spec


def gpu_bus_id(index: int) -> str:
    """PCI address of GPU `index` (0-15) on every node, as /proc/driver/nvidia/gpus/ and Xid lines spell it."""
    return f"0000:{0x07 + 0x10 * index:02x}:00.0"


def gpu_information(spec: LabSpec, index: int) -> str:
    """GPU `index` as the NVIDIA driver shows it in /proc/driver/nvidia/gpus/*/information."""
    rows = (
        ("Model: \t\t", f"Simulated {spec.gpu_type.upper()}"),
        ("Bus Type: \t", "PCIe"),
        ("Bus Location: \t", gpu_bus_id(index)),
        ("Device Minor: \t", str(index)),
        ("GPU Excluded:\t", "No"),
    )
    return "".join(f"{label} {value}\n" for label, value in rows)


def hosts_text(spec: LabSpec, host_text: str) -> str:
    """/etc/hosts as the nodes see it: every node name is 127.0.0.1, before the machine's own lines `host_text`."""
    return "".join(f"127.0.0.1 {name}\n" for name in spec.node_names) + host_text
