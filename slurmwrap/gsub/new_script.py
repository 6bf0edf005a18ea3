"""`gsub --template NAME` and `gsub new`: generate a batch script for a program from a launch template.

The script is submitted (`gsub --template`) or written to a file (`gsub new`). Only these calls import this module.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurmwrap.config import load_config as configuration
from slurmwrap.config.config_paths import find_other_writers
from slurmwrap.config.load_config import Config, find_user_file
from slurmwrap.console import Console
from slurmwrap.errors import ConfigError, ScriptError, SlurmError, SlurmwrapError, UnknownOption, UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.gsub import process_env
from slurmwrap.gsub.prefetch import make_slurm_commands
from slurmwrap.model.cluster import Snapshot
from slurmwrap.nearest_name import find_nearest
from slurmwrap.package_files import make_sandbox_environment, shipped
from slurmwrap.sbatch.command_line import CommandLine, build_names, parse_own_options, split_command_line
from slurmwrap.sbatch.container_launch import LAUNCHED, PYXIS, ContainerLaunch, choose_runtime, make_container_launch
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.launch_templates import (
    TASKS,
    JobLayout,
    NodeKind,
    TaskValues,
    build_template_variables,
    check_options,
    check_partition_capacity,
    compute_job_layout,
    format_layout_summary,
    list_submission_words,
    parse_value_lines,
    quote_for_bash,
    split_limit,
)
from slurmwrap.sbatch.option_table import OWN_BY_NAME, SbatchOption
from slurmwrap.sbatch.parse_request import parse_request

# Search and rendering of launch templates. Jinja2 is imported only here.
#
# The user's own templates take precedence over the site's, and those over the shipped ones. The script runs as the
# user, so their own file can harm only themselves. A template that another user may write to is never used.
SUFFIX = ".j2"
_MARK = re.compile(r"\{#-?\s*(about|tasks):\s*(.*?)\s*-?#\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_TEMPLATE_BYTES = 1 << 18  # maximum bytes that are read of a template
_MAX_VALUES_BYTES = 1 << 22  # Slurm's default limit of a batch script (max_script_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A launch template. `tasks`: it starts one task per "node", one per "gpu", or "one" in all."""

    name: str
    path: Path
    # "yours" | "the site's" | "shipped"
    origin: str
    about: str
    tasks: str
    text: str


def list_template_folders(config: Config, environ: Mapping[str, str]) -> tuple[tuple[str, Path], ...]:
    """Return (origin, directory) of all template directories, in order of precedence."""
    site = [("the site's", Path(config.submit.templates))] if config.submit.templates.startswith("/") else []
    own = find_user_file(environ).parent / "templates"
    return (("yours", own), *site, ("shipped", shipped("templates") / "launch"))


def find_templates(folders: tuple[tuple[str, Path], ...]) -> dict[str, Template]:
    """Return name → template, sorted by name. Files whose names begin with _ are only included by others."""
    found: dict[str, Template] = {}
    for origin, folder in folders:
        for path in _list_template_files(folder):
            if path.stem not in found and _NAME.fullmatch(path.stem):
                found[path.stem] = _read_template_file(path, origin)
    return dict(sorted(found.items()))


def get_template(name: str, folders: tuple[tuple[str, Path], ...]) -> Template:
    """Return the template `name`. Raise UsageError, with the most similar name as a hint, if there is none."""
    for origin, folder in folders:
        path = folder / f"{name}{SUFFIX}"
        if _NAME.fullmatch(name) and path.is_file():
            return _read_template_file(path, origin)
    known = find_templates(folders)
    near = find_nearest(name, known, 0.5)
    meant = f"Did you mean {near}? " if near else ""
    raise UsageError(f"there is no template '{name}'", hint=f"{meant}There are: {', '.join(known)}.")


