"""Rules for the code of the package that a program can check."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from slurmwrap import errors, package_files

pytestmark = pytest.mark.early

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "slurmwrap"
HEAVY = {"typer", "click", "rich", "jinja2", "pyflakes", "sqlite_utils", "psutil", "pynvml", "pyslurm", "torch"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
MAY_START_PROGRAMS = (
    "api.py",
    "cli/terminal.py",
    "gsub/help_output.py",
    "inject/slurmwrap_members.py",
    "inject/slurmwrap_share.py",
    "host/run_command.py",
    "slurm/pyslurm/worker_client.py",
    "prerun/inputs/library_readers.py",
    "prerun/trial/container_shim.py",
    "prerun/trial/pack_measurement.py",
    "prerun/trial/supervisor.py",
    "prerun/trial/trial_containers.py",
    "prerun/trial/helper_process.py",
    "prerun/isolation/overlay.py",
    "node_hooks/",
    "lab/",
)


@dataclass
class Source:
    """Docstring, imports and calls of a module of the package."""

    name: str
    text: str
    document: str | None
    imports: set[str] = field(default_factory=set)
    calls: list[ast.Call] = field(default_factory=list)


@cache
def sources() -> list[Source]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        source = Source(str(path.relative_to(PACKAGE)), text, ast.get_docstring(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                source.imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                source.imports.add(node.module)
            elif isinstance(node, ast.Call):
                source.calls.append(node)
        found.append(source)
    return found


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_submission_path_loads_no_heavy_module() -> None:
    assert (
        loaded_by("import slurmwrap.gsub.gsub_main, slurmwrap.gsub.submit, slurmwrap.gsub.follow_prerun") & HEAVY
        == set()
    )


def test_sqlite_utils_is_imported_only_by_table_readers_and_at_no_commands_start() -> None:
    importers = {one.name for one in sources() if any(name.startswith("sqlite_utils") for name in one.imports)}
    assert importers == {"store/db_maintenance.py", "store/table_reader.py"}
    code = "import slurmwrap.cli.slurmwrap as root\n"
    code += "import slurmwrap.reconcile.reconcile_pass, slurmwrap.reconcile.wire_adapters\n"
    code += "for name in ('why', 'history', 'report', 'reconcile', 'db'): root.load_command(name)"
    assert "sqlite_utils" not in loaded_by(code)


def test_only_the_listed_modules_start_programs() -> None:
    found = [one.name for one in sources() if "subprocess" in one.imports or "posix_spawn(" in one.text]
    assert [name for name in found if not name.startswith(MAY_START_PROGRAMS)] == []


def test_no_module_uses_a_shell() -> None:
    def asks(call: ast.Call) -> bool:
        asked = [k.value for k in call.keywords if k.arg == "shell"]
        if any(not (isinstance(value, ast.Constant) and not value.value) for value in asked):
            return True
        return isinstance(call.func, ast.Attribute) and ast.unparse(call.func) in SHELLS

    assert [ast.unparse(call) for source in sources() for call in source.calls if asks(call)] == []


def test_every_module_has_a_docstring() -> None:
    assert [source.name for source in sources() if not source.document] == []


def error_classes(base: type[errors.SlurmwrapError] = errors.SlurmwrapError) -> list[type[errors.SlurmwrapError]]:
    return [base, *(found for child in base.__subclasses__() for found in error_classes(child))]


def test_the_table_of_exit_codes_has_every_error_with_its_code() -> None:
    table = {}
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("├─", " ").replace("└─", " ").replace("│", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            table[words[0]] = int(words[1])
    assert table == {found.__name__: found.exit_code for found in error_classes()}


def test_shipped_folders_are_found_in_a_checkout() -> None:
    assert all(any(package_files.shipped(folder).rglob("*")) for folder in ("templates", "prolog", "hooks"))


def test_the_error_for_a_missing_shipped_folder_names_both_places() -> None:
    with pytest.raises(FileNotFoundError, match=r"nosuch/ is neither at .*_shipped/nosuch nor at .*nosuch"):
        package_files.shipped("nosuch")


@pytest.mark.slow
def test_an_installation_has_and_finds_the_shipped_folders(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = "from slurmwrap.package_files import shipped; "
    code += "print([shipped(f).parent.name for f in ('templates','prolog','hooks')])"
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
