"""Runs commands of slurmwrap in this process, because starting a Python takes half a second per command."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest import mock

import typer
from typer.testing import CliRunner, Result

_built = cache(typer.main.get_command)


class Runner(CliRunner):
    """Typer's CliRunner, except that the commands are built only once; building them takes 40 ms."""

    def invoke(self, app: typer.Typer, *args: Any, **named: Any) -> Result:
        with mock.patch("typer.testing._get_command", _built):
            return super().invoke(app, *args, **named)
