"""What every check is handed: the edges, the time left, and files of source code read once."""

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
    """What `run` returns: host.command.CommandResult."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def missing(self) -> bool: ...


class CommandRunner(Protocol):
    """host.command.run."""

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
    """One call of the static stage."""

    # Name of the batch script in findings.
    script: str
    run: CommandRunner
    environ: Mapping[str, str]  # what sbatch passes on to the job
    node_local: tuple[str, ...]  # below these a node may hold what the login node does not
    deadline: float  # time.monotonic()
    sources: dict[str, PythonSource] = field(default_factory=dict)  # by path, read once
    programs: dict[tuple[str, ...], Any] = field(default_factory=dict)  # ProgramImports of each entry point

    def left(self) -> float:
        """Seconds until the stage has to end; negative when it should have."""
        return self.deadline - time.monotonic()

    def severity(self, entry: EntryPoint, path: str = "") -> Severity:
        """ERROR for what surely runs, from a place that the nodes see as well.

        Behind a `cd` that failed the shell is still where it was.
        """
        there = not entry.cwd or Path(entry.cwd).is_dir()
        return Severity.ERROR if entry.certain and there and self.shared(path or entry.path) else Severity.WARNING

    def shared(self, path: str) -> bool:
        """The nodes see there what is seen here: not a node's own, nor on a file system that is not mounted here."""
        return not path.startswith(self.node_local) and is_mounted(path)

    def source(self, path: str) -> PythonSource:
        """The Python file `path`, read and compiled once. Empty when it cannot be read."""
        # Ast: not on the way of every gsub.
        from slurmwrap.prerun.static.python_source import read_source

        if path not in self.sources:
            self.sources[path] = read_source(read_head(Path(path)), path)
        return self.sources[path]

    def where(self, entry: EntryPoint) -> str:
        """The script in which `entry` stands."""
        return entry.file or self.script


def is_mounted(path: str) -> bool:
    """The top directory of an absolute path is here, or one that is spelt nearly so (then it is a slip of the pen)."""
    top = path.split("/")[1] if path.startswith("/") else ""
    if not top or Path("/", top).exists():
        return True
    from slurmwrap.nearest_name import is_slip

    return any(is_slip(top, entry.name) for entry in Path("/").iterdir())