def render_template(found: Template, variables: Mapping[str, object], folders: tuple[tuple[str, Path], ...]) -> bytes:
    """Render the batch script. Raise ConfigError with the line number if the template is faulty."""
    from jinja2 import TemplateError

    def load(name: str) -> tuple[str, str, None]:
        if name == found.path.name:
            return found.text, str(found.path), None
        for origin, folder in folders:
            if "/" not in name and (folder / name).is_file():
                return _read_template(folder / name, origin), str(folder / name), None
        raise ConfigError(f"{found.path}: there is no '{name}' to include")

    try:
        # No HTML escaping: sbatch/launch_templates.py quotes the variables for the shell.
        made = make_sandbox_environment(load).get_template(found.path.name).render(variables)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(f"{found.path}{f':{line}' if line else ''}: {error}") from error
    return (made.strip("\n") + "\n").encode(errors="surrogateescape")


def _list_template_files(directory: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in directory.iterdir() if path.suffix == SUFFIX and path.is_file())
    except OSError:
        return


def _read_template_file(path: Path, origin: str) -> Template:
    text = _read_template(path, origin)
    marks: dict[str, str] = dict(_MARK.findall(text))
    tasks = marks.get("tasks", "")
    if tasks not in TASKS:
        raise ConfigError(
            f"{path}: it does not declare which tasks it starts",
            hint=f"Add one of {{# tasks: {' | '.join(TASKS)} #}}.",
        )
    return Template(name=path.stem, path=path, origin=origin, about=marks.get("about", ""), tasks=tasks, text=text)


