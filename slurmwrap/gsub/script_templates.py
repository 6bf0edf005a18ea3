"""Launch templates: where they lie, what each is for, and a batch script made from one. Jinja2 is loaded here alone.

The user's own come first, then the site's, then the shipped ones: the script runs as the user, so his own file can harm
no one but themselves. A file that someone else may write is never read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmwrap.config import Config, find_user_file
from slurmwrap.config.paths import find_other_writers
from slurmwrap.errors import ConfigError, UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.resources import shipped
from slurmwrap.sbatch.launch_templates import TASKS

SUFFIX = ".j2"
_MARK = re.compile(r"\{#-?\s*(about|tasks):\s*(.*?)\s*-?#\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST = 1 << 18  # bytes of a template


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One template as found. `tasks`: one per "node", one per "gpu", or "one" in all."""

    name: str
    path: Path
    origin: str  # "yours" | "the site's" | "shipped"
    about: str
    tasks: str
    text: str


def list_template_folders(config: Config, environ: Mapping[str, str]) -> tuple[tuple[str, Path], ...]:
    """(whose, directory), the strongest first."""
    site = [("the site's", Path(config.submit.templates))] if config.submit.templates.startswith("/") else []
    own = find_user_file(environ).parent / "templates"
    return (("yours", own), *site, ("shipped", shipped("templates") / "launch"))


def find_templates(folders: tuple[tuple[str, Path], ...]) -> dict[str, Template]:
    """Name → template, in the order of names. Files whose names begin with _ are parts of others."""
    found: dict[str, Template] = {}
    for origin, folder in folders:
        for path in _list_template_files(folder):
            if path.stem not in found and _NAME.fullmatch(path.stem):
                found[path.stem] = _read_template_file(path, origin)
    return dict(sorted(found.items()))


def get_template(name: str, folders: tuple[tuple[str, Path], ...]) -> Template:
    """The template of this name. UsageError with the nearest one."""
    for origin, folder in folders:
        path = folder / f"{name}{SUFFIX}"
        if _NAME.fullmatch(name) and path.is_file():
            return _read_template_file(path, origin)
    from difflib import get_close_matches

    known = find_templates(folders)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"there is no template '{name}'", hint=f"{meant}There are: {', '.join(known)}.")


def render_template(found: Template, variables: Mapping[str, object], folders: tuple[tuple[str, Path], ...]) -> bytes:
    """The batch script. ConfigError for a template that does not work, with its line."""
    from jinja2 import FunctionLoader, StrictUndefined, TemplateError
    from jinja2.sandbox import SandboxedEnvironment

    def load(name: str) -> tuple[str, str, None]:
        if name == found.path.name:
            return found.text, str(found.path), None
        for origin, folder in folders:
            if "/" not in name and (folder / name).is_file():
                return _read_template(folder / name, origin), str(folder / name), None
        raise ConfigError(f"{found.path}: there is no '{name}' to include")

    environment = SandboxedEnvironment(  # a script, no page: sbatch/launch_templates.py quotes what is to be quoted
        loader=FunctionLoader(load), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    try:
        made = environment.get_template(found.path.name).render(variables)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(f"{found.path}{f':{line}' if line else ''}: {error}") from error
    return (made.strip("\n") + "\n").encode(errors="surrogateescape")


def _list_template_files(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())
    except OSError:
        return


def _read_template_file(path: Path, origin: str) -> Template:
    text = _read_template(path, origin)
    marks: dict[str, str] = dict(_MARK.findall(text))
    tasks = marks.get("tasks", "")
    if tasks not in TASKS:
        raise ConfigError(
            f"{path}: it does not say how its tasks lie",
            hint=f"One of {{# tasks: {' | '.join(TASKS)} #}} belongs there.",
        )
    return Template(name=path.stem, path=path, origin=origin, about=marks.get("about", ""), tasks=tasks, text=text)


def _read_template(path: Path, origin: str) -> str:
    """The shipped ones are as good as the program itself, anyone who installed it."""
    try:
        with path.open("rb") as file:
            reason = find_other_writers(os.fstat(file.fileno())) or find_other_writers(path.parent.stat())
            if reason and origin != "shipped":
                raise ConfigError(f"{path} is not used: {reason}", hint="Its script would run as you.")
            return file.read(_MOST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
