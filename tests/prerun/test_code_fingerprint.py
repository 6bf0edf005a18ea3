"""The fingerprint of a passed pre-run: the code that the script runs, if it is in the job's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.prerun.code_fingerprint import MAX_FILES, list_installation_marks, read_code_files


def write_files(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml").replace("_sh", ".sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def list_code_files(
    root: Path, script: str, *, environ: dict[str, str] | None = None, args: tuple[str, ...] = ()
) -> list[str]:
    found = read_code_files(script, str(root), args, environ or {})
    return [str(Path(path).relative_to(root)) for path in found]


@pytest.mark.parametrize(
    "line",
    [
        "import helper",
        "import os, helper as h",
        "from helper import run",
        "if True:\n    from helper import (\n        run,\n        walk)",
        "try: pass\nfinally: pass\nimport sys; print(1)\nimport helper.part",
    ],
)
def test_local_modules_are_found_for_every_form_of_import(tmp_path: Path, line: str) -> None:
    write_files(tmp_path, train_py=line + "\n", helper_py="x = 1\n", other_py="y = 1\n")
    assert list_code_files(tmp_path, "#!/bin/sh\nsrun python train.py\n") == ["train.py", "helper.py"]


def test_relative_and_circular_imports_of_packages_are_followed(tmp_path: Path) -> None:
    write_files(tmp_path, train_py="from net.model import Model\n")
    package = tmp_path / "net"
    package.mkdir()
    (package / "__init__.py").write_text("from . import loss\n")
    (package / "model.py").write_text("from .loss import l1\nfrom ..net import model\nfrom . import layers\n")
    (package / "loss.py").write_text("import net.model\n")
    (package / "layers.py").write_text("import torch\n")
    (package / "unused.py").write_text("")
    found = list_code_files(tmp_path, "#!/bin/sh\npython train.py\n")
    assert found[0] == "train.py"
    assert sorted(found[1:]) == ["net/__init__.py", "net/layers.py", "net/loss.py", "net/model.py"]


def test_modules_are_searched_in_pythonpath_and_the_directory_of_the_program(tmp_path: Path) -> None:
    write_files(tmp_path, src__train_py="import beside, far\n", src__beside_py="", lib__far_py="")
    script, path = "#!/bin/sh\npython src/train.py\n", {"PYTHONPATH": str(tmp_path / "lib")}
    assert sorted(list_code_files(tmp_path, script, environ=path)) == ["lib/far.py", "src/beside.py", "src/train.py"]


def test_a_shell_script_that_starts_the_program_is_included(tmp_path: Path) -> None:
    write_files(tmp_path, run_sh="#!/bin/bash\npython train.py $1\n", train_py="import helper\n", helper_py="")
    assert list_code_files(tmp_path, "#!/bin/sh\nbash run.sh 3\n") == ["run.sh", "train.py", "helper.py"]


def test_programs_that_an_inline_shell_command_of_srun_starts_are_included(tmp_path: Path) -> None:
    write_files(tmp_path, train_py="import helper\n", helper_py="", run_sh="python other.py\n", other_py="")
    inline = "#!/bin/sh\nsrun bash -c 'RANK=$SLURM_PROCID exec \"$@\"' bash python train.py 3\nsrun sh -c 'sh run.sh'\n"
    assert sorted(list_code_files(tmp_path, inline)) == ["helper.py", "other.py", "run.sh", "train.py"]


def test_named_settings_files_and_hydra_configurations_are_included(tmp_path: Path) -> None:
    write_files(tmp_path, train_py="import hydra\n", conf__model__big_yaml="a: 1\n", given_yaml="lr: 1\n")
    given = str(tmp_path / "given.yaml")
    found = read_code_files("#!/bin/sh\npython train.py\n", str(tmp_path), (), {}, (given, str(tmp_path / "data.bin")))
    assert sorted(Path(path).name for path in found) == ["big.yaml", "given.yaml", "train.py"]


def test_an_installed_module_and_a_missing_program_are_tolerated(tmp_path: Path) -> None:
    assert list_code_files(tmp_path, "#!/bin/sh\npython -m json.tool x\npython nosuch.py\n") == ["nosuch.py"]


def test_at_most_max_files_of_a_large_tree_are_read(tmp_path: Path) -> None:
    count = MAX_FILES + 50
    write_files(
        tmp_path, train_py="\n".join(f"import m{n}" for n in range(count)), **{f"m{n}_py": "" for n in range(count)}
    )
    assert 0 < len(list_code_files(tmp_path, "#!/bin/sh\npython train.py\n")) <= MAX_FILES


def test_installing_a_package_changes_the_installation_marks(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    environ = {"VIRTUAL_ENV": str(tmp_path)}
    (before,) = list_installation_marks(environ)
    (packages / "new").mkdir()
    assert list_installation_marks(environ) != (before,)
    assert list_installation_marks({}) == ()
