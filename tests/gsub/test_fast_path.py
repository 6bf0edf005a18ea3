"""Modules that one gsub call loads. Each module costs time in every submission. Compares sets, measures no time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap import timing
from slurmwrap.gsub import gsub_script

# Standard library modules beyond those that Python loads at startup. A package name includes its submodules.
STANDARD_MODULES = {
    *("__future__", "_collections", "_functools", "_json", "_operator", "_sha2", "_sha256", "_sre", "collections"),
    *("contextlib", "copyreg", "enum", "errno", "functools", "gc", "itertools", "json", "keyword", "math", "operator"),
    *("pwd", "re", "reprlib", "select", "signal", "types"),
}
# Modules of slurmwrap that every plan needs; modules that only some calls need are not listed.
PLANNING_MODULES = {
    "": {
        "config",
        "console",
        "digest",
        "protocols",
        "errors",
        "escape",
        "plain_toml",
        "fast_dataclasses",
        "timing",
        "nearest_name",
    },
    "config": {"config_paths", "config_defaults", "load_config"},
    "host": {"system_clock", "run_command"},
    "inject": {"slurmwrap_launcher_options", "slurmwrap_step"},
    "model": {
        *("decision", "finding", "hostlist", "limits", "cluster", "observation"),
        *("lowered_limit", "placement_plan", "queue_priority", "resource_profile", "submission", "topology"),
    },
    "sbatch": {
        *("command_line", "fast_passthrough", "option_table", "parse_request", "passthrough"),
        *("rewrite", "job_request", "script_directives", "resource_shape"),
        "eligibility",  # --hold, --begin, --dependency, --reservation alone
    },
    "placement": {
        *(
            "slurm_options",
            "candidates",
            "locality",
            "resource_units",
            "plan_placement",
        ),
        "node_ranking",
    },
    "prerun": {
        "code_fingerprint",
    },
    "prerun.static": {
        *(
            "command_wrappers",
            "container_calls",
            "entry_points",
            "impossible_requests",
            "job_inputs",
            "job_logs",
            "launcher_args",
            "search_path",
        ),
        *(
            "shell_parser",
            "shell_words",
            "started_program",
        ),
    },
    "prerun.trial": {"trial_environment"},
    "profiling": {"job_key"},
    "slurm": {
        "commands",
        "response_cache",
        "assoc_mgr_parser",
        "scontrol_parser",
        "site_topology",
        "snapshot",
        "find_sbatch",
    },
    "store": {"prerun_registry", "site_switch", "spool_writer", "serialize", "user_state_files"},
    "gsub": {
        *("exec_sbatch", "gsub_main", "planning_inputs", "prefetch", "refusals", "prepare"),
        *("process_env", "sbatch_call", "send", "submission_records", "submit", "submit_context", "time_request"),
        "user_state",
    },
}
# Modules of both kinds for a call that certainly passes through to sbatch.
PASSTHROUGH_MODULES = {
    *("__future__", "_collections", "_functools", "_operator", "collections", "collections.abc", "contextlib"),
    *("enum", "functools", "gc", "itertools", "keyword", "operator", "reprlib", "signal", "slurmwrap"),
    *(
        "slurmwrap.gsub",
        "slurmwrap.gsub.process_env",
        "slurmwrap.gsub.exec_sbatch",
        "slurmwrap.errors",
        "slurmwrap.sbatch",
    ),
    *(
        "slurmwrap.sbatch.fast_passthrough",
        "slurmwrap.slurm",
        "slurmwrap.slurm.find_sbatch",
        "slurmwrap.timing",
        "types",
    ),
}

CPU_JOB = "#!/bin/bash\n#SBATCH --mem=1G -c 2\nhostname\n"
GPU_JOB = "#!/bin/bash\n#SBATCH -N2 --gres=gpu:8 --ntasks-per-node=1 --cpus-per-task=8 --mem=64000\npython train.py\n"
SCONTROL = """#!/bin/sh
if [ "$*" = "show node -d -o" ]; then
    for i in 0 1 2 3; do
        echo "NodeName=n$i CoresPerSocket=16 CPUAlloc=0 CPUTot=32 Gres=gpu:a100:8 GresUsed=gpu:a100:0(IDX:N/A)" \\
            "RealMemory=256000 AllocMem=0 Sockets=2 Boards=1 State=IDLE ThreadsPerCore=1 Partitions=gpu"
    done
    exit
