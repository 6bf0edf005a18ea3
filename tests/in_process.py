"""Runs commands of slurmwrap in this process: one that starts a Python costs half a second."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest import mock

import typer
from typer.testing import CliRunner, Result

_built = cache(typer.main.get_command)


class Runner(CliRunner):
    """Typer's, except that the commands are built once and not anew for each call, which takes 40 ms."""

    def invoke(self, app: typer.Typer, *args: Any, **named: Any) -> Result:
        with mock.patch("typer.testing._get_command", _built):
            return super().invoke(app, *args, **named)
