"""Trials of real processes, with a fake torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from slurmwrap.model.trial_result import TrialProgress, TrialResult
from slurmwrap.prerun.trial import supervisor
from slurmwrap.prerun.trial.trial_spec import TrialSpec

Trial = Callable[..., TrialResult]


def get_output(result: TrialResult) -> str:
    return result.logs[0].text


def list_processes_of_trials(directory: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        if environ.get("SLURMWRAP_TRIAL_DIR", "").startswith(str(directory)):
            found.append(" ".join(process.cmdline()))
    return found


def test_a_training_ends_in_the_third_step(trial: Trial, job: Path, tmp_path: Path) -> None:
    result = trial("#!/bin/bash\npython train.py 10 && echo next\necho last\n")
    assert (result.layer, result.exit_code, result.steps, result.step_source) == ("step", None, 3, "optimizer")
    assert get_output(result).splitlines()[-1] == "before step 3"
    assert not (job / "checkpoint.pt").exists()
    assert list_processes_of_trials(tmp_path) == []


def test_a_training_shorter_than_three_steps_ends_by_itself(trial: Trial, job: Path) -> None:
    result = trial("#!/bin/bash\npython train.py 2 && echo next\n")
    assert (result.layer, result.exit_code, result.steps) == ("exit", 0, 2)
    assert get_output(result).splitlines()[-1] == "next"
    assert not (job / "checkpoint.pt").exists()


def test_exit_code_and_signal_of_the_script_are_reported(trial: Trial) -> None:
    assert trial("#!/bin/sh\nexit 7\n").exit_code == 7
    killed = trial("#!/bin/sh\nkill -TERM $$\n")
    assert (killed.layer, killed.exit_code, killed.signal) == ("exit", None, 15)


def test_no_process_is_left_when_the_time_is_up(trial: Trial, tmp_path: Path) -> None:
    script = "#!/bin/bash\nsetsid sleep 300 &\n(setsid nohup sleep 301 >/dev/null 2>&1 &)\nsleep 302\n"
    result = trial(script, time_limit_s=0.5)
    assert (result.layer, result.timed_out, result.steps) == ("timeout", True, 0)
    assert result.seconds >= 0.5
    assert list_processes_of_trials(tmp_path) == []


def test_background_processes_end_with_the_script(trial: Trial, tmp_path: Path) -> None:
    assert trial("#!/bin/bash\nsetsid sleep 300 &\nexit 0\n").layer == "exit"
    assert list_processes_of_trials(tmp_path) == []


def test_traps_and_handlers_of_the_user_do_not_run_at_the_end(trial: Trial, job: Path) -> None:
    (job / "train.py").write_text(
        "import signal, atexit, torch.optim\n"
        "signal.signal(signal.SIGTERM, lambda *a: print('SIGTERM seen'))\n"
        "atexit.register(print, 'atexit ran')\n"
        "optimizer = torch.optim.SGD()\n"
        "try:\n    [optimizer.step() for _ in range(9)]\nfinally:\n    print('finally ran')\n"
    )
    result = trial("#!/bin/bash\ntrap 'echo trap ran' EXIT TERM CHLD\npython train.py\n")
    assert (result.layer, get_output(result)) == ("step", "")


def test_arguments_reach_the_script_and_line_numbers_stay(trial: Trial) -> None:
    result = trial('#!/bin/bash\n#SBATCH -N2\necho "$# $2 $LINENO ${0##*/}"\n', "a", "b c")
    assert get_output(result) == "2 b c 3 slurm_script\n"


def test_a_script_may_be_in_python(trial: Trial) -> None:
    result = trial("#!/usr/bin/env python3\nimport sys\nprint('python', sys.argv[1])\n", "x")
    assert (result.exit_code, get_output(result)) == (0, "python x\n")


def test_a_missing_interpreter_fails_as_under_slurm(trial: Trial) -> None:
    result = trial("#!/no/such/shell\n")
    assert (result.layer, result.exit_code) == ("exit", 2)
    assert "bad interpreter(/no/such/shell)" in get_output(result)


def test_a_missing_script_is_an_error_of_the_supervisor(make_spec: Callable[..., TrialSpec]) -> None:
    spec = make_spec("#!/bin/sh\n")
    Path(spec.script).unlink()
    result = supervisor.run_trial(spec, environ={})
    assert result.layer == "supervisor"
    assert "slurm_script" in result.error


def test_a_missing_working_directory_is_replaced_by_tmp_with_a_message(trial: Trial) -> None:
    result = trial("#!/bin/sh\npwd\n", chdir="/nonexistent/dir")
    assert (
        get_output(result) == "slurmstepd: error: couldn't chdir to `/nonexistent/dir': going to /tmp instead\n/tmp\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "export PYTHONPATH=$PWD; python train.py 9",
        "export PATH=/usr/bin:/bin PYTHONPATH=.; python3 train.py 9",
        "run() { export PYTHONPATH=.; python3 train.py 9; }; run",
        "unset PYTHONPATH; (cd . && exec python train.py 9)",
        "export PATH=/usr/bin:$PATH; timeout 20 srun -N4 -n32 python train.py 9",
        "mpirun -np 16 --map-by ppr:8:node -x FOO=bar python train.py 9",
        "python -m train 9",
        "cat train.py | sed s/checkpoint/x/ > copy.py; time nice -n 5 env A=b python -u copy.py 9 2>&1 | tee log.txt",
    ],
)
def test_steps_are_counted_for_every_way_to_start_the_program(trial: Trial, line: str) -> None:
    result = trial(f"#!/bin/bash\nset -euo pipefail\n{line}\n")
    assert (result.layer, result.steps, get_output(result).count("before step")) == ("step", 3, 3)


@pytest.mark.parametrize("shell", ["#!/bin/sh -e", "#!/bin/bash -l"])
def test_steps_are_counted_under_any_shell(trial: Trial, shell: str) -> None:
    assert trial(f"{shell}\nPYTHONPATH=. srun -n8 python3 train.py 9\n").layer == "step"


def test_the_script_sees_one_task_and_disabled_loggers(trial: Trial) -> None:
    names = "SLURM_NNODES SLURM_NTASKS SLURM_PROCID WANDB_MODE SLURM_GPUS_PER_NODE RANK"
    script = "#!/bin/bash\nfor n in " + names + '; do echo "$n=${!n-unset}"; done\n'
    result = trial(script, environment={"SLURM_GPUS_PER_NODE": "1"})
    assert get_output(result).split() == [
        "SLURM_NNODES=1",
        "SLURM_NTASKS=1",
        "SLURM_PROCID=0",
        "WANDB_MODE=disabled",
        "SLURM_GPUS_PER_NODE=1",
        "RANK=unset",
    ]


@pytest.mark.parametrize("overlay", ["auto", "off"])
@pytest.mark.parametrize("name", ["TENSORBOARD_LOGGING_DIR", "WANDB_DIR", "TRACKIO_DIR", "COMET_OFFLINE_DIRECTORY"])
def test_a_tracker_writes_to_the_directory_that_its_variable_names(
    trial: Trial, job: Path, tmp_path: Path, name: str, overlay: str
) -> None:
    # transformers 5 reads TENSORBOARD_LOGGING_DIR, and TensorBoard makes the directory.
    (job / "train.py").write_text(
        f"import os\nplace = os.environ[{name!r}]\nos.makedirs(place, exist_ok=True)\n"
        "with open(place + '/events', 'w') as file:\n    file.write('1')\nprint(os.listdir(place))\n"
    )
    result = trial("#!/bin/bash\npython train.py\n", overlay=overlay)
    assert (result.exit_code, result.logs[0].text) == (0, "['events']\n")
    assert not (tmp_path / "trial" / "loggers").exists()


def test_the_bash_env_of_the_site_still_runs(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "lmod.sh").write_text("module() { echo module $*; export PATH=/opt/x:$PATH; }\n")
    script = "#!/bin/bash\nmodule load cuda\npython train.py 9\n"
    result = trial(script, environ={"BASH_ENV": str(tmp_path / "lmod.sh")})
    assert (result.layer, get_output(result).splitlines()[0]) == ("step", "module load cuda")


def test_bash_behaves_as_without_slurmwrap(trial: Trial, job: Path) -> None:
    script = """#!/bin/bash
