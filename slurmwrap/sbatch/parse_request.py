"""Parse a call of gsub into a JobRequest: script < environment < command line, as in sbatch. Pure.

Files are read through the functions that the caller passes in. Values of sbatch options are kept as they were given;
only those that determine how many resources the job needs are parsed (`shape`). gsub's own options have the same
precedence: `#GSUB` < `GSUB_*` < command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.errors import ScriptError, UnknownOption, UsageError
from slurmwrap.fast_dataclasses import fields, replace
from slurmwrap.sbatch.command_line import (
    OWN_NAMES,
    BadOption,
    CommandLine,
    Names,
    ParsedOption,
    build_directive_names,
    build_names,
    scan,
    split_command_line,
)
from slurmwrap.sbatch.job_request import GsubOptions, JobRequest, Origin, SbatchSetting, Script
from slurmwrap.sbatch.option_table import (
    ANSWERED_AT_ONCE,
    AUTO_PARTITION,
    COMMAND_LINE_ONLY,
    HOSTFILE,
    NONE,
    OPPOSITES,
    OWN,
    OWN_BY_NAME,
    REQUIRED,
    SBATCH,
    WAIT4SWITCH,
    GsubOption,
    Release,
    SbatchOption,
)
from slurmwrap.sbatch.resource_shape import compute_resource_shape
from slurmwrap.sbatch.script_directives import BadLine, Directive, DirectiveWord, parse_directives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # A field of GsubOptions and its value.
    _OwnValue = tuple[str, Any]

ReadScript = Callable[[str], bytes]

_YES = frozenset({"1", "yes", "true", "on"})
_NO = frozenset({"0", "no", "false", "off"})
_SEEN_BY_SBATCH = ("SBATCH_", "SLURM_")


def parse_request(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: str,
    read_script: ReadScript,
    read_stdin: Callable[[], bytes],
    release: Release | None = None,
    extra: Sequence[SbatchOption] = (),
) -> JobRequest:
    """Return everything that the call asks for. `argv` is the command line after the program's name.

    `read_script` raises OSError as `open` and `read` do. `release` is the release of sbatch, if it is known; it decides
    what an abbreviated option means and how a space after a backslash is read. `extra` are options of site plugins.
    The script is not read (`content` is b"") where sbatch would not read it either. For a heterogeneous job the
    request describes the first component.

    Raises UsageError and ScriptError with sbatch's messages and exit codes. A UsageError without a hint is one that
    sbatch reports itself; one with a hint is slurmwrap's own. UnknownOption: the option may belong to a site plugin
    that is not in `extra`.
    """
    names = build_names(release, extra)
    command = split_command_line(argv, names)
    if command.hetjob and not command.has(*ANSWERED_AT_ONCE):
        first = parse_request(
            command.first_component, environ=environ, cwd=cwd, read_script=read_script, read_stdin=read_stdin,
            release=release, extra=extra,
        )  # fmt: skip
        # The first component was parsed alone, but gsub's own options count in any component.
        kept = [(f.name, getattr(first.own, f.name)) for f in fields(first.own)]
        own = _merge_gsub_options((kept, _parse_gsub_options_of_command(command)))
        return replace(first, own=own, hetjob=True, components=command.other_components)
    # Parsed before the script, so that a wrong option is reported before gsub waits for standard input.
    own_on_command_line = tuple(_parse_gsub_options_of_command(command))
    script = _read_script(command, environ, cwd, read_script, read_stdin)
    sbatch_words, own_words, hetjob = _split_directive_words(script, release)
    settings = _merge_settings(
        (*_list_script_settings(sbatch_words, script, names), *_list_own_partition_settings(own_words, script)),
        _list_environment_settings(environ),
        _list_command_line_settings(command),
    )
    settings = (*_list_hostfile_settings(environ, settings), *settings)
    own = _merge_gsub_options(
        (_parse_gsub_options_of_script(own_words, script), _parse_gsub_variables(environ), own_on_command_line)
    )
    chdir = next((s.value for s in reversed(settings) if s.option == "chdir" and s.value), cwd)
    return JobRequest(
        script=script,
        args=command.args,
        settings=settings,
        own=own,
        shape=compute_resource_shape(settings),
        chdir=chdir if chdir.startswith("/") else f"{cwd.rstrip('/')}/{chdir}",
        environ={name: value for name, value in environ.items() if name.startswith(_SEEN_BY_SBATCH)},
        hetjob=hetjob or command.hetjob,
        words=None if command.hetjob else command.option_words,
        argv=tuple(argv),
        cwd=cwd,
        plugin_options={option.name: option.argument for option in extra},
    )


# --- the script ---------------------------------------------------------------------------------------------------


def _read_script(
    command: CommandLine,
    environ: Mapping[str, str],
    cwd: str,
    read_script: ReadScript,
    read_stdin: Callable[[], bytes],
) -> Script:
    if command.has(*ANSWERED_AT_ONCE) or command.hetjob:
        return Script(path=None, name="", content=b"")
    wraps = [one.value or "" for one in command.given if one.option == "wrap"]
    if wraps and command.script is not None:
        raise UsageError("Script arguments not permitted with --wrap option", exit_code=1)
    if wraps:
        return Script(path=None, name="wrap", content=wrap_script(wraps[-1]))
    if command.script is None:
        return Script(path=None, name="sbatch", content=_check_content(read_stdin(), "stdin"), from_stdin=True)
    chdir = next((one.value for one in reversed(command.given) if one.option == "chdir"), None)
    path, content = _find_script(command.script, chdir, environ.get("PATH", ""), cwd, read_script)
    return Script(
        path=path, name=path.rpartition("/")[2], content=_check_content(content, command.script), word=command.script
    )


def wrap_script(command: str) -> bytes:
    """Return the script that `sbatch --wrap=command` makes (22.05.8, as shown by `scontrol write batch_script`)."""
    body = command.encode(errors="surrogateescape")
    return b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" + body + b"\n"


def _find_script(name: str, chdir: str | None, path: str, cwd: str, read_script: ReadScript) -> tuple[str, bytes]:
    """Return the script's absolute path and its content.

    A name that begins with neither `/` nor `.` is looked up in --chdir (as given on the command line) or the
    working directory, then in PATH, and is at last opened as it is (measured on 22.05.8).
    """
    here = cwd.rstrip("/")
    direct = name if name.startswith("/") else f"{here}/{name}"
    if name[:1] in ("/", ".", ""):
        return direct, _open_script(direct, name, read_script)
    first = here if chdir is None else chdir if chdir.startswith("/") else f"{here}/{chdir}"
    for folder in (first, *filter(None, path.split(":"))):
        candidate = f"{first}/{folder}/{name}" if folder.startswith(".") else f"{folder}/{name}"
        try:
            return candidate, read_script(candidate)
        except OSError:
            continue
    return direct, _open_script(direct, name, read_script)


def _open_script(path: str, name: str, read_script: ReadScript) -> bytes:
    try:
        return read_script(path)
    except IsADirectoryError:
        raise ScriptError(f"{name}: Batch script is empty!", hint="It is a directory; name the script in it.") from None
    except PermissionError:
        raise ScriptError(f"Unable to open file {name}", hint=f"It is there, but you may not read it: {path}") from None
    except OSError as error:
        hint = (
            "There is no such file in the working directory or in PATH." if _is_absent(error) else f"{error.strerror}."
        )
        raise ScriptError(f"Unable to open file {name}", hint=hint) from None


def _is_absent(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def _check_content(content: bytes, name: str) -> bytes:
    """Return the content if sbatch would accept it. The checks have sbatch's order and messages (22.05.8)."""
    if not content:
        raise ScriptError(f"{name}: Batch script is empty!", hint="Give a script, or a command with --wrap.")
    if not content.split(b"\0", 1)[0].strip():
        raise ScriptError(f"{name}: Batch script contains only whitespace!")
    if not content.startswith(b"#!"):
        raise ScriptError(
            f"{name}: This does not look like a batch script.  "
            "The first line must start with #! followed by the path to an interpreter.",
            hint="For instance: #!/bin/sh",
        )
    if b"\0" in content:
        raise ScriptError(f"{name}: The Slurm controller does not allow scripts that contain a NULL character '\\0'.")
    if b"\r\n" in content:
        raise ScriptError(
            f"{name}: Batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n).",
            hint=f"sed -i 's/\\r$//' {name}",
        )
    return content


