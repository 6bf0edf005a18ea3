"""Which of the user's files a batch script changes: one line of shell per case, as researchers write them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurmwrap.prerun.isolation import script_writes
from slurmwrap.prerun.isolation.script_writes import FileWrite

ENVIRON = {"TMPDIR": "/tmp", "HOME": "/home/ada", "DATA": "/data/ada", "SLURM_TMPDIR": "/tmp/7"}
NOTHING: tuple[str, ...] = ()

# (line, paths that it would change before the training starts). The job runs in /w.
LINES = [
    ("module load cuda/12.1", NOTHING),
    ("source ~/venv/bin/activate", NOTHING),
    ("conda activate torch", NOTHING),
    ('eval "$(conda shell.bash hook)"', NOTHING),
    ("export OMP_NUM_THREADS=8", NOTHING),
    ("ulimit -c 0", NOTHING),
    ("set -euo pipefail", NOTHING),
    ("echo started on $(hostname)", NOTHING),
    ("nvidia-smi", NOTHING),
    ("cd /w/src", NOTHING),
    ("mkdir -p logs/$SLURM_JOB_ID", NOTHING),
    ("mkdir -p $TMPDIR/data", NOTHING),
    ("cp -r $DATA/imagenet $TMPDIR/", NOTHING),
    ("rsync -a /data/ada/set/ /tmp/set", NOTHING),
    ("tar xf /data/ada/train.tar -C /tmp", NOTHING),
    ("unzip -q data.zip -d $TMPDIR", NOTHING),
    ("rm -rf /tmp/run", NOTHING),
    ("git rev-parse HEAD", NOTHING),
    ("git -C /w log -1 --oneline", NOTHING),
    ("git status --short", NOTHING),
    ("git diff > /dev/null", NOTHING),
    ("pip list", NOTHING),
    ("conda list", NOTHING),
    ("python -m pip list", NOTHING),
    ("wget -qO- http://host/ip", NOTHING),
    ("curl -s http://host/ip", NOTHING),
    ("find . -name '*.py' -print", NOTHING),
    ("sed -n 1p config.yaml", NOTHING),
    ("sed 's/a/b/' config.yaml > /tmp/c.yaml", NOTHING),
    ("tar tf data.tar", NOTHING),
    ("gunzip -c data.gz > /tmp/data", NOTHING),
    ("head -1 a | sort | uniq -c", NOTHING),
    ("mktemp -d", NOTHING),
    ("export RUN=$(mktemp -d -p /tmp)", NOTHING),
    ("cat hosts | xargs -n1 echo", NOTHING),
    ("[ -d out ] && rm -rf out", NOTHING),  # may or may not run: the shim checks it
    ("if [ -f a ]; then mv a b; fi", NOTHING),
    ('rm -rf "$(date +%F)"', NOTHING),  # only the running shell knows the path: the shim checks it
    ("rm -f *.log", NOTHING),
    ("chmod +x run.sh", NOTHING),
    ("/bin/ls", NOTHING),
    ("rm -rf out", ("/w/out",)),
    ("rm -f old.log new.log", ("/w/old.log", "/w/new.log")),
    ("mv results results.old", ("/w/results", "/w/results.old")),
    ("mv -t /data/ada a", ("/w/a", "/data/ada")),
    ("cp config.yaml $HOME/last.yaml", ("/home/ada/last.yaml",)),
    ("cp -r src /w/runs/1", ("/w/runs/1",)),
    ("install -m 644 a b", ("/w/b",)),
    ("ln -sfn run7 latest", ("/w/latest",)),
    ("rsync -a --delete src/ /data/ada/src", ("/data/ada/src",)),
    ("truncate -s 0 train.log", ("/w/train.log",)),
    ("dd if=/dev/zero of=file bs=1M count=1", ("/w/file",)),
    ("sed -i 's/lr: 1/lr: 2/' config.yaml", ("/w/config.yaml",)),
    ("sed -i.bak -e s/a/b/ a b", ("/w/a", "/w/b")),
    ("perl -pi -e s/a/b/ a", ("/w/a",)),
    ("git checkout main", ("/w",)),
    ("git clean -fdx", ("/w",)),
    ("git -C src pull", ("/w/src",)),
    ("git clone https://host/a/repo.git", ("/w/repo",)),
    ("tar xzf data.tgz", ("/w",)),
    ("tar -czf /data/ada/out.tgz out", ("/data/ada/out.tgz",)),
    ("unzip data.zip", ("/w",)),
    ("gzip train.log", ("/w/train.log",)),
    ("pip install -r requirements.txt", ("the Python environment",)),
    ("python -m pip install -e .", NOTHING),  # the guard inside Python checks it
    ("uv pip install torch", ("the Python environment",)),
    ("conda install -y numpy", ("the Python environment",)),
    ("wget http://host/model.bin", ("/w",)),
    ("wget -O model.bin http://host/m", ("/w/model.bin",)),
    ("curl -fsSLo model.bin http://host/m", ("/w/model.bin",)),
    ("curl -O http://host/m", ("/w",)),
    ("find runs -name '*.tmp' -delete", ("/w/runs",)),
    ("find . -name core -exec rm {} +", ("/w",)),
    ("touch started", ("/w/started",)),
    ("make -j8", ("/w",)),
    ("srun --ntasks=1 rm -rf out", ("/w/out",)),
    ("env A=1 timeout 5 cp a b", ("/w/b",)),
    ("cd sub && rm -f a", ("/w/sub/a",)),
    ("bash -c 'rm -rf out'", ("/w/out",)),
    ("bash -c 'echo a > a.txt 2>/dev/null'", ("/w/a.txt",)),
    ("bash -c 'echo a > $X.txt'", ("",)),
    ("N=$(wc -l < data.txt 2>err.txt)", ("/w/err.txt",)),
    ("N=$(wc -l data.txt 2>/dev/null) M=$((N > 3))", NOTHING),
    ("echo a > a.txt 2>&1", NOTHING),  # the copy of the script that is run redirects it elsewhere
    ("Rscript fit.R", ("",)),
    ("/bin/rm -rf $RESULTS", ("",)),  # an absolute path bypasses the shims
]


def find_writes(script: str, **more: object) -> tuple[FileWrite, ...]:
    def is_free(path: str) -> bool:
        return path.startswith(("/tmp", "/dev/"))

    return script_writes.find_touched_files(
        script,
        "/w",
        (),
        ENVIRON,
        is_free=is_free,
        read=lambda path: None,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("line", "paths"), LINES, ids=[line for line, _ in LINES])
def test_files_that_a_line_changes_are_found(line: str, paths: tuple[str, ...]) -> None:
    script = f"#!/bin/bash\n{line}\npython train.py\n"
    assert tuple(touch.path for touch in find_writes(script)) == paths


def test_writes_have_line_numbers_and_lines_after_the_training_are_ignored() -> None:
    script = "#!/bin/bash\n#SBATCH -N1\n\nrm a\nsrun python train.py\ncp best.pt /data/ada/\n"
    assert find_writes(script) == (FileWrite(path="/w/a", line=4, command="rm"),)


def test_removing_a_missing_file_is_not_a_write() -> None:
    script = "#!/bin/bash\nrm -f old.log\ncp a old.log\n"
    assert find_writes(script, exists=lambda path: False) == (FileWrite(path="/w/old.log", line=3, command="cp"),)


def test_scripts_that_are_not_shell_are_not_analyzed() -> None:
    assert find_writes("#!/usr/bin/env python3\nrm -rf out\n") == ()


def test_commands_in_containers_are_ignored() -> None:
    assert find_writes("#!/bin/bash\napptainer exec i.sif rm -rf out\n") == ()


def test_redirections_are_rewritten_and_line_numbers_stay(tmp_path: Path) -> None:
    redirect = tmp_path / "my shims" / "redirect"
    redirect.parent.mkdir()
    redirect.write_text(f'#!/bin/sh\nprintf %s "{tmp_path}/led-$(basename "$2")"\n')
    redirect.chmod(0o700)
    script = """#!/bin/bash