def _read_template(path: Path, origin: str) -> str:
    """Return the text of a template. Raise ConfigError if another user may write to it or its directory.

    Shipped templates are exempt: they are as trustworthy as the installed program itself.
    """
    try:
        with path.open("rb") as file:
            reason = find_other_writers(os.fstat(file.fileno())) or find_other_writers(path.parent.stat())
            if reason and origin != "shipped":
                raise ConfigError(f"{path} is not used: {reason}", hint="Its script would run as you.")
            return file.read(_MAX_TEMPLATE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


HELP = """\
gsub new writes a batch script for a program, from one of the launch templates; gsub --template submits it at once.

  gsub new --template NAME [sbatch's options] [-o FILE] PROGRAM [ARGUMENTS]

  gsub new --template torchrun -G 16 train.py --lr 3e-4     writes train.sbatch
  gsub new --template srun -G 16 -t 8:00:00 -o big.sbatch train.py
  gsub new --template array -G 1 --values 1e-4,3e-4%2 train.py --lr {}
  gsub new --container nvcr.io/nvidia/pytorch:25.01-py3 -G 8 train.py
                                                            in a container, by the runtime that the site has
  gsub new --list                                           the templates, one line each

-o names the file that is written (- for stdout), --output the job's output. A file that is there is never overwritten.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedScript:
    """A generated batch script, the words of the call that submits it, and the messages about it."""

    content: bytes
    words: list[str]
    layout: JobLayout
    summary: str
    notes: tuple[str, ...]
    request: JobRequest


def is_new_command(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether `gsub new …` is this command and not the submission of a script named `new`.

    A file `new` in the working directory is the script, as with sbatch. An executable `new` on PATH is the script too,
    unless the words that follow are options of this command.
    """
    if words[:1] != ["new"] or os.path.exists("new"):  # noqa: PTH110
        return False
    rest = list(words[1:])
    is_own = rest in (["--list"], ["--help"], ["-h"]) or any(o.option == "template" for o in parse_own_options(rest))
    folders = [folder for folder in environ.get("PATH", "").split(":") if folder]
    on_path = any(os.path.isfile(f"{folder}/new") for folder in folders)  # noqa: PTH113 - Path's raises
    # If gsub is installed under the name sbatch, `sbatch new` must behave like Slurm's sbatch.
    as_gsub = Path(sys.argv[0]).name != "sbatch"
    return is_own or (as_gsub and not on_path)


def write_new_script(words: Sequence[str], environ: Mapping[str, str], console: Console) -> int:
    """Run `gsub new`: write the script and return the exit code. `words`: the arguments after `gsub new`."""
    if not words:
        sys.stderr.write(HELP)
        return UsageError.exit_code
    if list(words) in (["--help"], ["-h"]):
        process_env.write_stdout(HELP)
        return 0
    if list(words) == ["--list"] or _has_template_list_option(words):
        return show_list(configuration.load(environ), environ)
    if not any(one.option == "template" for one in parse_own_options(words)) and _has_container_option(words):
        words = ["--template=torchrun", *words]
    if not any(one.option == "template" for one in parse_own_options(words)):
        names = ", ".join(sorted(find_templates(list_template_folders(configuration.load(environ), environ))))
        raise UsageError(
            "gsub new needs a template: gsub new --template NAME PROGRAM",
            hint=f"For instance: gsub new --template {_format_example_call(words)}. "
            f"NAME is one of {names}; gsub new --list explains them.",
        )
    words, file = _split_output_file(words)
    made = make(words, environ, console)
    for note in made.notes:
        console.say(note)
    if file == "-":
        sys.stdout.buffer.write(made.content)
        return 0
    path = Path(file or f"{Path(made.request.script.word or 'job').name.removesuffix('.py')}.sbatch")
    _write(path, made.content)
    process_env.write_stdout(f"Wrote {path}. {made.summary}\nRead it, then: gsub {quote_for_bash(str(path))}\n")
    return 0


def _has_container_option(words: Sequence[str]) -> bool:
    return any(one.option == "container" for one in split_command_line(words).given)


def _format_example_call(words: Sequence[str]) -> str:
    """Return the call that the user probably meant."""
    return " ".join(["torchrun", *(quote_for_bash(word) for word in words)]) if words else "torchrun -G 8 train.py"


def make_from_template(words: Sequence[str], environ: Mapping[str, str], console: Console) -> GeneratedScript | None:
    """Generate the script that `gsub --template NAME …` submits. For `--template list`, print the list; return None."""
    if _has_template_list_option(words):
        show_list(configuration.load(environ), environ)
        return None
    made = make(words, environ, console)
    quiet = any(made.request.setting(option) for option in ("quiet", "parsable")) or process_env.is_one_stream()
    for note in () if quiet else (made.summary, *made.notes):
        console.say(note)
    return made


def make(words: Sequence[str], environ: Mapping[str, str], console: Console) -> GeneratedScript:
    """Parse the call, ask Slurm for its nodes, and render the template.

    Raise UsageError, ScriptError or ConfigError.
    """
    config = configuration.load(environ)
    command, request = _parse_call(words, environ)
    name = request.own.template
    option = "values" if request.own.values is not None else "values-file" if request.own.values_file else ""
    if name is None:
        raise UsageError(f"--{option} is for --template=array")
    folders = list_template_folders(config, environ)
    found = get_template(name, folders)
    check_options(request)
    if command.script is None:
        raise UsageError(
            "there is no program for the template to start", hint=f"gsub --template={name} -G 8 train.py --lr 3e-4"
        )
    if option and found.tasks != "one":
        raise UsageError(f"--{option} is for --template=array, not for {name}")
    lines = _read_value_lines(request)
    _check_program(command.script, request)
    snapshot, unknown = _read_snapshot(config, environ, console)
    kinds = _list_node_kinds(snapshot, request)
    layout = compute_job_layout(request.shape, found.tasks, kinds)
    check_partition_capacity(layout, kinds, request.value("partition") or snapshot.default_partition)
    container = _find_container_launch(request, environ)
    variables = build_template_variables(command, request, layout, name, found.tasks, container, lines)
    content = render_template(found, variables, folders)
    if container is not None and container.prefix + container.options not in content.decode(errors="surrogateescape"):
        raise UsageError(f"template {name} starts no container", hint=f"Add {{{{ contain }}}} to {found.path}.")
    return GeneratedScript(
        content=content,
        words=list_submission_words(command, environ),
        layout=layout,
        summary=format_layout_summary(name, layout),
        notes=(*unknown, *_describe_lines(lines), *_list_script_notes(command, found.origin, str(found.path))),
        request=request,
    )


def _read_value_lines(request: JobRequest) -> TaskValues | None:
    """Return the lines of the file of --values-file; None without it. Raise UsageError if it cannot be used."""
    if request.own.values_file is None:
        return None
    file, most = split_limit(request.own.values_file)
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_MAX_VALUES_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--values-file={file}: {error.strerror}", hint=_suggest_path(Path(file))) from None
    if len(content) > _MAX_VALUES_BYTES or b"\0" in content:
        why = "it is no text" if b"\0" in content else "it is larger than a batch script may be"
        raise UsageError(f"--values-file={file}: {why}", hint="It has a short line for each task.")
    return parse_value_lines(content.decode("utf-8-sig", "surrogateescape"), file, most, request)


def _describe_lines(lines: TaskValues | None) -> list[str]:
    if lines is None:
        return []
    first, last = lines.numbers[0], lines.numbers[-1]
    return [
        f"{lines.file}: task 0 has line {first}, task {len(lines.numbers) - 1} has line {last} "
        "(empty lines and those that begin with # are left out)"
    ]


def _find_container_launch(request: JobRequest, environ: Mapping[str, str]) -> ContainerLaunch | None:
    """Return how to start the program in the image of --container by a runtime of the site; None without an image.

    An OCI bundle, a directory with a config.json, is left to Slurm, whose own option --container is.
    """
    image = request.value("container")
    if not image:
        return None
    folder = Path(request.chdir) / image
    if (folder / "config.json").is_file():
        return None
    if image.startswith(("/", ".")) and not folder.exists():
        raise ScriptError(f"{image}: no such image", hint=_suggest_path(folder))
    path = environ.get("PATH", os.defpath)
    available = [name for name in LAUNCHED if name != PYXIS and shutil.which(name, path=path)]
    from slurmwrap.slurm.plugin_options import PluginOptions

    if "container-image" in PluginOptions(environ).names:
        available.append(PYXIS)
    runtime = choose_runtime(image, available, is_directory=folder.is_dir())
    return make_container_launch(runtime, image, request.shape.gpu_type or "")


def show_list(config: Config, environ: Mapping[str, str]) -> int:
    """Print the templates, one line each."""
    found = find_templates(list_template_folders(config, environ)).values()
    width = max(len(one.name) for one in found)
    for one in found:
        origin = "" if one.origin == "shipped" else f" ({one.origin}: {one.path})"
        process_env.write_stdout(f"{one.name:{width}}  {one.about}{origin}\n")
    return 0


def _has_template_list_option(words: Sequence[str]) -> bool:
    return any(one.option == "template" and one.value == "list" for one in parse_own_options(words))


def _parse_call(words: Sequence[str], environ: Mapping[str, str]) -> tuple[CommandLine, JobRequest]:
    """Parse the call as if its program were an empty batch script."""

    def read(extra: Sequence[SbatchOption] = ()) -> tuple[CommandLine, JobRequest]:
        request = parse_request(
            words, environ=environ, cwd=str(Path.cwd()), read_script=lambda _: b"#!/bin/sh\n",
            read_stdin=lambda: b"#!/bin/sh\n", extra=extra,
        )  # fmt: skip
        return split_command_line(words, build_names(extra=extra)), request

    try:
        return read()
    except UnknownOption:
        from slurmwrap.slurm.plugin_options import PluginOptions

        plugins = PluginOptions(environ)
        if not plugins.names:
            raise
        return read(plugins.used_in(words))


def _split_output_file(words: Sequence[str]) -> tuple[list[str], str]:
    """Return (words without -o FILE, FILE)."""
    files = [one for one in split_command_line(words).given if one.option == "output" and words[one.word][:2] != "--"]
    if not files:
        return list(words), ""
    last = files[-1].value or ""
    if "%" in last or not last:
        raise UsageError(
            f"-o {last}: gsub new -o names the script that is written", hint=f"The job's output is --output={last}"
        )
    gone = {at for one in files for at in (one.word, one.value_word)}
    return [word for at, word in enumerate(words) if at not in gone], last


def _check_program(program: str, request: JobRequest) -> None:
    """Raise ScriptError if the program does not exist, is a batch script, or cannot be executed.

    Nothing is checked if this host does not have the job's working directory.
    """
    folder = Path(request.chdir)
    path = folder / program
    if not folder.is_dir():
        return
    if path.is_dir():
        raise ScriptError(f"{program} is a directory", hint="Name the program in it.")
    if not path.exists():
        raise ScriptError(f"{program}: no such file in {folder}", hint=_suggest_path(path))
    if b"\n#SBATCH" in _read_head(path):
        raise ScriptError(
            f"{program} is a batch script already", hint=f"Submit it as it is: gsub {quote_for_bash(program)}"
        )
    if not program.endswith(".py") and not os.access(path, os.X_OK):
        raise ScriptError(
            f"{program} is no Python program (.py) and may not be executed", hint=f"chmod +x {quote_for_bash(program)}"
        )


def _suggest_path(path: Path) -> str:
    try:
        names = [one.name for one in path.parent.iterdir() if one.suffix == path.suffix]
    except OSError:
        return ""
    near = find_nearest(path.name, names)
    return f"Did you mean {near}?" if near else ""


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1 << 14)
    except OSError:
        return b""


