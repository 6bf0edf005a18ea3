"""Edge: lays the site's own description of the network over what Slurm knows. Reads its file once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurmwrap.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node
    from slurmwrap.model.topology import Topology

    Network = Callable[[Topology, Sequence[Node]], Topology]

# 10,000 nodes in 500 racks are 20 KiB
MAX_BYTES = 16 << 20


class SiteRacks:
    """A Network: (what Slurm showed, its nodes) → what is known. Where Slurm knows a topology, that one counts.

    `file` and `features` are placement.topology_file and .topology_features; both may be "", the file goes first. What
    is wrong with the file is said once through `say`, and remarked: a job is then placed as if there were none.
    """

    def __init__(self, file: str, features: str, say: Callable[[str], None] = lambda line: None) -> None:
        self._file = file
        self._features = features
        self._say = say
        self._text: str | None = None
        self._trouble = ""

    def __call__(self, told: Topology, nodes: Sequence[Node]) -> Topology:
        """`told` itself where it holds anything or nothing is configured."""
        if told.source or not (self._file or self._features):
            return told
        # Only where a site has configured it.
        from slurmwrap.model.racks import of_features, of_file
        from slurmwrap.model.topology import Topology

        if not self._file:
            return of_features(self._features, nodes)
        if not self._trouble:
            try:
                return of_file(self._read(), self._file, nodes)
            except ConfigError as error:
                self._trouble = f"{error}; placing without it"
                self._say(self._trouble)
        return Topology(remarks=(self._trouble,))

    def _read(self) -> str:
        if self._text is None:
            self._text = _read_topology_file(self._file)
        return self._text


def _read_topology_file(file: str) -> str:
    """ConfigError names the file. Nothing but a regular file of sensible size: a pipe would never end."""
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
