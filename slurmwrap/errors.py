"""The one tree of errors. Each says what is wrong, names the culprit, and carries the way out.

    SlurmwrapError            1
    ├─ UsageError           255   a wrong option, argument or #GSUB line: sbatch's code; `slurmwrap` ends with 2
    │  └─ UnknownOption     255   an option of no program that we know: a site plugin's, or sbatch refuses it
    ├─ ConfigError           78   a configuration file or key
    │  └─ WrongKey           78   one key of it: unknown, or with a value that it cannot have
    ├─ ScriptError            1   the batch script itself (sbatch's own code)
    ├─ TraceError            65   a trace or profile file for the simulator (sysexits.h: EX_DATAERR)
    ├─ SlurmError             1   Slurm refused; carries sbatch's/scontrol's own text and exit code
    │  └─ SlurmUnreachable    1   no controller, a time-out
    │     └─ NoSlurmConf      1   no slurm.conf: nothing of Slurm's can work, and every command would try for 60 s
    ├─ RefusedError           5   we refuse: blocked input, the same failure twice, too many nodes (--force overrides)
    ├─ PrerunFailed           3   --prerun=wait|only|gate: the pre-run found a failure
    │  └─ StaticFailed      3   the static stage found it: nothing was submitted, not even a pre-run
    ├─ PrerunInconclusive     4   --prerun=only: nothing proven
    ├─ StoreError             6   database or spool: locked, corrupt, newer, full
    │  └─ BadCredential       6   not a MUNGE credential of this realm: forged, damaged, or sealed for someone else
    └─ LabError               7   the lab cannot start or stop
Unexpected errors end with 70 (EX_SOFTWARE).
"""

from __future__ import annotations


class SlurmwrapError(Exception):
    """Something expected went wrong. `hint` is one sentence that gives the way out; empty when there is none."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(SlurmwrapError):
    """A command-line flag, `#GSUB` line or `GSUB_*` variable that cannot be taken."""

    exit_code = 255


class UnknownOption(UsageError):
    """An option that neither sbatch's table nor ours has: perhaps a site plugin's."""


class ConfigError(SlurmwrapError):
    """A configuration file that cannot be read, or a key that does not exist."""

    exit_code = 78


class ScriptError(SlurmwrapError):
    """The batch script is missing, unreadable, empty, or not a script."""


class TraceError(SlurmwrapError):
    """A trace that the simulator cannot read; the message names the file, and the line where there is one."""

    exit_code = 65


class SlurmError(SlurmwrapError):
    """A Slurm command ended with an error; the message is Slurm's own, `exit_code` too."""


class SlurmUnreachable(SlurmError):
    """No slurm.conf, no controller, or no answer in time. For a submission it means: unknown whether it took."""


class NoSlurmConf(SlurmUnreachable):
    """There is no slurm.conf where it should be; sbatch itself would retry for a minute before it says so."""


class RefusedError(SlurmwrapError):
    """We decline to submit; `--force` overrides."""

    exit_code = 5


class PrerunFailed(SlurmwrapError):
    """A pre-run that was waited for ended with the verdict `fail`."""

    exit_code = 3


class StaticFailed(PrerunFailed):
    """The static stage found what cannot work."""

    def __init__(self, message: str, *, hint: str = "", verdict: object = None) -> None:
        super().__init__(message, hint=hint)
        # A prerun.verdict.Verdict: all findings, errors first.
        self.verdict = verdict


class PrerunInconclusive(SlurmwrapError):
    """A pre-run that was asked for alone proved nothing."""

    exit_code = 4


class StoreError(SlurmwrapError):
    """The database or the spool cannot be used: locked, corrupt, from a newer version, full."""

    exit_code = 6


class BadCredential(StoreError):
    """These bytes are no MUNGE credential of this realm, or one for another user's eyes; munged itself did answer."""


class LabError(SlurmwrapError):
    """The lab cluster cannot be started, stopped or found."""

    exit_code = 7
