"""Any script and any program: no check raises, and the static stage ends in its time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.host.run_command import run
from slurmwrap.prerun.static import static_stage
from slurmwrap.prerun.static.argparse_model import read_parser
from slurmwrap.prerun.static.cli_libraries import check_other_libraries
from slurmwrap.prerun.static.code_errors import find_code_errors
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.imported_files import read_program
from slurmwrap.prerun.static.launcher_tasks import check_launcher_options, check_launchers
from slurmwrap.prerun.static.missing_imports import find_local_faults
from slurmwrap.prerun.static.program_options import find_misfitting_options
from slurmwrap.prerun.static.python_source import read_source
from slurmwrap.prerun.static.script_environment import check_script_environment
from slurmwrap.prerun.static.shell_pitfalls import check_script_text
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.sbatch.job_request import JobRequest, ResourceShape, Script

SHELL = st.text(alphabet="abc$(){}[]\"'`\\\n;&|<>#= pythonsrucdifet.-@/*?~:%", max_size=150)
LINES = st.lists(
    st.sampled_from(
        [
            "import os",
            "from a import *",
            "from .b import c",
            "import argparse",
            "p = argparse.ArgumentParser()",
            "p.add_argument('--x', type=int, nargs='?')",
            "p.add_argument(*z, **k)",
            "p.add_argument('--y', choices=[1, 2], required=True)",
            "args = p.parse_args()",
            "def f(a, /, b=1, *c, d, **e): return x",
            "class A(f, metaclass=B): y: int = 1",
            "f(1, 2, d=3, **{})",
            "lambda: [i for i in j if (k := i)]",
            "try:\n  import q\nexcept: pass\nelse: f()\nfinally: g",
            "if __name__ == '__main__':\n  main()",
            "def main():\n  return\n  undefined",
            "match f:\n  case [a, *b]: pass\n  case {'x': c, **d}: pass",
            "with a as b, c as (d, e): f",
            "import click\n@click.command()\n@click.option('--x')\ndef g(): pass",
            "async def h():\n  async for i in j: yield i",
            "global zz; del zz",
            "x = f'{a!r:{b}}'",
        ]
    ),
    max_size=8,
)
WORDS = st.lists(
    st.sampled_from(["--x", "--x=1", "-1", "1", "--", "-", "--y", "3", "\0", "a\0b", "--\0", "", "x y", "--yy=2"])
)


def make_context() -> StaticContext:
    return StaticContext(script="j", run=run, environ={"PATH": "/nowhere"}, node_local=(), deadline=math.inf)


@settings(max_examples=60)
@given(SHELL)
def test_any_shell_text_is_checked_without_an_exception(text: str) -> None:
    commands = list_started_programs(text, "/w", (), {}, lambda path: None)
    request = JobRequest(
        script=Script(path="j", name="j", content=text.encode()), shape=ResourceShape(gpus=2, nodes=1, cpus=2)
    )
    for checked in (
        check_script_text(text, make_context()),
        check_script_environment(commands, text, make_context()),
        check_launcher_options(commands, make_context()),
        check_launchers(request, commands, make_context()),
    ):
        for finding in checked:
            assert finding.line >= 1


@settings(max_examples=60)
@given(LINES, WORDS)
def test_any_program_and_command_line_is_checked_without_an_exception(lines: list[str], words: list[str]) -> None:
    source = read_source("\n".join(lines).encode(), "/nowhere/x.py")
    entry = EntryPoint(kind="python", path="/nowhere/x.py", argv=tuple(words), line=1, cwd="/nowhere")
    if source.tree is None:
        return
    program = read_program(entry, source, make_context())
    found = [*find_local_faults(program), *find_code_errors(program), *check_other_libraries(program, "j")]
    parser = read_parser(program)
    found += find_misfitting_options(entry, parser, "j") if parser else []
    assert all(finding.message and finding.fix for finding in found)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_as_a_program_without_an_exception(content: bytes) -> None:
    assert read_source(content, "x.py").path == "x.py"


@pytest.mark.parametrize(
    "program",
    [
        "x = " + "(" * 90 + ")" * 90,
        "x = " + "-" * 50_000 + "1",
        "x = " + "+".join(["1"] * 20_000),
        "\n".join(f"def f{i}(a): return f{i + 1}(a, b{i})" for i in range(1000)),
        "\n".join(f"import module_{i}" for i in range(300)),
        "if x:\n" * 1,
        "\0",
        "p.add_argument('--x')\n" * 1000,
    ],
    ids=["brackets", "minus", "plus", "functions", "imports", "half", "nul", "options"],
)
def test_an_extreme_program_is_checked_without_an_exception(program: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(program)
    script = Script(path="j", name="j", content=b"#!/bin/bash\npython x.py --a 1\n")
    for finding in static_stage.check(JobRequest(script=script, chdir=str(tmp_path)), run=run, node_local=()):
        assert finding.message and finding.fix
