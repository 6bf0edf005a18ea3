"""Find the folders templates/, prolog/ and hooks/: next to the package in a checkout, inside it once installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """Return directory `folder` ("templates", "prolog" or "hooks"). FileNotFoundError names both places tried."""
    installed, checkout = _PACKAGE / "_shipped" / folder, _PACKAGE.parent / folder
    for candidate in (installed, checkout):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{folder}/ is neither at {installed} nor at {checkout}")


def make_template_environment(folder: str, *, autoescape: bool = False, **settings: Any) -> Environment:
    """Return a Jinja environment for templates/`folder` in which an undefined name is an error.

    `autoescape`: for HTML, independent of file names. `settings`: of `jinja2.Environment`, override these.
    """
    from jinja2 import Environment, FileSystemLoader

    # HTML pages ask for escaping; the other templates are configuration files, scripts and text.
    return Environment(**_make_settings(FileSystemLoader(shipped("templates") / folder), autoescape) | settings)  # noqa: S701


def make_sandbox_environment(load: Callable[[str], tuple[str, str, None]]) -> Environment:
    """Return a Jinja environment for templates of a site or a user: they cannot reach Python attributes."""
    from jinja2 import FunctionLoader
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(**_make_settings(FunctionLoader(load), autoescape=False))


def _make_settings(loader: object, autoescape: bool) -> dict[str, Any]:
    from jinja2 import StrictUndefined

    return {
        "loader": loader,
        "undefined": StrictUndefined,
        "autoescape": autoescape,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
    }