# --- sbatch's options ---------------------------------------------------------------------------------------------

_Located = tuple[Directive, DirectiveWord]


def _split_directive_words(script: Script, release: Release | None) -> tuple[list[_Located], list[_Located], bool]:
    """Return the words of `#SBATCH` lines up to a second component, those of `#GSUB` lines, and whether one exists."""
    try:
        directives = parse_directives(script.content, release)
    except BadLine as bad:
        hint = "It is a #GSUB line, which sbatch would not read." if bad.own else ""
        raise UsageError(f"{_format_script_name(script)}: {bad}", hint=hint, exit_code=1) from None
    end_line = next((d.line for d in directives if d.hetjob and d.magic == "#SBATCH"), None)
    sbatch = [
        (d, w) for d in directives if d.magic == "#SBATCH" and (end_line is None or d.line < end_line) for w in d.words
    ]
    own = [(d, w) for d in directives if d.magic == "#GSUB" for w in d.words]
    return sbatch, own, end_line is not None


def _format_script_name(script: Script) -> str:
    return "stdin" if script.from_stdin else script.name


def _scan_lines(located: Sequence[_Located], script: Script, names: Names) -> tuple[ParsedOption, ...]:
    """Parse the options of directive lines. The UsageError names the line."""
    try:
        found = scan([word.text for _, word in located], names)
    except BadOption as bad:
        line = located[bad.word][0]
        is_own = line.magic == "#SBATCH" and str(bad).partition("--")[2].partition("=")[0].rstrip("'") in OWN_BY_NAME
        hint = "gsub's own options go on a #GSUB line." if is_own else bad.hint
        if line.magic == "#GSUB":
            hint = hint or f"#GSUB lines take {', '.join('--' + name for name in OWN_NAMES.own)}."
        unknown = bad.unknown and line.magic == "#SBATCH"
        raise (UnknownOption if unknown else UsageError)(
            f"{_format_script_name(script)}:{line.line}: {bad}", hint=hint
        ) from None
    if found.rest < len(located):
        line, word = located[found.rest]
        hint = "" if line.magic == "#SBATCH" else "#GSUB lines take options alone."
        raise UsageError(
            f"{_format_script_name(script)}:{line.line}: Invalid directive found in batch script: {word.text}",
            hint=hint,
        )
    return found.given


