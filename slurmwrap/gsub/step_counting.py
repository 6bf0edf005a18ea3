"""--count-steps: gives the real job the step counter through its environment. The script stays as it is.

The counter and its files lie below the user's state directory, which nodes and containers see where they see the home
directory. Whatever hinders it costs the count, never the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.sbatch.request import JobRequest, OptionChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext

_NAMES = ("SLURMWRAP_STEP_DIR", "SLURMWRAP_STEP_NAMED")
_REASON = "--count-steps: the step counter is found by these variables"


def enable_step_counting(prepared: PreparedJob, desk: SubmitContext) -> PreparedJob:
    """`prepared` with what its job needs to count its steps, where it was asked to and can."""
    request = prepared.request
    if not request.own.count_steps:
        return prepared
    why = find_hindrance(request)
    if why:
        desk.say(f"its steps are not counted: {why}")
        return prepared
    try:
        directory, counter = desk.memory.step_dir(), desk.memory.keep_counter()
    except OSError as error:
        desk.say(f"its steps are not counted: {error}")
        return prepared
    environ = {
        "SLURMWRAP_STEP_DIR": directory,
        "SLURMWRAP_STEP_NAMED": "1",
        "PYTHONPATH": prepend_to_pythonpath(counter, desk.environ.get("PYTHONPATH", "")),
    }
    exported = export_with(request.value("export"), counter)
    if exported is not None:
        desk.say("its --export gets the step counter's variables: --count-steps")
    wishes = () if exported is None else (OptionChange(option="export", value=exported, reason=_REASON),)
    return replace(prepared, job_environ=environ, step_dir=directory, added=(*prepared.added, *wishes))


def find_hindrance(request: JobRequest) -> str:
    """Why the counter's variables cannot reach the job; "" when they can (sbatch(1), --export)."""
    if request.setting("export-file"):
        return "--export-file alone says what the job's environment is"
    value = request.value("export")
    if value is None:
        return ""
    if value.upper() in ("NONE", "NIL"):
        # its sruns would not pass the variables on either: sbatch sets SLURM_EXPORT_ENV=NONE for them
        return f"--export={value} keeps the counter's variables from the job; name the ones it needs instead"
    return "--export has a quoted value" if set(value) & set("'\"") else ""


def export_with(value: str | None, counter: str) -> str | None:
    """A list of --export with the counter in it; None where the list need not change.

    The user's own PYTHONPATH=… in it keeps its place behind the counter; a PYTHONPATH that they kept out stays out.
    """
    if value is None:
        return None
    words = value.split(",")
    every = "ALL" in (word.upper() for word in words)
    chosen = [_add_counter(word, counter) for word in words]
    if not every:
        chosen += [name for name in _NAMES if name not in words]
        chosen += [] if _sets_pythonpath(words) else [f"PYTHONPATH={counter}"]
    return None if chosen == words else ",".join(chosen)


def prepend_to_pythonpath(counter: str, path: str) -> str:
    """A PYTHONPATH that begins with the counter's directory."""
    return f"{counter}:{path}" if path else counter


def _add_counter(word: str, counter: str) -> str:
    name, equals, value = word.partition("=")
    return f"PYTHONPATH={prepend_to_pythonpath(counter, value)}" if equals and name == "PYTHONPATH" else word


def _sets_pythonpath(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "PYTHONPATH" for word in words)