def _read_snapshot(config: Config, environ: Mapping[str, str], console: Console) -> tuple[Snapshot, tuple[str, ...]]:
    """Return (snapshot, ()), or (a snapshot without nodes, a note) if Slurm does not answer."""
    try:
        return make_slurm_commands(config, environ, console).snapshot(), ()
    except SlurmError as error:
        note = f"Slurm could not be asked what its nodes are like: {error}"
        return Snapshot(taken_at=0.0, nodes=()), (note,)


def _list_node_kinds(snapshot: Snapshot, request: JobRequest) -> tuple[NodeKind, ...]:
    """Return the GPU nodes of the job's partitions, counted by GPUs and CPUs per node.

    Only nodes with the requested GPU type count, unless no node has it.
    """
    named = (request.value("partition") or snapshot.default_partition).split(",")
    most = min((p.max_cpus_per_node for p in snapshot.partitions if p.name in named and p.max_cpus_per_node), default=0)
    nodes = [n for n in snapshot.nodes if n.gpus and set(n.partitions) & set(named)]
    kind = request.shape.gpu_type
    nodes = [n for n in nodes if kind in (None, n.gpu_type)] or nodes
    counts: dict[tuple[int, int], int] = {}
    for node in nodes:
        key = node.gpus, min(node.cpus, most or node.cpus)
        counts[key] = counts.get(key, 0) + 1
    return tuple(NodeKind(count=count, gpus=gpus, cpus=cpus) for (gpus, cpus), count in sorted(counts.items()))


def _list_script_notes(command: CommandLine, origin: str, path: str) -> list[str]:
    """Return notes about misplaced options and about a template that is not a shipped one."""
    misplaced = [word for word in command.args if word.partition("=")[0].removeprefix("--") in OWN_BY_NAME]
    misplaced = [word for word in misplaced if word.startswith("--")]
    notes = [f"{word} goes to {command.script}: gsub's own options stand before the program" for word in misplaced[:1]]
    return notes if origin == "shipped" else [f"the template is {origin}: {path}", *notes]


def _write(path: Path, content: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise SlurmwrapError(
            f"{path} is there already", hint="It stays as it is. Name another file with -o, or remove it."
        ) from None
    except OSError as error:
        raise SlurmwrapError(f"{path}: {error.strerror}") from error
