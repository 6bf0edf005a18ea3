"""Combine the site's own description of the network with the topology that Slurm knows (adapter)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurmwrap.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node
    from slurmwrap.model.topology import Topology

    Network = Callable[[Topology, Sequence[Node]], Topology]

# Bytes; a file for 10,000 nodes in 500 racks has 20 KiB.
MAX_BYTES = 16 << 20


class SiteRacks:
    """A Network: a function of Slurm's topology and the nodes. A topology that Slurm knows takes precedence.

    `file` and `features` are placement.topology_file and .topology_features; both may be "", and the file is used
    first. An error in the file is reported once through `say` and recorded as a remark: jobs are then placed as if
    there were no file.
    """

    def __init__(self, file: str, features: str, say: Callable[[str], None] = lambda line: None) -> None:
        self._file = file
        self._features = features
        self._say = say
        self._text: str | None = None
        self._trouble = ""

    def __call__(self, slurm_topology: Topology, nodes: Sequence[Node]) -> Topology:
        """Return `slurm_topology` itself if it contains a topology or nothing is configured."""
        if slurm_topology.source or not (self._file or self._features):
            return slurm_topology
        # Imported here because few sites configure a topology of their own.
        from slurmwrap.model.racks import topology_from_features, topology_from_file
        from slurmwrap.model.topology import Topology

        if not self._file:
            return topology_from_features(self._features, nodes)
        if not self._trouble:
            try:
                return topology_from_file(self._read(), self._file, nodes)
            except ConfigError as error:
                self._trouble = f"{error}; placing without it"
                self._say(self._trouble)
        return Topology(remarks=(self._trouble,))

    def _read(self) -> str:
        if self._text is None:
            self._text = _read_topology_file(self._file)
        return self._text


def _read_topology_file(file: str) -> str:
    """Read the file; ConfigError names it. Only regular files of limited size are read: a pipe might never end."""
    from pathlib import Path

    path = Path(file)
    if not path.is_absolute():
        raise ConfigError(f"placement.topology_file: '{file}' is not an absolute path")
    try:
        size, regular = path.stat().st_size, path.is_file()
        text = path.read_text(encoding="utf-8") if regular and size <= MAX_BYTES else None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: {error}") from error
    if text is None:
        raise ConfigError(f"{file}: no file of at most {MAX_BYTES >> 20} MiB")
    return text
