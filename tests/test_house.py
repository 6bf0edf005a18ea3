"""The house's own rules, as far as a program can hold them."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slurmwrap import errors, shipped

pytestmark = pytest.mark.early

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "slurmwrap"
HEAVY = {"typer", "click", "rich", "jinja2", "sqlite_utils", "psutil", "pynvml", "pyslurm", "torch"}
MAY_START_PROGRAMS = (
    "cli/answered.py",
    "host/child.py",
    "host/lines.py",
    "prerun/supervisor.py",
    "prerun/aside.py",
    "prerun/overlay.py",
    "observe/",
    "lab/",
)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_gsub_without_a_job_loads_nothing_heavy() -> None:
    assert loaded_by("import slurmwrap.cli.gsub") & HEAVY == set()


def test_the_whole_submission_path_loads_nothing_heavy() -> None:
    assert loaded_by("import slurmwrap.cli.gsub, slurmwrap.cli.flow, slurmwrap.cli.follow") & HEAVY == set()


def test_only_the_named_places_start_programs() -> None:
    starts = [p for p in sources() if "subprocess" in imported(p) or "posix_spawn(" in p.read_text(encoding="utf-8")]
    found = [str(p.relative_to(PACKAGE)) for p in starts]
    assert [name for name in found if not name.startswith(MAY_START_PROGRAMS)] == []


def test_no_source_asks_for_a_shell() -> None:
    calls = (
        node for path in sources() for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)
    )
    shells = [
        ast.unparse(call)
        for call in calls
        if any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and not k.value.value) for k in call.keywords
        )
        or ast.unparse(call.func) in {"os.system", "os.popen", "subprocess.getoutput"}
    ]
    assert shells == []


def test_every_module_says_its_place() -> None:
    silent = [str(p.relative_to(PACKAGE)) for p in sources() if not ast.get_docstring(ast.parse(p.read_bytes()))]
    assert silent == []


def error_classes(base: type[errors.SlurmwrapError] = errors.SlurmwrapError) -> list[type[errors.SlurmwrapError]]:
    return [base, *(found for child in base.__subclasses__() for found in error_classes(child))]


def test_the_table_of_exit_codes_names_every_error_with_its_code() -> None:
    table = {}
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("├─", " ").replace("└─", " ").replace("│", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            table[words[0]] = int(words[1])
    assert table == {found.__name__: found.exit_code for found in error_classes()}


@pytest.mark.parametrize("folder", ["templates", "prolog", "hooks"])
def test_a_shipped_folder_is_found_in_a_checkout(folder: str) -> None:
    assert any(shipped.shipped(folder).rglob("*"))


def test_a_missing_shipped_folder_names_both_places_tried() -> None:
    with pytest.raises(FileNotFoundError, match=r"nosuch/ is neither at .*_shipped/nosuch nor at .*nosuch"):
        shipped.shipped("nosuch")


def test_an_installation_has_the_shipped_folders_and_finds_them(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "from slurmwrap.shipped import shipped; print([shipped(f).parent.name for f in ('templates','prolog','hooks')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
    )
    assert done.stdout.strip() == "['_shipped', '_shipped', '_shipped']"
    assert sorted(p.name for p in (site / "slurmwrap" / "_shipped").iterdir()) == ["hooks", "prolog", "templates"]
