"""Lines that raise when they run: an ERROR if that is certain, and no finding for a sound program.

Each program is also run: one with an ERROR must end with that exception, and a sound one must end normally.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.run_command import run
from slurmwrap.prerun.static.code_errors import find_code_errors
from slurmwrap.prerun.static.imported_files import read_program
from slurmwrap.prerun.static.python_interpreter import Python
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext

MAIN = 'if __name__ == "__main__":\n    '

# Program text, and the line and exception of the finding: each of these exceptions is certain.
ERRORS = {
    "name": ("x = 1\nprint(y)", "2 NameError"),
    "name in main()": (f"def main():\n    print(y)\n{MAIN}main()", "2 NameError"),
    "name used before it is bound": ("print(y)\ny = 1", "1 NameError"),
    "name of an exception behind its handler": (
        "try:\n    pass\nexcept OSError as e:\n    pass\nprint(e)",
        "5 NameError",
    ),
    "name in a with that lets errors pass": ("with open(__file__) as f:\n    print(y)", "2 NameError"),
    "name in finally": ("try:\n    x = 1\nfinally:\n    print(y)", "4 NameError"),
    "name in a class": ("class A:\n    x = y", "2 NameError"),
    "default of an argument": ("def f(x=y): pass", "1 NameError"),
    "builtin of Python 2": ("print(unicode('x'))", "1 NameError"),
    "counter without global": ("n = 0\ndef main():\n    n += 1\nmain()", "3 UnboundLocalError"),
    "local used before it is bound": ("def main():\n    print(y)\n    y = 1\nmain()", "2 UnboundLocalError"),
    "local that hides a builtin": ("def main():\n    x = max(1, 2)\n    max = x\nmain()", "2 UnboundLocalError"),
    "print >>": ("import sys\nprint >> sys.stderr, 'x'", "2 TypeError"),
    "raise NotImplemented": ("raise NotImplemented", "1 TypeError"),
    "raise NotImplemented()": ("raise NotImplemented('x')", "1 TypeError"),
    "% with too few values": ("print('%d of %d' % (1,))", "1 TypeError"),
    "% with too many values": ("print('%d' % (1, 2))", "1 TypeError"),
    "% with a sign left over": ("x = 3\nprint('%d%' % x)", "2 ValueError"),
    "% with an unknown letter": ("x = 3\nprint('%y' % x)", "2 ValueError"),
    "% without the key": ("print('%(a)s' % {'b': 1})", "1 KeyError"),
    "% with a tuple for names": ("print('%(a)s' % (1,))", "1 TypeError"),
    "% with a dictionary for two values": ("print('%s %s' % {'a': 1})", "1 TypeError"),
    "format with too few values": ("print('{} {}'.format(1))", "1 IndexError"),
    "format without the name": ("print('{loss}'.format(los=1))", "1 KeyError"),
    "format with a brace left over": ("print('{'.format(1))", "1 ValueError"),
    "format that numbers in two ways": ("print('{} {0}'.format(1))", "1 ValueError"),
}

# Likely errors: the line may not run, or may not be wrong.
WARNINGS = {
    "name in a function": ("def f():\n    print(y)", "2 NameError"),
    "name behind if": ("import sys\nif len(sys.argv) > 5:\n    print(y)", "3 NameError"),
    "name in a loop": ("for i in range(0):\n    print(y)", "2 NameError"),
    "name in assert's message": ("assert True, y", "1 NameError"),
    "name behind the first comparison": ("1 > 2 > y", "1 NameError"),
    "name behind what may end the program": (
        "import unittest\nif 0 < 1:\n    raise SystemExit\nprint(y)",
        "4 NameError",
    ),
    "name behind a function that ends the program": (
        "import sys\ndef stop():\n    sys.exit()\ndef main():\n    stop()\nmain()\nprint(y)",
        "7 NameError",
    ),
    "name behind main() of a library": ("import unittest\nunittest.main(argv=['x'])\nprint(y)", "3 NameError"),
    "name in main() of a module": ("import helper", "2 NameError"),
    "name in a module of another program": ("import helper5", "1 NameError"),
    "name in a generator that is called": ("def f():\n    print(y)\n    yield\nf()", "2 NameError"),
    "name behind the first line of try": (
        "try:\n    import nowhere\n    print(y)\nexcept ImportError:\n    pass",
        "3 NameError",
    ),
    "name in a with of an unknown kind": (
        "class A:\n    def __enter__(self): pass\n    def __exit__(self, *e): return True\nwith A():\n    print(y)",
        "5 NameError",
    ),
    "name where any error is caught": ("try:\n    print(y)\nexcept Exception:\n    pass", "2 NameError"),
    "name where a module may add builtins": ("import helper2\nhelper2.install()\nprint(ic)", "3 NameError"),
    "main() that is bound twice": ("def main():\n    print(y)\nmain = print\nmain()", "2 NameError"),
    "counter without global in a function": ("n = 0\ndef f():\n    n += 1", "3 UnboundLocalError"),
    "print >> an operand of its own": (
        "class A:\n    def __rrshift__(self, other): pass\nprint >> A()",
        "3 TypeError",
    ),
    "raise NotImplemented in a method": ("class A:\n    def f(self):\n        raise NotImplemented", "3 TypeError"),
    "% in a function": ("def f():\n    return '%d of %d' % (1,)", "2 TypeError"),
    "format in a function": ("def f():\n    return '{} {}'.format(1)", "2 IndexError"),
    "call": ("def f(a): pass\ntry:\n    f()\nexcept Exception:\n    pass", "3 TypeError"),
}

SOUND = {
    "name looked for": "try:\n    y\nexcept NameError:\n    y = 1",
    "name looked for from outside": (
        "try:\n    try:\n        y\n    except OSError:\n        pass\nexcept NameError:\n    y = 1"
    ),
    "name looked for with any error": "try:\n    y\nexcept Exception:\n    y = 1",
    "name looked for by suppress": "import contextlib\nwith contextlib.suppress(NameError):\n    y",
    "name for type checkers": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    print(y)",
    "name that never runs": "if False:\n    print(y)\nwhile 0:\n    print(y)",
    "name behind return": "def f():\n    return 1\n    print(y)\nf()",
    "name behind the end": "raise SystemExit\nprint(y)",
    "name of an older Python": "import sys\nif sys.version_info[0] == 2:\n    print(unicode('x'))",
    "name by star import": "from helper3 import *\nprint(y)",
    "name by a package's star import": "from os.path import *\nprint(join('a'))",
    "name by exec": "exec('y = 1')\nprint(y)",
    "name by globals": "globals()['y'] = 1\nprint(y)",
    "name by locals": "locals().update(y=1)\nprint(y)",
    "name by the item of locals": "locals()['y'] = 1\nprint(y)",
    "name by the frame": "import sys\nsys._getframe().f_globals['y'] = 1\nprint(y)",
    "name by the own module": "import __main__\n__main__.y = 1\nprint(y)",
    "name by an enumeration": (
        "import enum\ny_1 = 1\nenum.IntEnum._convert_('Y', __name__, lambda name: name == 'y_1')\nprint(Y)"
    ),
    "name by __getattr__": "def __getattr__(name):\n    return 1\ndef f():\n    return y",
    "name by builtins": "import builtins\nbuiltins.y = 1\nprint(y)",
    "name by builtins of another file": "import helper4\nprint(y)",
    "name by global": "def f():\n    global y\n    y = 1\nf()\nprint(y)",
    "name of an earlier round": "for i in range(2):\n    if i:\n        print(y)\n    y = 1",
    "local of an earlier round": (
        "y = 1\ndef main():\n    for i in range(2):\n        if i:\n            print(y)\n        y = 1\nmain()"
    ),
    "name deleted in a loop": "y = 1\nfor i in []:\n    del y\nprint(y)",
    "name deleted behind its use": "y = 1\ndef f():\n    print(y)\nf()\ndel y",
    "exception in a closure": (
        "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n        return (lambda: e)()\nf()"
    ),
    "exception used by a function": "def f():\n    print(e)\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    f()",
    "annotation of a variable": "def f():\n    x: y = 1\nf()",
    "annotation as text": "def f(x: 'y') -> 'y': pass",
    "annotations that wait": "from __future__ import annotations\nx: y = 1\ndef f(x: y): pass",
    "class and function name themselves": (
        "class A:\n    def f(self):\n        return __class__, A\n    g = __qualname__, __module__\nA().f()"
    ),
    "closure bound later": "def f():\n    def g():\n        return y\n    y = 1\n    return g()\nf()",
    "__all__ of another module": "from os import __all__\n__all__ += ['x']",
    "an expression that is too deep": "x = " + "+".join(["1"] * 450),
    "own >>": "class A:\n    def __rshift__(self, other): pass\nA() >> print",
    "print >> for Python 2": "import sys\nif sys.version_info[0] == 2:\n    print >> sys.stderr, 'x'",
    "print of one's own": "class A:\n    def __rshift__(self, other): pass\nprint = A()\nprint >> 1",
    "own NotImplemented": (
        "class NotImplemented(Exception): pass\ntry:\n    raise NotImplemented('x')\nexcept NotImplemented:\n    pass"
    ),
    "return NotImplemented": "class A:\n    def __eq__(self, other):\n        return NotImplemented",
    "raise NotImplemented that is expected": "try:\n    raise NotImplemented\nexcept TypeError:\n    pass",
    "% with a list": "print('%s' % [1, 2])",
    "% without values": "print('100%%' % ())",
    "% with a key that is left over": "print('%(a)s' % {'a': 1, 'b': 2})",
    "% with a key in parentheses": "print('%(a(b))s' % {'a(b)': 1})",
    "% with a name and the whole": "print('%s %(a)s' % {'a': 1})",
    "% with a width": "print('%*d' % (3, 4))",
    "% that is expected to raise": "try:\n    '%d' % (1, 2)\nexcept TypeError:\n    pass",
    "format with values that are left over": "print('{}'.format(1, 2, a=3))",
    "format with a format that is given": "print('{!r:{w}.{p}}'.format('x', 5, w=4, p=1))",
    "format with attributes and items": "print('{0.real} {a[0]}'.format(1, a=[1]))",
    "format with lists of arguments": "print('{} {a}'.format(*[1], **{'a': 1}))",
    "format that is expected to raise": "try:\n    '{}'.format()\nexcept LookupError:\n    pass",
    "call that is expected to raise": "def f(a): pass\ntry:\n    f()\nexcept TypeError:\n    pass",
    "call of a local function": "def f(a): pass\ndef g():\n    f = print\n    f()\ng()",
    "call of an argument": "def f(a): pass\ndef g(f):\n    f()\ng(print)",
}

HELPERS = {
    "helper.py": 'if __name__ == "__main__":\n    print(y)\n',
    "helper2.py": "def install(): __import__('built' + 'ins').ic = print\n",
    "helper3.py": "y = 1\n",
    "helper5.py": 'if __name__ == "__main__":\n    import helper6\n',
    "helper6.py": "print(y)\n",
    "helper4.py": "import builtins\nbuiltins.y = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in HELPERS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def find_errors(directory: Path, text: str, interpreter: str = "python3", python: Python | None = None) -> list[str]:
    """`severity line exception` of each finding."""
    path = directory / "program.py"
    path.write_text(text + "\n")
    context = StaticContext(script="j", run=run, environ={}, node_local=(), deadline=math.inf)
    entry = EntryPoint(
        kind="python", path=str(path), argv=(), line=1, cwd=str(directory), interpreter=interpreter, modules=""
    )
    program = read_program(entry, context.source(str(path)), context)
    found = list(find_code_errors(program, python))
    assert all(finding.fix and finding.category == "semantic_error" for finding in found)
    return [f"{finding.severity.value} {finding.line} {finding.message.partition(':')[0]}" for finding in found]


# Runs each program of a JSON list in its own process, and prints the list of the exceptions that ended them.
RUN_ALL = """
import json, multiprocessing, os, runpy, sys
def run(text):
    with open("program.py", "w") as stream:
        stream.write(text)
    sys.argv[:], sys.path[0] = ["program.py"], os.getcwd()
    sys.stdout = sys.stderr = open(os.devnull, "w")
    try:
        runpy.run_path("program.py", run_name="__main__")
    except SystemExit:
        pass
    except Exception as error:
        return type(error).__name__
    return ""
