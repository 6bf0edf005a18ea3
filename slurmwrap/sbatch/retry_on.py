"""Parse --retry-on: the exit codes and signals after which the user wants a job to be run again. Pure."""

from __future__ import annotations

from slurmwrap.errors import UsageError
from slurmwrap.nearest_name import find_nearest

_HINT = "It takes exit codes from 1 to 255 and signals: --retry-on=93,SIGUSR1"
# Signals that end a job in the name of Slurm or of a person: scancel, the time limit, a lost node.
_ENDINGS = frozenset({"SIGTERM", "SIGCONT", "SIGSTOP"})
# A shell reports a program that a signal ended as exit code 128 + the signal's number (bash(1)).
SHELL_SIGNAL = 128


def parse_retry_on(value: str, place: str = "") -> tuple[str, ...]:
    """Return exit codes and names of signals, each once: "93,usr1" -> ("93", "SIGUSR1").

    Raise UsageError that names the wrong word, after `place` ("train.sbatch:3: ").
    """
    found = [_parse_word(word.strip(), place) for word in value.split(",")]
    return tuple(dict.fromkeys(found))


def _parse_word(word: str, place: str) -> str:
    if word.isascii() and word.isdigit():
        if 1 <= int(word) <= 255:
            return str(int(word))
        what = "0 is success" if int(word) == 0 else f"{word} is no exit code"
        raise UsageError(f"{place}--retry-on: {what}", hint=_HINT)
    numbers = _get_signal_numbers()
    name = word.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name in _ENDINGS:
        raise UsageError(
            f"{place}--retry-on: {name} ends a job that was cancelled or reached its time limit",
            hint="Let the program end with an exit code of its own, and name that one.",
        )
    if name in numbers:
        return name
    near = find_nearest(name, numbers)
    hint = f"Did you mean {near}? {_HINT}" if near else _HINT
    raise UsageError(f"{place}--retry-on: '{word}' is neither an exit code nor a signal", hint=hint)


def find_named_ending(retry_on: tuple[str, ...], exit_code: int, signal: int) -> str:
    """Return which of the named endings this is: "exit code 93", "SIGUSR1"; "" if it is none of them."""
    if signal == 0 and str(exit_code) in retry_on:
        return f"exit code {exit_code}"
    numbers = _get_signal_numbers() if any(not word.isdigit() for word in retry_on) else {}
    ended_by = signal or exit_code - SHELL_SIGNAL
    return next((word for word in retry_on if numbers.get(word) == ended_by), "")


def _get_signal_numbers() -> dict[str, int]:
    import signal

    return {one.name: int(one) for one in signal.Signals}
