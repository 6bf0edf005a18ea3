"""Operators that plant one bug in a batch script, a configuration file or a data file. Pure.

Lines of `#SBATCH` are left as they are: a run without Slurm, which is the ground truth, does not read them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from prerun_rounds.edits import Edit, misspell, split_lines
from prerun_rounds.mutators import PATH_LIKE, make_wrong_path

TextOperator = Callable[[str, str, random.Random], Iterator[Edit]]

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w{2,})")
_OPTION = re.compile(r"(?<=\s)--?([A-Za-z][\w.-]*\w)(?:[= ]([^\s\\-][^\s\\]*))?")
_WORD = re.compile(r"(?<=[\s=\"'])[\w./~-]+(?=[\s\"']|$)", re.MULTILINE)
_YAML = re.compile(r"^(\s*(?:- )?\"?)([\w.-]+)(\"?\s*:[ \t]+)([^\s#][^#\n]*?)(,?\s*(?:#.*)?)$")
_WEB_PAGE = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body><h1>Not Found</h1></body></html>\n"
# Directories that a training script writes. A damaged file there would show nothing.
_WRITTEN = re.compile(
    r"(?:out|output|outputs|runs?|logs?|checkpoints?|ckpts?|results?|saved_models|images|wandb|lightning_logs|mlruns"
    r"|out-.*|run_.*|checkpoints_.*|__pycache__)"
)
_NO_DATA = (".py", ".pyc", ".sbatch", ".sh", ".toml", ".md", ".log", ".out", ".err", ".lock", ".yaml", ".yml", ".ckpt")
DAMAGES = ("truncate", "empty", "web_page", "overwrite")


def _command_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(split_lines(text), 1):
        if not line.lstrip().startswith("#"):
            yield number, line


def _edit(file: str, number: int, operator: str, line: str, span: tuple[int, int], new: str) -> Edit:
    return Edit(file=file, line=number, operator=operator, old=line, new=line[: span[0]] + new + line[span[1] :])


def misspell_job_variable(file: str, text: str, rng: random.Random) -> Iterator[Edit]:
    """A misspelt variable of the batch script."""
    for number, line in _command_lines(text):
        for found in _VARIABLE.finditer(line):
            yield _edit(file, number, "job_variable", line, found.span(1), misspell(found[1], rng))


def change_job_option(file: str, text: str, rng: random.Random) -> Iterator[Edit]:
    """A misspelt option of a command, or one that is missing with its value."""
    for number, line in _command_lines(text):
        for found in _OPTION.finditer(line):
            if len(found[1]) > 2:
                yield _edit(file, number, "job_option", line, found.span(1), misspell(found[1], rng))
            yield _edit(file, number, "job_option", line, found.span(), "")


def change_job_value(file: str, text: str, rng: random.Random) -> Iterator[Edit]:
    """A number of a command that is none, or has a decimal comma."""
    for number, line in _command_lines(text):
        for found in _OPTION.finditer(line):
            if found[2] and re.fullmatch(r"\d[\d.e-]*", found[2]):
                wrong = found[2].replace(".", ",") if "." in found[2] else f"{found[2]}{rng.choice(['k', ',0', 'x'])}"
                yield _edit(file, number, "job_value", line, found.span(2), wrong)


def change_job_path(file: str, text: str, rng: random.Random) -> Iterator[Edit]:
    """A misspelt path or file name of the batch script."""
    for number, line in _command_lines(text):
        for found in _WORD.finditer(line):
            if (PATH_LIKE.fullmatch(found[0]) or found[0].endswith(".py")) and not found[0].startswith(("/dev/", "-")):
                yield _edit(file, number, "job_path", line, found.span(), make_wrong_path(found[0], rng))


def change_config_value(file: str, text: str, rng: random.Random) -> Iterator[Edit]:
    """A value of a YAML or JSON file that has another type."""
    for number, line in enumerate(split_lines(text), 1):
        if found := _YAML.match(line.rstrip("\n")):
            value = found[4]
            wrong = f'"{value}"' if re.fullmatch(r"-?[\d.]+(?:e-?\d+)?", value) else f"[{value}]"
            if value[:1] not in "{[":
                yield _edit(file, number, "config_value", line, found.span(4), wrong)


def misspell_config_key(file: str, text: str, rng: random.Random) -> Iterator[Edit]:
    """A misspelt key of a YAML or JSON file."""
    for number, line in enumerate(split_lines(text), 1):
        found = re.match(r"^\s*(?:- )?[\"']?([A-Za-z_][\w.-]{2,})[\"']?\s*:", line)
        if found:
            yield _edit(file, number, "config_key", line, found.span(1), misspell(found[1], rng))


JOB_OPERATORS: dict[str, TextOperator] = {
    "job_variable": misspell_job_variable,
    "job_option": change_job_option,
    "job_value": change_job_value,
    "job_path": change_job_path,
}
CONFIG_OPERATORS: dict[str, TextOperator] = {"config_value": change_config_value, "config_key": misspell_config_key}
DATA_OPERATOR = "data_file"


def is_data_file(path: str, size: int) -> bool:
    """Return whether this may be a file that the training reads. `path` is relative to the case."""
    *folders, name = path.split("/")
    written = any(_WRITTEN.fullmatch(folder) for folder in folders)
    return not (written or name.startswith(".") or name.endswith(_NO_DATA) or size == 0)


def damage_data_file(file: str, size: int, rng: random.Random) -> Iterator[Edit]:
    """A data file that is truncated, empty, a web page, or overwritten in its middle."""
    for damage in rng.sample(DAMAGES, len(DAMAGES)):
        yield Edit(
            file=file, line=0, operator=DATA_OPERATOR, old=f"{size} bytes", new=damage.replace("_", " "), damage=damage
        )


def apply_damage(content: bytes, damage: str) -> bytes:
    """Return the damaged content."""
    half = len(content) // 2
    if damage == "overwrite":
        return content[: half // 2] + b"\0" * (len(content) - half) + content[len(content) - half + half // 2 :]
    return {"truncate": content[:half], "empty": b"", "web_page": _WEB_PAGE}[damage]