with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    json.dump(pool.map(run, json.load(sys.stdin), chunksize=1), sys.stdout)
"""


def run_all(directory: Path, programs: Iterable[str]) -> list[str]:
    """The exception that ends each program, "" for a program that ends normally."""
    given = json.dumps(list(programs))
    argv = [sys.executable, "-c", RUN_ALL]
    done = subprocess.run(argv, cwd=directory, input=given, capture_output=True, text=True, check=True)
    ended: list[str] = json.loads(done.stdout)
    return ended


def test_a_line_that_certainly_raises_is_an_error(folder: Path) -> None:
    found = {name: find_errors(folder, text) for name, (text, _) in ERRORS.items()}
    assert found == {name: [f"error {expected}"] for name, (_, expected) in ERRORS.items()}
    ended = run_all(folder, (text for text, _ in ERRORS.values()))
    assert ended == [expected.split()[1] for _, expected in ERRORS.values()]


def test_a_line_that_may_not_raise_is_a_warning(folder: Path) -> None:
    found = {name: find_errors(folder, text) for name, (text, _) in WARNINGS.items()}
    assert found == {name: [f"warning {expected}"] for name, (_, expected) in WARNINGS.items()}
    assert set(run_all(folder, (text for text, _ in WARNINGS.values()))) == {""}


def test_a_sound_program_that_resembles_an_error_has_no_finding(folder: Path) -> None:
    found = {name: find_errors(folder, text) for name, text in SOUND.items()}
    assert {name: said for name, said in found.items() if said} == {}
    ended = run_all(folder, SOUND.values())
    assert {name: said for name, said in zip(SOUND, ended, strict=True) if said} == {}


@pytest.mark.parametrize(
    ("interpreter", "target", "expected"),
    [
        ("python3", "", "error"),
        ("python", "python3.11", "error"),
        ("python", "python2.7", "warning"),
        ("python", "", "warning"),
        ("python2", "", ""),
    ],
)
def test_a_python_2_builtin_is_an_error_only_if_the_interpreter_is_python_3(
    folder: Path, interpreter: str, target: str, expected: str
) -> None:
    (folder / "python").symlink_to(folder / target)
    python = Python(path=str(folder / "python"), certain=True) if target else None
    found = find_errors(folder, "import sys\nprint >> sys.stderr, unicode('x')", interpreter, python)
    assert sorted({line.split()[0] for line in found}) == ([expected] if expected else [])


def test_each_finding_has_a_fix(folder: Path) -> None:
    text = "n = 0\ndef f(model):\n    n += 1\n    modle(1)\n    print('%d' % (1, 2))"
    context = StaticContext(script="j", run=run, environ={}, node_local=(), deadline=math.inf)
    path = folder / "program.py"
    path.write_text(text)
    entry = EntryPoint(kind="python", path=str(path), argv=(), line=1, cwd=str(folder), interpreter="python3")
    found = {
        finding.line: finding.fix
        for finding in find_code_errors(read_program(entry, context.source(str(path)), context))
    }
    assert found == {
        3: "assign n before this line, or declare it `global n`",
        4: "did you mean model?",
        5: "give one value for each placeholder, and write a percent sign as %% and a brace as {{ or }}",
    }


def test_an_expired_time_budget_ends_the_check(folder: Path) -> None:
    context = StaticContext(script="j", run=run, environ={}, node_local=(), deadline=math.inf)
    (folder / "program.py").write_text("print(y)")
    entry = EntryPoint(kind="python", path=str(folder / "program.py"), argv=(), line=1, cwd=str(folder))
    program = read_program(entry, context.source(entry.path), context)
    sizes: list[int] = []
    assert list(find_code_errors(program, None, lambda size: sizes.append(size) is not None)) == []
    assert sizes == [8]


def test_a_file_that_pyflakes_cannot_check_does_not_end_the_check(folder: Path) -> None:
    (folder / "helper5.py").write_text("print(y)\n")
    assert find_errors(folder, "import helper5\nfrom os import __all__\n__all__ += ['x']") == ["error 1 NameError"]


@pytest.mark.parametrize(
    "text",
    [
        "import itertools\nfor i in itertools.count():\n    print(i)\nprint(y)",
        "while True:\n    print(1)\nprint(y)",
        "import sys\nsys.path.append('x')\nprint(y)",
    ],
    ids=["endless for", "endless while", "a changed search path"],
)
def test_an_undefined_name_that_may_not_be_reached_or_may_exist_is_a_warning(folder: Path, text: str) -> None:
    line = text.count("\n") + 1
    assert find_errors(folder, text) == [f"warning {line} NameError"]


def test_a_program_with_unread_files_has_warnings_instead_of_errors(folder: Path) -> None:
    (folder / "program.py").write_text("print(y)")
    context = StaticContext(script="j", run=run, environ={}, node_local=(), deadline=math.inf)
    path = str(folder / "program.py")
    entry = EntryPoint(kind="python", path=path, argv=(), line=1, cwd=str(folder), interpreter="python3")
    program = read_program(entry, context.source(path), context)
    found = [next(find_code_errors(replace(program, whole=whole))).severity.value for whole in (True, False)]
    assert found == ["error", "warning"]


def test_a_format_that_would_produce_a_huge_text_is_not_evaluated(folder: Path) -> None:
    assert find_errors(folder, "print('%1000d' % (1, 2))") == ["error 1 TypeError"]
    assert find_errors(folder, "print('%10000d' % (1, 2))") == []
