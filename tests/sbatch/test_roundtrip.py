"""Properties of parse and render together, over generated jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurmwrap.sbatch.explain import explain, make_equivalent_script
from slurmwrap.sbatch.job_request import JobRequest, OptionChange, Origin
from slurmwrap.sbatch.option_table import BY_NAME, COMMAND_LINE_ONLY, NONE
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.rewrite import find_conflict, render, spell
from slurmwrap.sbatch.script_directives import quote_word

# Each example is slow, and more examples found no more faults.
FEWER = settings(max_examples=settings.default.max_examples // 3)

# Values by option: numbers where sbatch reads numbers, any text elsewhere.
_NUMBERS = st.integers(1, 64).map(str)
_MEMORY = st.builds("{}{}".format, st.integers(0, 999), st.sampled_from(["", "K", "M", "G", "T"]))
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1, max_size=12)
_VALUES = {
    "nodes": _NUMBERS,
    "ntasks": _NUMBERS,
    "cpus-per-task": _NUMBERS,
    "cpus-per-gpu": _NUMBERS,
    "mem": _MEMORY,
    "mem-per-gpu": _MEMORY,
    "time": _NUMBERS,
    "gres": st.sampled_from(["gpu:1", "gpu:a100:8", "nic"]),
    "gpus": _NUMBERS,
    "partition": _TEXT,
    "comment": _TEXT,
    "job-name": _TEXT,
    "exclude": _TEXT,
    "switches": _NUMBERS,
    "exclusive": st.sampled_from(["", "user"]),
    "hold": st.just(""),
    "requeue": st.just(""),
    "no-requeue": st.just(""),
}
_PROGRAM = b"\nset -e\nsrun ./a --mem=1G \xff\\\n#SBATCH --mem=7\n\tend"


def _setting() -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(sorted(_VALUES)).flatmap(lambda name: st.tuples(st.just(name), _VALUES[name]))


def _words(option: str, value: str, style: int) -> list[str]:
    """An option with its value in one of the spellings that getopt accepts.

    sbatch reads a separate `:` as a heterogeneous job and not as a value (tests/sbatch/test_command_line.py).
    """
    known = BY_NAME[option]
    if not value:
        return [f"--{option}"]
    if known.argument is not NONE and known.short and style == 0:
        return [f"-{known.short}{value}"]
    if option != "exclusive" and style == 1 and value != ":":
        return [f"--{option}", value]
    return [f"--{option}={value}"]


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[str], dict[str, str], bytes]:
    """(argv, environment, script)"""
    lines = []
    for pairs in draw(st.lists(st.lists(_setting(), max_size=3), max_size=4)):
        words = [quote_word(word) for pair in pairs for word in _words(*pair, draw(st.integers(0, 2)))]
        lines.append(b"#SBATCH " + b"  ".join(words) + draw(st.sampled_from([b"", b" # why", b"\t"])))
    argv = [word for pair in draw(st.lists(_setting(), max_size=4)) for word in _words(*pair, draw(st.integers(0, 2)))]
    environ = {
        BY_NAME[name].variables[-1]: value
        for name, value in draw(st.lists(_setting(), max_size=3))
        if BY_NAME[name].variables
    }
    return [*argv, "a.sh", "--mem=9"], environ, b"\n".join([b"#!/bin/sh", *lines]) + _PROGRAM


def parsed(argv: list[str], environ: Mapping[str, str], script: bytes) -> JobRequest:
    return parse_request(argv, environ=environ, cwd="/", read_script=lambda _: script, read_stdin=lambda: b"")


def in_force(request: JobRequest) -> dict[str, str]:
    """Effective values by option, without those overridden by a later opposite or another memory unit."""
    force = {setting.option: setting.value or "" for setting in request.settings}
    for one, other in (("requeue", "no-requeue"), ("no-requeue", "requeue")):
        order = [s.option for s in request.settings if s.option in (one, other)]
        if order and order[-1] != one:
            force.pop(one, None)
    for name in ("mem", "mem-per-gpu"):
        if request.shape.mem_unit.value != name:
            force.pop(name, None)
    return force


def select_allowed_changes(request: JobRequest, pairs: list[tuple[str, str]]) -> list[OptionChange]:
    """The changes that no rule of sbatch forbids, one per option."""
    wishes: dict[str, str] = {}
    for option, value in pairs:
        rival = {"cpus-per-task": "cpus-per-gpu", "cpus-per-gpu": "cpus-per-task", "mem": "mem-per-gpu"}
        rival |= {"mem-per-gpu": "mem", "requeue": "no-requeue", "no-requeue": "requeue"}
        if find_conflict(request, option) is None and rival.get(option) not in wishes:
            wishes[option] = value
    return [OptionChange(option=option, value=value, reason="Because.") for option, value in wishes.items()]


@FEWER
@given(calls(), st.lists(_setting(), max_size=4))
def test_a_rewritten_job_has_every_change_and_all_other_lines_unchanged(call, pairs) -> None:
    argv, environ, script = call
    request = parsed(argv, environ, script)
    wishes = select_allowed_changes(request, pairs)
    batch = render(request, wishes)
    again = parsed([*batch.options, "a.sh", *batch.args], {**environ, **batch.environ}, batch.content)
    expected = in_force(request) | {wish.option: wish.value for wish in wishes}
    for wish in wishes:
        expected.pop({"requeue": "no-requeue", "no-requeue": "requeue"}.get(wish.option, ""), None)
    assert in_force(again) == expected
    assert again.args == request.args == ("--mem=9",)
    touched = {s.line for s in request.settings if any(c.where == s.where for c in batch.changes)}
    lines = enumerate(zip(script.split(b"\n"), batch.content.split(b"\n"), strict=True), start=1)
    assert {number for number, (before, after) in lines if before != after} <= touched
    assert batch.content.endswith(_PROGRAM)


@FEWER
@given(calls(), st.lists(_setting(), max_size=4))
def test_the_equivalent_script_alone_makes_the_same_request(call, pairs) -> None:
    argv, environ, script = call
    request = parsed(argv, environ, script)
    # sbatch refuses two memory options from one source, so no equivalent script exists
    said = {(s.origin, s.option) for s in request.settings if s.option in ("mem", "mem-per-cpu", "mem-per-gpu")}
    assume(len({origin for origin, _ in said}) == len(said))
    batch = render(request, select_allowed_changes(request, pairs))
    whole = parsed([*batch.options, "a.sh", *batch.args], {**environ, **batch.environ}, batch.content)
    alone = parsed(["a.sh"], {}, make_equivalent_script(request, batch))
    cleared = {o for o in BY_NAME.values() if o.is_flag and any(environ.get(v, "yes") != "yes" for v in o.variables)}
    ignored = COMMAND_LINE_ONLY | {option.name for option in cleared}
    assert _firm(alone, ignored) == _firm(whole, ignored)
    assert make_equivalent_script(request, batch).endswith(_PROGRAM)
    assert all(line.isprintable() or "\t" in line for line in explain(request, batch, colour=False).splitlines())


def _firm(request: JobRequest, ignored: set[str] | frozenset[str]) -> dict[str, str]:
    return {option: value for option, value in in_force(request).items() if option not in ignored}


@FEWER
@given(_TEXT, _TEXT, _TEXT)
def test_the_command_line_overrides_the_environment_overrides_the_script(one: str, two: str, three: str) -> None:
    assume(three != ":")  # sbatch removes a separate colon from the command line (heterogeneous jobs)
    script = b"#!/bin/sh\n#SBATCH " + quote_word(spell("partition", one)) + b"\n"
    sources = [
        (parsed(["a.sh"], {}, script), one, Origin.SCRIPT),
        (parsed(["a.sh"], {"SBATCH_PARTITION": two}, script), two, Origin.ENVIRONMENT),
        (parsed(["-p", three, "a.sh"], {"SBATCH_PARTITION": two}, script), three, Origin.COMMAND_LINE),
    ]
    for request, value, origin in sources:
        setting = request.setting("partition")
        assert setting is not None and (setting.value, setting.origin) == (value, origin)


def test_parsing_loads_no_heavy_module() -> None:
    heavy = ["typer", "jinja2", "sqlite_utils", "psutil", "pynvml", "subprocess", "difflib", "textwrap", "argparse"]
    code = f"import sys, slurmwrap.sbatch.explain as _; print(*[m for m in {heavy!r} if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-S", "-I", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == []
