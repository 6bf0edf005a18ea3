"""StaticContext, which every static check gets: adapters, the time left, and source files that are read only once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.finding import Severity
from slurmwrap.prerun.static.python_source import read_head

if TYPE_CHECKING:
    from slurmwrap.prerun.static.python_source import PythonSource
    from slurmwrap.prerun.static.started_program import EntryPoint


class CommandOutput(Protocol):
    """The result of a CommandRunner, as host.command.CommandResult."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def missing(self) -> bool: ...


class CommandRunner(Protocol):
    """The signature of host.command.run."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> CommandOutput: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticContext:
    """The inputs and the deadline of one call of the static stage."""

    # Name of the batch script, for findings.
    script: str
    run: CommandRunner
    # The variables that sbatch passes on to the job.
    environ: Mapping[str, str]
    # Path prefixes below which a node may have files that the login node lacks.
    node_local: tuple[str, ...]
    # In time.monotonic().
    deadline: float
    # Python files by path, each read once.
    sources: dict[str, PythonSource] = field(default_factory=dict)
    # ProgramImports of each entry point.
    programs: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def left(self) -> float:
        """Return the seconds until the deadline; negative if it has passed."""
        return self.deadline - time.monotonic()

    def severity(self, entry: EntryPoint, path: str = "") -> Severity:
        """Return ERROR for a program that certainly runs, from a path that the nodes see too; else WARNING.

        If the directory of a `cd` does not exist, the shell stayed where it was, so that is a WARNING too.
        """
        directory_exists = not entry.cwd or Path(entry.cwd).is_dir()
        return (
            Severity.ERROR
            if entry.certain and directory_exists and self.shared(path or entry.path)
            else Severity.WARNING
        )

    def shared(self, path: str) -> bool:
        """Return whether the nodes see the same files there.

        They do not on a node's own disk, and it is unknown for a file system that is not mounted on this machine.
        """
        return not path.startswith(self.node_local) and is_mounted(path)

    def source(self, path: str) -> PythonSource:
        """Return the Python file `path`, read and compiled once. It is empty if it cannot be read."""
        # Imported here because ast would slow down every start of gsub.
        from slurmwrap.prerun.static.python_source import read_source

        if path not in self.sources:
            self.sources[path] = read_source(read_head(Path(path)), path)
        return self.sources[path]

    def where(self, entry: EntryPoint) -> str:
        """Return the name of the script that contains `entry`."""
        return entry.file or self.script


def is_mounted(path: str) -> bool:
    """Return whether the path's top directory exists here, or one with a similar name (then it is a typing error)."""
    top = path.split("/")[1] if path.startswith("/") else ""
    if not top or Path("/", top).exists():
        return True
    from slurmwrap.nearest_name import is_typo

    return any(is_typo(top, entry.name) for entry in Path("/").iterdir())
