"""The specification of a lab, and what follows from it: names, ports, switches, PCI addresses. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from slurmwrap.errors import UsageError

DEFAULT_BASE_PORT = 26800
ROOTS_PLACE = Path("/var/lib/slurmwrap-lab")  # directory of root's lab, which all users of the machine may use
ACCOUNT = "lab"  # Slurm account of all users, with --accounting
HIGHEST_PORT = 32767  # the kernel assigns higher ports as ephemeral ports (net.ipv4.ip_local_port_range)
TOPOLOGIES = ("tree", "none")  # TopologyPlugin: topology/tree, or none
PRIORITIES = ("basic", "multifactor")  # PriorityType
QUEUE_RULES = ("order", "limit")  # rules that only advise unless `act` names them
_CLUSTER = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")  # slurmctld converts it to lower case; slurmdbd's tables contain it
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]*\Z")
# Size of sun_path of a UNIX socket (unix(7)) without its final NUL.
_SOCKET_PATH_MAX = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """The specification of one lab. Memory is in MiB per node; `directory` is absolute and resolved."""

    directory: Path
    nodes: int = 8
    gpus: int = 8  # per node
    cpus: int = 32  # per node; simulated, the machine may have fewer
    threads: int = 1  # CPUs per core; Slurm allocates all of a core to one job
    mem_mib: int = 256_000
    # Number of leaf switches below one core switch.
    switches: int = 2
    topology: str = "tree"  # one of TOPOLOGIES
    slurm_user: str = "root"
    base_port: int = DEFAULT_BASE_PORT
    gpu_type: str = "a100"  # of every GPU
    shards: int = 0  # gres/shard per node; 0: the cluster has none
    cluster: str = "lab"  # ClusterName
    # Run slurmdbd with its own database, and enforce limits of QOS and association.
    accounting: bool = False
    priority: str = "basic"  # one of PRIORITIES; fair share needs `accounting`
    act: tuple[str, ...] = ()  # of QUEUE_RULES: those that act

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes: n0, n1, ..."""
        return tuple(f"n{index}" for index in range(self.nodes))

    @property
    def sockets(self) -> int:
        """Sockets per node: two if the number of cores is even, else one."""
        return 2 if self.cpus // self.threads % 2 == 0 else 1

    @property
    def cores_per_socket(self) -> int:
        """Cores per socket; `checked` ensures that this is an integer."""
        return self.cpus // self.threads // self.sockets

    @property
    def controller_port(self) -> int:
        """SlurmctldPort."""
        return self.base_port

    @property
    def node_ports(self) -> tuple[int, ...]:
        """The port of each slurmd, in the order of `node_names`."""
        return tuple(self.base_port + 1 + index for index in range(self.nodes))

    @property
    def accounting_port(self) -> int:
        """DbdPort, the next port after the nodes'."""
        return self.base_port + self.nodes + 1

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports that the daemons use."""
        return (self.controller_port, *self.node_ports, *((self.accounting_port,) if self.accounting else ()))

    @property
    def leaves(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(leaf switch, its nodes): ib0 has the first share of the nodes, and so on. () without a tree."""
        if self.topology != "tree":
            return ()
        bounds = [index * self.nodes // self.switches for index in range(self.switches + 1)]
        names = self.node_names
        return tuple((f"ib{i}", names[bounds[i] : bounds[i + 1]]) for i in range(self.switches))


def checked(spec: LabSpec) -> LabSpec:
    """Return `spec`. Raise UsageError with the first option that is not valid."""
    for flag, value, low, high in (
        ("--nodes", spec.nodes, 1, 256),
        ("--gpus", spec.gpus, 0, 16),
        ("--cpus", spec.cpus, 1, 1024),
        ("--threads", spec.threads, 1, 8),
        ("--shards", spec.shards, 0, 1024 if spec.gpus else 0),
        ("--mem-mib", spec.mem_mib, 512, 16_000_000),
        ("--switches", spec.switches, 1, spec.nodes),
        ("--base-port", spec.base_port, 1024, HIGHEST_PORT - len(spec.ports) + 1),
    ):
        if not low <= value <= high:
            raise UsageError(f"{flag} must be between {low} and {high}, not {value}")
    if spec.cpus % spec.threads:
        raise UsageError(f"--cpus={spec.cpus} is not a multiple of --threads={spec.threads}")
    if spec.topology not in TOPOLOGIES:
        raise UsageError(f"--topology must be {' or '.join(TOPOLOGIES)}, not '{spec.topology}'")
    if spec.priority not in PRIORITIES:
        raise UsageError(f"--priority must be {' or '.join(PRIORITIES)}, not '{spec.priority}'")
    if unknown := [rule for rule in spec.act if rule not in QUEUE_RULES]:
        raise UsageError(f"--act must name {' or '.join(QUEUE_RULES)}, not '{unknown[0]}'")
    if not _CLUSTER.match(spec.cluster):
        raise UsageError(
            f"--cluster '{spec.cluster}' is no name of a cluster",
            hint="use small letters, digits and _, a letter first, at most 40",
        )
    return _checked_directory(spec)


def cluster_of(directory: Path) -> str:
    """Return the ClusterName of the lab in `directory` (absolute, resolved).

    It is "lab" for root's own directory and a digest of the path otherwise. The names must differ, because each lab
    numbers its jobs from 1 and a user's database identifies jobs by cluster and id.
    """
    if directory == ROOTS_PLACE:
        return "lab"
    return f"lab{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}"


def _checked_directory(spec: LabSpec) -> LabSpec:
    text = str(spec.directory)
    if not _PLAIN_PATH.match(text) or text == "/":
        # slurm.conf splits values at blanks, '#' and ',' and expands '%'. None of these can be escaped there.
        raise UsageError(
            f"--dir '{text}' cannot be written in slurm.conf", hint="use letters, digits and ._+@- in an absolute path"
        )
    socket = spec.directory / "run" / "munge" / "munge.socket.lock"  # the longest path of all sockets
    if len(str(socket)) > _SOCKET_PATH_MAX:
        raise UsageError(
            f"--dir '{text}' is too long for MUNGE's socket", hint="choose a directory with a shorter path"
        )
    return spec


def gpu_bus_id(index: int) -> str:
    """Return the PCI address of GPU `index` (0-15) of every node, as in /proc/driver/nvidia/gpus/ and Xid lines."""
    return f"0000:{0x07 + 0x10 * index:02x}:00.0"


def gpu_information(spec: LabSpec, index: int) -> str:
    """Return GPU `index` as the NVIDIA driver shows it in /proc/driver/nvidia/gpus/*/information."""
    rows = (
        ("Model: \t\t", f"Simulated {spec.gpu_type.upper()}"),
        ("Bus Type: \t", "PCIe"),
        ("Bus Location: \t", gpu_bus_id(index)),
        ("Device Minor: \t", str(index)),
        ("GPU Excluded:\t", "No"),
    )
    return "".join(f"{label} {value}\n" for label, value in rows)


def hosts_text(spec: LabSpec, host_text: str) -> str:
    """Return /etc/hosts of the nodes: every node name is 127.0.0.1, before the machine's own lines `host_text`."""
    return "".join(f"127.0.0.1 {name}\n" for name in spec.node_names) + host_text
