"""Finds templates/, prolog/ and hooks/: next to the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """Directory `folder` ("templates", "prolog" or "hooks"). Raises FileNotFoundError with both places tried."""
    installed, checkout = _PACKAGE / "_shipped" / folder, _PACKAGE.parent / folder
    for candidate in (installed, checkout):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{folder}/ is neither at {installed} nor at {checkout}")