def _list_script_settings(located: Sequence[_Located], script: Script, names: Names) -> Iterable[SbatchSetting]:
    for one in _scan_lines(located, script, build_directive_names(names)):
        line, word = located[one.value_word]
        if one.option not in COMMAND_LINE_ONLY:
            yield SbatchSetting(
                option=one.option,
                value=one.value,
                origin=Origin.SCRIPT,
                where=f"{_format_script_name(script)}:{line.line}",
                line=line.line,
                span=(word.start, word.stop),
                prefix=word.text[: one.value_at],
            )


def _list_environment_settings(environ: Mapping[str, str]) -> Iterable[tuple[SbatchSetting, bool]]:
    """Yield the settings from variables, in sbatch's order, each with whether it sets (True) or clears its option.

    The variable of a flag sets it when empty, "yes" or a number other than 0, and clears it otherwise.
    """
    for option in (*SBATCH, WAIT4SWITCH):
        for variable in option.variables:
            value = environ.get(variable)
            if value is not None:
                kept = None if option.is_flag or (option.argument is not REQUIRED and not value) else value
                one = SbatchSetting(option=option.name, value=kept, origin=Origin.ENVIRONMENT, where=variable)
                yield one, not option.is_flag or is_flag_variable_set(value)


def _list_hostfile_settings(environ: Mapping[str, str], settings: Sequence[SbatchSetting]) -> Iterable[SbatchSetting]:
    """Yield the node list of SLURM_HOSTFILE. Lowest precedence: it counts only if nothing else names nodes."""
    path = environ.get(HOSTFILE)
    if path is not None and not any(setting.option in ("nodelist", "nodefile") for setting in settings):
        value = path if "/" in path else f"./{path}"
        yield SbatchSetting(option="nodelist", value=value, origin=Origin.ENVIRONMENT, where=HOSTFILE)