echo one > "a b.log" 2>&1
name=c
{ echo two; echo three; } >> $name.log
for i in 1 2; do echo $i; done > d.log 2> /dev/null
cat > e.log <<EOF
rm > x.log
EOF
(echo $LINENO) &> f.log
> g.log
echo to stderr >&2
a=3 b=2
test $((a > b)) = 1 && [[ $a > $b ]] && (( a > b )) && echo ok
"""
    rewritten = script_writes.redirect_script(script, str(redirect))
    assert rewritten.count("\n") == script.count("\n")
    done = subprocess.run(["bash", "-c", rewritten], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("ok\n", "to stderr\n")
    assert {p.name: p.read_text() for p in tmp_path.iterdir() if p.is_file()} == {
        "led-a b.log": "one\n",
        "led-c.log": "two\nthree\n",
        "led-d.log": "1\n2\n",
        "led-e.log": "rm > x.log\n",
        "led-f.log": "9\n",
        "led-g.log": "",
    }


@pytest.mark.parametrize(
    "script",
    ["#!/usr/bin/env python3\nprint(1 > 2)\n", "#!/bin/bash\necho a 2>&1 > /dev/null\n", "#!/bin/csh\necho a > b\n"],
)
def test_scripts_without_redirections_to_rewrite_stay_unchanged(script: str) -> None:
    assert script_writes.redirect_script(script, "/r") == script


def test_a_log_that_the_script_reads_back_is_listed() -> None:
    script = "#!/bin/bash\npython eval.py > eval.log\npython train.py > t.log\ngrep acc eval.log\n"
    assert script_writes.list_files_read_back(script, "/w", (), {}) == (
        FileWrite(path="/w/eval.log", line=2, command=">"),
    )


def test_programs_started_by_launchers_are_listed() -> None:
    script = "#!/bin/bash\nsrun apptainer exec i.sif python train.py\n"
    assert {"srun", "apptainer"} <= script_writes.list_programs(script, "/w", (), {})


def test_the_reason_names_three_files_and_the_hint_is_quoted_for_a_shell() -> None:
    many = [FileWrite(path=f"/w/{n}", line=n, command="rm") for n in range(1, 6)]
    assert (
        script_writes.format_touch_reason(many)
        == "would touch /w/1 (line 1: rm), /w/2 (line 2: rm), /w/3 (line 3: rm) and 2 more"
    )
    assert script_writes.make_hint(["srun", "python", "train.py", "--name", "it's"]) == (
        """--prerun-command='srun python train.py --name '"'"'it'"'"'"'"'"'"'"'"'s'"'"''"""
    )
    assert script_writes.make_hint([]) == "--prerun-command='python train.py ...'"


def test_redirections_to_unknown_paths_are_allowed_if_an_overlay_covers_all() -> None:
    texts = {"/w/run.sh": '#!/bin/bash\npython train.py >> "$LOG"\n/bin/rm -rf "$OLD"\n'}

    def find_writes(covered: bool) -> tuple[FileWrite, ...]:
        return script_writes.find_touched_files(
            "#!/bin/bash\nsrun ./run.sh\n",
            "/w",
            (),
            {},
            is_free=lambda path: covered,
            read=texts.get,
            covered=covered,
        )

    assert find_writes(False) == (FileWrite(path="", line=0, command=">"),)
    assert find_writes(True) == ()
