"""The record of the files that a trial's Python opens: data only, once each, also from forked processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurmwrap.inject import slurmwrap_step
from slurmwrap.prerun.inputs.opened_files import OpenedFiles, OpenFileSampler, read_opened_files

Guarded = Callable[..., str]
INJECT = Path(slurmwrap_step.__file__).parent


def read(tmp_path: Path) -> OpenedFiles:
    return read_opened_files(str(tmp_path / "trial"))


def test_files_that_a_program_reads_and_folders_that_it_lists_are_recorded(
    run_guarded_ok: Guarded, tmp_path: Path, work: Path
) -> None:
    run_guarded_ok("""
        import os, pathlib
        open("data/a.txt").read()
        open("data/a.txt").read()
        pathlib.Path("config.yaml").read_bytes()
        os.close(os.open(os.path.abspath("data/deep/b.txt"), os.O_RDONLY))
        os.listdir("data")
        list(os.scandir())
    """)
    found = read(tmp_path)
    assert found.files == tuple(str(work / name) for name in ("data/a.txt", "config.yaml", "data/deep/b.txt"))
    assert found.directories == (str(work / "data"), str(work))
    assert len(found.pythons) == 1
    inside = read_opened_files(str(tmp_path / "trial"), leave_out=(str(INJECT.parent),))
    assert str(INJECT) in found.pythons[0].environ["PYTHONPATH"]
    assert inside.pythons[0].environ["PYTHONPATH"] == ""


def test_what_the_program_wrote_itself_and_the_code_that_it_imported_are_no_inputs(
    run_guarded_ok: Guarded, tmp_path: Path, work: Path
) -> None:
    run_guarded_ok("""
        import json, decimal, os
        open("out.json", "w").write("{}")
        json.load(open("out.json"))
        open("/proc/self/status").read()
        open(json.__file__).read()
        open("missing.txt") if os.path.exists("missing.txt") else None
        open("data/a.txt").read()
    """)
    assert read(tmp_path).files == (str(work / "data/a.txt"),)


def test_forked_and_spawned_processes_are_recorded(run_guarded_ok: Guarded, tmp_path: Path, work: Path) -> None:
    run_guarded_ok("""
        import os, subprocess, sys
        open("config.yaml").read()
        if os.fork() == 0:
            open("data/a.txt").read()
            os._exit(0)
        os.wait()
        subprocess.run([sys.executable, "-c", "open('data/deep/b.txt').read()"], check=True)
    """)
    names = {path.removeprefix(f"{work}/") for path in read(tmp_path).files}
    assert names == {"config.yaml", "data/a.txt", "data/deep/b.txt"}


def test_a_program_that_closes_all_descriptors_finds_only_its_own_data_in_its_files(
    run_guarded_ok: Guarded, tmp_path: Path, work: Path
) -> None:
    output = run_guarded_ok("""
        import os
        open("config.yaml").read()
        os.closerange(3, 100)
        own = os.open("/tmp/own-%d" % os.getpid(), os.O_RDWR | os.O_CREAT)
        open("data/a.txt").read()
        print(os.pread(own, 100, 0))
        os.unlink("/tmp/own-%d" % os.getpid())
    """)
    assert output == "b''\n"
    assert str(work / "data/a.txt") in read(tmp_path).files


def test_a_record_that_cannot_be_written_is_not_noticed(run_guarded_ok: Guarded, work: Path) -> None:
    code = "import os\nprint(open('data/a.txt').read(), os.listdir('data/deep'))"
    assert run_guarded_ok(code, SLURMWRAP_TRIAL_DIR=str(work / "missing")) == "a ['b.txt']\n"


def test_a_pattern_is_recorded_instead_of_the_folders_that_are_searched_for_it(
    run_guarded_ok: Guarded, tmp_path: Path, work: Path
) -> None:
    run_guarded_ok("""
        import glob, pathlib
        glob.glob("data/*.txt")
        list(pathlib.Path("data").rglob("*.csv"))
        list(pathlib.Path("data/deep").iterdir())
    """)
    found = read(tmp_path)
    assert found.patterns == (f"{work}/data/*.txt", f"{work}/data/**/*.csv")
    assert found.directories == (str(work / "data/deep"),)


def test_before_the_audit_hook_the_replaced_functions_record_the_same(
    run_guarded_ok: Guarded, tmp_path: Path, work: Path
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    # A .pth file or an earlier sitecustomize would hide the function in the same way.
    (old / "sitecustomize.py").write_text(
        "import sys\ndel sys.addaudithook\n"
        f"sys.path.remove({str(old)!r})\ndel sys.modules['sitecustomize']\nimport sitecustomize\n"
    )
    path = f"{old}:{INJECT}"
    code = "import sys, os\nprint(hasattr(sys, 'addaudithook'))\nopen('data/a.txt').read()\nos.listdir('data')\n"
    assert run_guarded_ok(code, PYTHONPATH=path) == "False\n"
    found = read(tmp_path)
    assert (found.files, found.directories) == ((str(work / "data/a.txt"),), (str(work / "data"),))


def test_a_file_that_native_code_keeps_mapped_is_found_in_proc(tmp_path: Path) -> None:
    import mmap
    import os

    data = tmp_path / "records.arrow"
    data.write_bytes(b"x" * 5000)
    with data.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    OpenFileSampler(str(tmp_path), lambda: 0.0).look([os.getpid()], last=True)
    assert str(data) in read_opened_files(str(tmp_path)).files
    mapped.close()