def is_flag_variable_set(value: str) -> bool:
    """Return whether the variable of a flag sets it, as sbatch reads it.

    Measured on 22.05.8: SBATCH_WAIT=0 clears, SBATCH_NO_REQUEUE=1 sets.
    """
    text = value.strip()
    digits = text.lstrip("+-")
    return value == "" or value.lower() == "yes" or (digits.isdigit() and int(digits) != 0 and not value[-1:].isspace())


def _list_command_line_settings(command: CommandLine) -> Iterable[SbatchSetting]:
    for one in command.given:
        if not one.own:
            yield SbatchSetting(option=one.option, value=one.value, origin=Origin.COMMAND_LINE, where="command line")


def _merge_settings(
    script: Iterable[SbatchSetting],
    environment: Iterable[tuple[SbatchSetting, bool]],
    command_line: Iterable[SbatchSetting],
) -> tuple[SbatchSetting, ...]:
    # A variable that clears a flag also removes what the script set for the option or its opposite.
    settings = list(script)
    for one, sets in environment:
        if sets:
            settings.append(one)
        else:
            settings = [s for s in settings if s.option not in (one.option, OPPOSITES.get(one.option))]
    return (*settings, *command_line)


# --- gsub's options -----------------------------------------------------------------------------------------------


def _merge_gsub_options(layers: Iterable[Iterable[_OwnValue]]) -> GsubOptions:
    return replace(GsubOptions(), **{field: value for layer in layers for field, value in layer})


def _parse_gsub_options_of_script(located: Sequence[_Located], script: Script) -> Iterable[_OwnValue]:
    for one in _scan_lines(located, script, OWN_NAMES):
        if one.own:
            yield _parse_gsub_value(
                OWN_BY_NAME[one.option], one.value, f"{_format_script_name(script)}:{located[one.word][0].line}: "
            )


def _list_own_partition_settings(located: Sequence[_Located], script: Script) -> Iterable[SbatchSetting]:
    """Yield --partition=auto of a `#GSUB` line, which overrides the `#SBATCH` line that sbatch without gsub reads."""
    for one in _scan_lines(located, script, OWN_NAMES):
        if not one.own:
            place = f"{_format_script_name(script)}:{located[one.word][0].line}"
            if one.value != AUTO_PARTITION:
                hint = "A #GSUB line takes --partition=auto alone; a name goes on an #SBATCH line."
                raise UsageError(f"{place}: Invalid --{one.option} specification: {one.value!r}", hint=hint)
            yield SbatchSetting(option=one.option, value=one.value, origin=Origin.SCRIPT, where=place)


def _parse_gsub_options_of_command(command: CommandLine) -> Iterable[_OwnValue]:
    return [_parse_gsub_value(OWN_BY_NAME[one.option], one.value, "") for one in command.given if one.own]