fi
cat > /dev/null
echo "SwitchName=ib0 Level=0 Nodes=n[0-3]"
echo "PartitionName=gpu Default=YES Nodes=n[0-3] State=UP MaxNodes=UNLIMITED"
echo "Configuration data as of 5"
echo "ClusterName = c"
"""


@pytest.fixture
def run_and_list_modules(tmp_path: Path):
    """Run the installed gsub in an empty home; return the modules that it loads until it ends or executes sbatch."""
    bin_, home, runtime = tmp_path / "bin", tmp_path / "home", tmp_path / "run"
    for folder in (bin_, home, runtime):
        folder.mkdir(mode=0o700)
    for name, text in {"scontrol": SCONTROL, "sbatch": "#!/bin/sh\necho Submitted batch job 7\n"}.items():
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    for name in ("slurm.conf", "config.toml"):
        (tmp_path / name).touch()
    environ = {
        "PATH": f"{bin_}:/usr/bin:/bin",
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "SLURMWRAP_CONFIG": str(tmp_path / "config.toml"),
    }

    def run(*words: str, script: str) -> set[str]:
        (tmp_path / "job.sh").write_text(script)
        done = subprocess.run(
            [sys.executable, "-X", "importtime", gsub_script.__file__, *words, "job.sh"],
            env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=allow(60),
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "Submitted batch job 7\n"), done.stderr
        imported = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE)
        rest = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        assert rest == []
        return set(imported) - list_python_startup_modules()

    return run


def list_python_startup_modules() -> set[str]:
    """Modules that Python loads before a program's first line; they differ between environments."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "pass"], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"\|\s+(\S+)$", done.stderr, re.MULTILINE))


def is_failed_import(name: str) -> bool:
    """Whether the standard library tries to import this name for another system and does not find it."""
    return name in {"_winapi", "msvcrt", "nt", "winreg", "_scproxy", "org", "org.python", "org.python.core"}


def test_a_job_without_gpu_loads_only_the_passthrough_modules(run_and_list_modules) -> None:
    extra = {name for name in run_and_list_modules(script=CPU_JOB) if not is_failed_import(name)} - PASSTHROUGH_MODULES
    assert extra == set(), f"a job without a GPU now loads {', '.join(sorted(extra))}"


@pytest.mark.parametrize("words", [("--prerun=off",), ("--prerun=off", "--hold"), ("--prerun=off", "--no-place")])
def test_a_planned_job_loads_only_the_listed_modules(run_and_list_modules, words) -> None:
    names = {name for name in run_and_list_modules(*words, script=GPU_JOB) if not is_failed_import(name)}
    foreign = {name for name in names if name.partition(".")[0] not in STANDARD_MODULES | {"slurmwrap"}}
    assert foreign == set(), f"every submission now loads {', '.join(sorted(foreign))}"
    ours = {name for name in names if name.startswith("slurmwrap.")}
    assert list_unexpected(ours) == [], f"every submission now loads {', '.join(list_unexpected(ours))}"
    assert "slurmwrap.placement.plan_placement" in ours  # the plan was made


def test_munge_starts_while_sbatch_is_running(run_and_list_modules, tmp_path: Path) -> None:
    """This sbatch waits for munge, so it fails unless munge starts while it runs."""
    met, spool = tmp_path / "met", tmp_path / "spool"
    os.mkfifo(met)
    spool.mkdir()
    (tmp_path / "config.toml").write_text(f'[site]\nspool = "{spool}"\n')
    sbatch = f'#!/bin/sh\ntest "$(timeout 20 cat {met})" = here && echo Submitted batch job 7\n'
    munge = f"#!/bin/sh\necho here > {met}\ncat > {tmp_path}/sealed\necho MUNGE:sealed:\n"
    for name, text in {"sbatch": sbatch, "munge": munge}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    run_and_list_modules("--prerun=off", script=GPU_JOB)
    assert [path.read_text() for path in spool.iterdir()] == ["MUNGE:sealed:\n"]
    assert json.loads((tmp_path / "sealed").read_bytes())["job_id"] == 7


def list_unexpected(names: set[str]) -> list[str]:
    return sorted(names - {f"slurmwrap.{name}" for name in list_planning_modules()})


def list_planning_modules() -> set[str]:
    """The modules in PLANNING_MODULES and their packages."""
    packages = {package for package in PLANNING_MODULES if package}
    return packages | {f"{package}.{name}".lstrip(".") for package, names in PLANNING_MODULES.items() for name in names}


def test_every_listed_name_is_an_existing_slurmwrap_module() -> None:
    """The old name of a renamed module must not stay in the list: it would admit a later module of that name."""
    package_dir = Path(timing.__file__).parent
    paths = [package_dir / name.replace(".", "/") for name in list_planning_modules()]
    assert [str(path) for path in paths if not (path.with_suffix(".py").exists() or path.is_dir())] == []