mkdir -p sub/d && cd $_ && pwd
false | true | false; echo "${PIPESTATUS[@]}"
[[ abc =~ b(c) ]]; echo "${BASH_REMATCH[1]}"
f() { local x; x=$(cd / && pwd); echo $x $FUNCNAME $#; return 3; }
f a b; echo $?
echo x y z; echo last=$_
set -- 1 2 3; echo $# $LINENO
trap 'echo err $LINENO' ERR; false; trap - ERR
while read -r l; do echo "got $l"; done < <(printf 'a\nb\n')
(exit 4); echo $?
set -euo pipefail; cat <<E | tail -n 1
1
2
E
exit 5
"""
    plain = subprocess.run(["bash", "-c", script], cwd=job, capture_output=True, text=True)
    result = trial(script)
    assert (get_output(result), result.exit_code) == (plain.stdout, plain.returncode)
    assert plain.stdout.startswith(f"{job}/sub/d\n")


def test_the_users_own_sitecustomize_still_runs(trial: Trial, job: Path) -> None:
    (job / "lib").mkdir()
    (job / "lib" / "sitecustomize.py").write_text("print('own sitecustomize')\n")
    result = trial("#!/bin/bash\npython train.py 9\n", environ={"PYTHONPATH": str(job / "lib")})
    assert (result.layer, get_output(result).splitlines()[0]) == ("step", "own sitecustomize")


def test_steps_that_a_program_counts_itself_are_used(trial: Trial, job: Path) -> None:
    (job / "own.py").write_text("import slurmwrap_step\nfor i in range(9): print(i); slurmwrap_step.step()\n")
    result = trial("#!/bin/bash\npython own.py\n")
    assert (result.layer, result.steps, result.step_source, get_output(result)) == ("step", 3, "explicit", "0\n1\n2\n")


def test_a_crash_hidden_by_a_later_line_is_reported(trial: Trial, job: Path) -> None:
    (job / "crash.py").write_text("raise ValueError('x')\n")
    hidden = trial("#!/bin/bash\nsrun python crash.py\necho done\n")
    assert (hidden.exit_code, hidden.crashed) == (0, True)
    survived = trial("#!/bin/bash\npython crash.py || python -c 'print(1)'\n")
    assert (survived.exit_code, survived.crashed) == (0, False)


def test_memory_and_cpu_of_the_process_tree_are_measured(trial: Trial, job: Path) -> None:
    (job / "busy.py").write_text(
        "import time, torch.optim\nx = bytearray(100 << 20)\nend = time.monotonic() + 1.5\n"
        "o = torch.optim.SGD()\no.step()\n"
        "while time.process_time() < 0.4: pass\n"
        "time.sleep(max(0, end - time.monotonic()))\no.step(); o.step()\n"
    )
    measured = trial("#!/bin/bash\npython busy.py\n").measurement
    assert measured.steps == 3
    assert measured.mem_source == "pss"
    assert 100 <= (measured.mem_peak_mib or 0) < 160
    assert 0 < (measured.cpus_used or 0) < 1.3  # no larger lower bound: a busy machine may give it little CPU time
    assert 0 < (measured.steps_per_s or 0) < 2 / 1.4


def test_progress_is_reported_during_a_trial(make_spec: Callable[..., TrialSpec]) -> None:
    seen: list[TrialProgress] = []
    spec = make_spec("#!/bin/sh\nprintf 'one\\rtwo'\nsleep 1.2\n")
    supervisor.run_trial(spec, environ={"PATH": "/usr/bin:/bin"}, on_progress=seen.append)
    assert [p.steps for p in seen] == [0] * len(seen)
    assert seen[-1].last_line == "two"
    assert seen[-1].seconds >= 1.0


def test_an_interrupt_leaves_no_process(make_spec: Callable[..., TrialSpec], tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(progress: TrialProgress) -> None:
        if progress.seconds > 0.1:
            raise Stop

    with pytest.raises(Stop):
        supervisor.run_trial(
            make_spec("#!/bin/bash\nsleep 300 &\nsleep 301\n"), environ=dict(os.environ), on_progress=stop
        )
    assert list_processes_of_trials(tmp_path) == []


def test_earlier_child_processes_are_not_killed(trial: Trial) -> None:
    bystander = psutil.Popen(["sleep", "600"])
    try:
        assert trial("#!/bin/sh\nsleep 0.1\n").exit_code == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_tail_of_the_output_keeps_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"".join(b"line %06d\n" % i for i in range(1, 100_001)))
    found = supervisor.read_tail(str(path))
    first = found.text.splitlines()[0]
    assert (first, found.truncated) == (f"line {found.first_line:06d}", True)
    assert found.text.endswith("line 100000\n")


LEFT_BEHIND = """
import os, signal, sys, time
if os.fork():
    sys.exit()
os.setsid()
if os.fork():
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.chdir("/")
open(sys.argv[1], "w").close()
time.sleep(300)
"""


def test_processes_that_a_script_leaves_behind_do_not_outlive_the_trial(
    trial: Trial, job: Path, tmp_path: Path
) -> None:
    (job / "daemon.py").write_text(LEFT_BEHIND)
    script = """#!/bin/bash
python daemon.py $TMPDIR/1  # double fork, own session, deaf to signals
nohup python daemon.py $TMPDIR/2 >/dev/null 2>&1 & disown
(trap '' TERM HUP; setsid sh -c 'touch $TMPDIR/3; sleep 300') &
sleep 300 & kill -STOP $!; touch $TMPDIR/4
sh -c 'touch $TMPDIR/5; while :; do sleep 300 & sleep 0.02; done' &  # starts new ones all the time
for n in 1 2 3 4 5; do while [ ! -e $TMPDIR/$n ]; do sleep 0.02; done; done
python train.py 9
"""
    result = trial(script, environ={"TMPDIR": str(tmp_path)})
    assert (result.layer, result.steps) == ("step", 3)
    assert list_processes_of_trials(tmp_path) == []


def test_the_first_of_two_trainings_in_the_background_ends_the_trial(trial: Trial, tmp_path: Path) -> None:
    result = trial("#!/bin/bash\ntrap 'echo trap ran' EXIT\npython train.py 9 & python train.py 9 &\nwait\necho next\n")
    assert (result.layer, result.steps) == ("step", 3)
    assert "trap ran" not in get_output(result)
    assert list_processes_of_trials(tmp_path) == []


def test_a_trial_on_two_gpus_starts_both_ranks_and_counts_steps(trial: Trial, tmp_path: Path) -> None:
    both = "touch $TMPDIR/r$SLURM_PROCID; while [ ! -e $TMPDIR/r0 ] || [ ! -e $TMPDIR/r1 ]; do sleep 0.02; done"
    script = f"#!/bin/bash\nsrun -n16 sh -c '{both}; echo all here; exec python train.py 9'\n"
    result = trial(script, environ={"TMPDIR": str(tmp_path)}, trial_gpus=2, trial_tasks=2, nodes=2)
    assert (result.layer, result.steps) == ("step", 3)
    assert get_output(result).count("all here") == 2


def test_a_program_with_many_threads_is_reaped_completely(trial: Trial, job: Path) -> None:
    threads = "import threading as t, time\nkept = bytearray(100 << 20)  # takes a while to give back\n"
    threads += "for _ in range(64):\n    t.Thread(target=time.sleep, args=(60,)).start()\n"
    (job / "train.py").write_text(threads + (job / "train.py").read_text())
    before = {child.pid for child in psutil.Process().children()}
    assert trial("#!/bin/bash\n(python train.py 9 &) ; sleep 30\n").steps == 3
    assert {child.pid for child in psutil.Process().children()} - before == set()