_VALUE_HINTS = {
    "again": "the number of a job: --again 77",
    "retry-on": "exit codes and signals: --retry-on=93,SIGUSR1",
    "values": "values with commas between them: --values=1e-4,3e-4,1e-3",
    "values-file": "a file with a line for each task: --values-file=params.txt",
    "lease": "a time: --lease=2h",
    "stop-at": "plateau, or its own figures: plateau:0.1%/20% for less than 0.1 % in the last 20 % of the steps",
    "prerun-command": "a command: --prerun-command='python train.py --steps 50'",
}


def _parse_gsub_value(option: GsubOption, value: str | None, place: str) -> _OwnValue:
    if option.name == "pack":
        # Imported here because few calls of gsub need it.
        from slurmwrap.sbatch.pack_option import AUTO, PACK_HINT, parse_pack

        try:
            parse_pack(value or AUTO)
        except ValueError:
            raise UsageError(f"{place}Invalid --pack specification: {value!r}", hint=PACK_HINT) from None
        return option.field, value or AUTO
    if option.name == "preemptible":
        from slurmwrap.sbatch.move_options import ANY_CHECKPOINT, PREEMPTIBLE_HINT, parse_preemptible

        try:
            parse_preemptible(value or ANY_CHECKPOINT)
        except ValueError:
            raise UsageError(
                f"{place}Invalid --preemptible specification: {value!r}", hint=f"It takes {PREEMPTIBLE_HINT}."
            ) from None
        return option.field, value or ANY_CHECKPOINT
    if option.argument is not REQUIRED:
        return option.field, option.flag
    if value and option.choices and value not in option.choices and set("./") & set(value):
        modes = "|".join(option.choices)
        raise UsageError(
            f"{place}--{option.name} needs a mode: --{option.name}={modes}",
            hint=f"{value} was read as the mode. Did you mean: gsub --{option.name}={option.choices[0]} {value}?",
        )
    if not value or (option.choices and value not in option.choices):
        allowed = f"one of {', '.join(option.choices)}" if option.choices else _VALUE_HINTS.get(option.name, "a name")
        raise UsageError(f"{place}Invalid --{option.name} specification: {value!r}", hint=f"It takes {allowed}.")
    if option.name == "retry-on":
        from slurmwrap.sbatch.retry_on import parse_retry_on  # few calls use it

        return option.field, parse_retry_on(value, place)
    if option.name == "lease":
        from slurmwrap.sbatch.move_options import LEASE_HINT, parse_lease

        try:
            return option.field, parse_lease(value)
        except ValueError:
            raise UsageError(
                f"{place}Invalid --lease specification: {value!r}", hint=f"It takes {LEASE_HINT}."
            ) from None
    if option.name == "stop-at":
        # Imported here because few calls of gsub need it.
        from slurmwrap.sbatch.stop_option import parse_plateau

        try:
            parse_plateau(value)
        except ValueError:
            raise UsageError(
                f"{place}Invalid --stop-at specification: {value!r}", hint=f"It takes {_VALUE_HINTS[option.name]}."
            ) from None
    if not option.number:
        return option.field, value
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= option.most):
        until = f" to {option.most}" if option.most < 1 << 30 else ""
        hint = f"It takes a number from 1{until}."
        raise UsageError(f"{place}Invalid --{option.name} specification: {value!r}", hint=hint)
    return option.field, int(value)


def _parse_gsub_variables(environ: Mapping[str, str]) -> Iterable[_OwnValue]:
    """Yield the options in GSUB_* variables. --retry and --no-retry share a variable; an empty variable is ignored."""
    for option in {option.variable: option for option in OWN if option.variable}.values():
        value = environ.get(option.variable, "")
        if value and option.argument is not NONE:
            yield _parse_gsub_value(option, value, f"{option.variable}: ")
        elif value:
            yield option.field, _parse_yes_or_no(option.variable, value)


def _parse_yes_or_no(variable: str, value: str) -> bool:
    if value.lower() not in _YES | _NO:
        raise UsageError(f"{variable}: {value!r} is neither yes nor no", hint="It takes yes or no, 1 or 0.")
    return value.lower() in _YES
