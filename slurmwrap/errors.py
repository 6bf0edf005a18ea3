"""Exceptions of slurmwrap with their exit codes. Each message names the cause; `hint` says what to do next.

    SlurmwrapError            1
    ├─ UsageError           255   a wrong option, argument or #GSUB line: sbatch's code; `slurmwrap` exits with 2
    │  └─ UnknownOption     255   an option that neither sbatch nor gsub knows: of a site plugin, or sbatch refuses it
    ├─ ConfigError           78   a configuration file or key
    │  └─ WrongKey           78   one key of it: unknown, or with an invalid value
    ├─ ScriptError            1   the batch script itself (sbatch's own code)
    ├─ TraceError            65   a trace or profile file for the simulator (sysexits.h: EX_DATAERR)
    ├─ SlurmError             1   Slurm refused; carries sbatch's/scontrol's own text and exit code
    │  └─ SlurmUnreachable    1   no controller, a time-out
    │     └─ NoSlurmConf      1   no slurm.conf: no Slurm command can work, and each would retry for 60 s
    ├─ RefusedError           5   slurmwrap refuses: blocked input, same failure twice, too many nodes (see --force)
    ├─ PrerunFailed           3   --prerun=wait|only|gate: the pre-run found a failure
    │  └─ StaticFailed      3   the static stage found it: nothing was submitted, not even a pre-run
    ├─ PrerunInconclusive     4   --prerun=only: the pre-run was inconclusive
    ├─ StoreError             6   database or spool: locked, corrupt, newer, full
    │  └─ BadCredential       6   not a MUNGE credential of this realm: forged, damaged, or sealed for someone else
    └─ LabError               7   the lab cannot start or stop
Unexpected errors end with 70 (EX_SOFTWARE).
"""

from __future__ import annotations


class SlurmwrapError(Exception):
    """Base class of expected errors. `hint` is one sentence that says what to do next, or empty."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(SlurmwrapError):
    """An invalid command-line option, `#GSUB` line or `GSUB_*` variable."""

    exit_code = 255


class UnknownOption(UsageError):
    """An option that neither sbatch's table nor gsub's contains; it may belong to a site plugin."""


class ConfigError(SlurmwrapError):
    """A configuration file that cannot be read, or a key that does not exist."""

    exit_code = 78


class ScriptError(SlurmwrapError):
    """The batch script is missing, unreadable, empty, or not a script."""


class TraceError(SlurmwrapError):
    """A trace that the simulator cannot read; the message names the file, and the line where there is one."""

    exit_code = 65


class SlurmError(SlurmwrapError):
    """A Slurm command failed; message and `exit_code` are Slurm's own."""


class SlurmUnreachable(SlurmError):
    """No slurm.conf, no controller, or no answer in time. It is then unknown whether a submission was accepted."""


class NoSlurmConf(SlurmUnreachable):
    """There is no slurm.conf in the expected place; sbatch itself would retry for a minute before it reports that."""


class RefusedError(SlurmwrapError):
    """slurmwrap declines to submit the job; `--force` overrides."""

    exit_code = 5


class PrerunFailed(SlurmwrapError):
    """A pre-run that was waited for ended with the verdict `fail`."""

    exit_code = 3


class StaticFailed(PrerunFailed):
    """The static checks found an error, so nothing was submitted."""

    def __init__(self, message: str, *, hint: str = "", verdict: object = None) -> None:
        super().__init__(message, hint=hint)
        # A prerun.verdict.Verdict: all findings, errors first.
        self.verdict = verdict


class PrerunInconclusive(SlurmwrapError):
    """A pre-run that was requested alone (--prerun=only) was inconclusive."""

    exit_code = 4


class StoreError(SlurmwrapError):
    """The database or the spool cannot be used: locked, corrupt, from a newer version, full."""

    exit_code = 6


class BadCredential(StoreError):
    """Not a MUNGE credential of this realm, or it is sealed for another user. munged itself did answer."""


class LabError(SlurmwrapError):
    """The lab cluster cannot be started, stopped or found."""

    exit_code = 7
