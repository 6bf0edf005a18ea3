"""Run the user's script as a trial: turn a TrialSpec into a TrialResult (adapter: processes, /proc, trial files).

A trial ends in one of six ways: N optimizer steps were counted (the process that counted them sleeps inside the step,
and the whole process tree is killed there), the script ended, no part of it trains (no_training.py), it stands still
(activity.py), the time is up, or it could not be started. With a rehearsal the program goes on after the N steps with
shortened epochs (inject/slurmwrap_rehearsal.py); whatever ends that, except a failure of the script, is a pass.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.resource_profile import BY_FILES, BY_LOADER, DataLoading, Measurement
from slurmwrap.model.trial_result import StepReading, TrialProgress, TrialResult
from slurmwrap.model.verdict import FailedCommand
from slurmwrap.prerun.inputs.dataset_size import find_mount, is_local_mount, measure_dataset_files
from slurmwrap.prerun.inputs.opened_files import OpenFileSampler, read_opened_files
from slurmwrap.prerun.isolation.protection import Protection, has_forbidden_write, set_up_protection
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.training_expected import Expectation
from slurmwrap.prerun.trial import process_sampler, step_detection
from slurmwrap.prerun.trial.activity import InactivityDetector, ask_for_stacks, take_activity_sample
from slurmwrap.prerun.trial.gpu_sampler import GpuSampler
from slurmwrap.prerun.trial.loader_sampler import LoaderSampler
from slurmwrap.prerun.trial.no_training import NoTrainingDetector
from slurmwrap.prerun.trial.process_tree import ProcessTree, become_subreaper
from slurmwrap.prerun.trial.rehearsal_timer import RehearsalTimer
from slurmwrap.prerun.trial.step_detection import StepDetector, is_enough, is_using_torch
from slurmwrap.prerun.trial.trial_containers import (
    end_containers,
    list_detached_pids,
    needs_no_overlay,
    remove_container_layers,
)
from slurmwrap.prerun.trial.trial_environment import build_trial_environment
from slurmwrap.prerun.trial.trial_layout import find_unshimmed_call, make_command_line, put_over, write_trial_files
from slurmwrap.prerun.trial.trial_profiler import TrialProfiler, has_reached_steps
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict import python_traceback
from slurmwrap.prerun.verdict.failed_commands import find_failed_commands
from slurmwrap.prerun.verdict.unproven_programs import find_uncounted_reason, find_unproven_reason

# Seconds between two checks of the step files and of the script's exit.
POLL_S = 0.05
# Seconds between two samples of CPU and memory; a sample of nine processes takes 4 ms.
SAMPLE_S = 1.0
# Seconds that a program gets to print its stacks.
STACKS_S = 2.0
TAIL_BYTES = 512 << 10


def run_trial(
    spec: TrialSpec,
    *,
    environ: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[TrialProgress], None] = lambda progress: None,
    on_steps: Callable[[TrialResult], None] = lambda result: None,
) -> TrialResult:
    """Run the trial to its end and kill all its processes, whatever happens. `environ`: that of the pre-run's job.

    `on_steps` gets the result that the trial would have without a rehearsal, when the rehearsal begins.
    If the overlay made the trial fail, it is run a second time without an overlay in the time that remains.
    """
    result, again = _run_once(spec, environ, clock, on_progress, on_steps)
    left = spec.time_limit_s - result.seconds
    if not again or left <= 0:
        return result
    _remove_first_try_files(spec)
    return _run_once(replace(spec, overlay="off", time_limit_s=left), environ, clock, on_progress, on_steps)[0]


def _run_once(
    spec: TrialSpec,
    environ: Mapping[str, str],
    clock: Callable[[], float],
    on_progress: Callable[[TrialProgress], None],
    on_steps: Callable[[TrialResult], None],
) -> tuple[TrialResult, bool]:
    """Return (result, whether to try again without the overlay)."""
    try:
        environment = build_trial_environment(spec, environ, hostname=socket.gethostname(), python=sys.executable)
        protection = set_up_protection(spec, environment)
    except (OSError, ValueError) as error:
        return TrialResult(layer="supervisor", error=f"the pre-run could not be prepared: {error}"), False
    try:
        result = _run_protected(spec, protection, environment, environ, clock, on_progress, on_steps)
        return result, protection.has_overlay_failed(result)
    finally:
        protection.remove()
        remove_container_layers(spec.trial_dir, environ)


def _remove_first_try_files(spec: TrialSpec) -> None:
    """Remove the steps, marks and output of the first try, so that they are not attributed to the second."""
    for folder in (spec.step_dir, *(f"{spec.trial_dir}/{name}" for name in ("shims", "inject", "inside"))):
        shutil.rmtree(folder, ignore_errors=True)
    Path(spec.trial_dir, "containers").unlink(missing_ok=True)
    with suppress(OSError):
        os.truncate(spec.output, 0)


def _run_protected(
    spec: TrialSpec,
    protection: Protection,
    environment: dict[str, str],
    environ: Mapping[str, str],
    clock: Callable[[], float],
    on_progress: Callable[[TrialProgress], None],
    on_steps: Callable[[TrialResult], None],
) -> TrialResult:
    """Write the trial's files, start the script and supervise it.

    `environment`: that of the script. `environ`: that of the pre-run's job.
    """
    try:
        environment |= protection.environment()
        write_trial_files(spec, environment)
        command = protection.overlay.command(make_command_line(protection.spec), put_over(spec, environment))
    except (OSError, ValueError) as error:
        return TrialResult(layer="supervisor", error=f"the pre-run could not be prepared: {error}")
    if not os.access(f"{spec.trial_dir}/shims/srun", os.X_OK):
        why = f"programs below {spec.trial_dir} cannot be run (mounted noexec?): no shim can replace Slurm's commands"
        return TrialResult(layer="supervisor", error=why)
    if refusal := protection.refusal() or ("" if protection.overlay.roots else find_unshimmed_call(spec)):
        return TrialResult(layer="supervisor", error=refusal, touched=tuple(map(str, protection.touched)))
    with become_subreaper(), Path(spec.output).open("ab") as output, GpuSampler(environ, dcgmi=spec.dcgmi) as gpus:

        def start(spec: TrialSpec, environment: Mapping[str, str]) -> TrialResult:
            tree = ProcessTree(partial(list_detached_pids, spec.trial_dir))
            try:
                script = subprocess.Popen(
                    [*command, *spec.args[len(protection.spec.args) :]],
                    # Inherited from the pre-run's job, in which Slurm opens --input or /dev/null.
                    stdin=None,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=_find_directory(spec.chdir, output.fileno()),
                    start_new_session=True,
                )
            except OSError as error:
                return _make_not_started_result(error, command)
            run = _Run(
                spec=spec,
                environment=environment,
                script=script,
                tree=tree,
                gpus=gpus,
                protection=protection,
                clock=clock,
                on_progress=on_progress,
                on_steps=on_steps,
            )
            try:
                return protection.after(run.supervise_script(environ))
            finally:
                tree.end(script.pid)
                end_containers(spec.trial_dir, environ)
                with suppress(subprocess.TimeoutExpired):
                    script.wait(timeout=1.0)

        result = start(spec, environment)
        result = _resume(spec, environment, result, start) if spec.resumes else result
        if result.rehearsal is None or result.layer != "exit":
            return result
        return replace(result, rehearsal=replace(result.rehearsal, written=protection.list_written_files()))


def _resume(
    spec: TrialSpec,
    environment: Mapping[str, str],
    first: TrialResult,
    start: Callable[[TrialSpec, Mapping[str, str]], TrialResult],
) -> TrialResult:
    """Start the script again where the rehearsal left its files, as Slurm does after a requeue.

    Return the first result, or the second one if that run failed. Without checkpoints of the first run there is
    nothing to resume from.
    """
    rehearsal, left = first.rehearsal, min(spec.rehearse_s, spec.time_limit_s - first.seconds)
    if rehearsal is None or first.error or left <= 0 or (first.layer == "exit" and (first.exit_code or first.crashed)):
        return first
    shutil.rmtree(spec.step_dir, ignore_errors=True)
    Path(spec.step_dir).mkdir(mode=0o700, exist_ok=True)
    # A training that is complete ends at once, and the script goes on. Its uploads are left out (shims/remote_check).
    Path(spec.step_dir, "rehearsal").touch(mode=0o600)
    with suppress(OSError):
        os.truncate(spec.output, 0)
    restarts = str(int(environment.get("SLURM_RESTART_COUNT") or "0") + 1)
    again = {**environment, "SLURM_RESTART_COUNT": restarts, "SLURMWRAP_REHEARSE": ""}
    again["SLURMWRAP_PARK_AFTER"] = str(spec.steps)
    args = (*spec.args, *spec.resume_args)
    second = start(replace(spec, args=args, time_limit_s=left, profile_s=0.0, rehearse_s=0.0), again)
    again_refused = step_detection.read_rehearsal(spec.step_dir)
    refused = (*rehearsal.refused, *(again_refused.refused if again_refused is not None else ()))
    resumed = replace(rehearsal, resumed=True, refused=refused)
    if second.layer == "exit" and (second.exit_code or second.signal or second.crashed):
        return replace(second, steps=first.steps, step_source=first.step_source, rehearsal=resumed)
    return replace(first, seconds=first.seconds + second.seconds, rehearsal=resumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A started script with everything that supervises and measures it."""

    spec: TrialSpec
    environment: Mapping[str, str]  # the script's
    script: subprocess.Popen[bytes]
    tree: ProcessTree
    gpus: GpuSampler
    protection: Protection
    clock: Callable[[], float]
    on_progress: Callable[[TrialProgress], None]
    on_steps: Callable[[TrialResult], None]

    def supervise_script(self, environ: Mapping[str, str]) -> TrialResult:
        """Supervise the script until the trial ends, and return the result."""
        # Every POLL_S the loop reads the step files and looks for an ending (`layer`). Once per SAMPLE_S it also
        # measures CPU, memory and GPUs and looks for the weaker signs of training. Weaker signs, and the detector that
        # nothing trains, may end the trial only if no stronger ending was found.
        cgroup = process_sampler.find_job_cgroup(environ, process_sampler.read_own_cgroups())
        measured, started = process_sampler.Sampler(cgroup), self.clock()
        profile, gpus = TrialProfiler(self.spec, self.tree.processes, environ, lambda: self.gpus.buses), self.gpus
        signs, layer, next_sample, is_filling_disk = StepDetector(self.spec), "", started, False
        patience, no_training = self._make_no_training_detector(started), ""
        open_files, loader = OpenFileSampler(self.spec.trial_dir, self.clock), LoaderSampler(self.spec.step_dir)
        inactivity, last_line = InactivityDetector(no_activity_s=self.spec.no_activity_s), ""
        rehearsal = RehearsalTimer(self.spec, self.environment)
        while not layer:
            now = self.clock()
            reading = step_detection.read_steps(self.spec.step_dir)
            layer = self._find_ending(reading, now - started)
            if layer == "step" and not profile.done(now, reading, ended=self.script.poll() is not None):
                layer = ""
            before, layer = rehearsal.is_running, rehearsal.look(now, layer, reading)
            if rehearsal.is_running and not before:
                measured.sample(now, self.tree.processes())
                self.on_steps(self._make_steps_result(reading, measured, profile, gpus, loader, seconds=now - started))
            if layer or now >= next_sample:
                next_sample = now + SAMPLE_S
                is_filling_disk = self.protection.overlay.is_filling_disk()
                if is_filling_disk and rehearsal.is_running:
                    # A checkpoint may be larger than the node's disk.
                    is_filling_disk, layer = False, layer or rehearsal.stop("disk")
                layer = "supervisor" if is_filling_disk and not layer else layer
                gpus.look()
                # While slurmwrap's stressors run, the cgroup's memory is not the trial's alone, so nothing is sampled.
                if not profile.stressing:
                    measured.sample(now, self.tree.processes(), last=layer == "step")
                processes = self.tree.processes()
                open_files.look([process.pid for process in processes], last=layer != "")
                if not profile.stressing:
                    loader.look(now)
                signs.look(now, [process.pid for process in processes], reading)
                activity = take_activity_sample(now, processes)
                patience.look(activity, processes)
                line, count = _read_last_line(self.spec.output), reading.steps or signs.text.count
                stage = "profiles" if self.spec.profile_s and reading.count >= self.spec.steps else ""
                stage = "rehearses" if rehearsal.is_running else stage
                gpu = gpus.percent()
                self.on_progress(
                    TrialProgress(seconds=now - started, steps=count, last_line=line, stage=stage, gpu_percent=gpu)
                )
                if not layer and inactivity.look(
                    activity,
                    steps=count,
                    output_bytes=_get_size(self.spec.output),
                    gpu=None if gpu is None else gpu / 100,
                    processes=processes,
                ):
                    layer, last_line = rehearsal.stop("no_activity") if rehearsal.is_running else "no_activity", line
                    self._print_stacks(processes)
            if layer in ("", "timeout", "no_activity") and signs.decided(reading, now, last=layer != ""):
                layer = "step"
            if not layer and (no_training := patience.ended(now, reading)):
                printed = is_enough(signs.text, self.spec.steps) and not is_using_torch(self.spec.step_dir)
                layer = "step" if printed else "no_training"
            if not layer:
                time.sleep(POLL_S)
        profile.close()
        gpus.close()
        exit_code = self.script.returncode if layer == "exit" else None
        commands = self._list_commands() if layer != "step" else ()
        unproven = self._find_unproven_programs(commands) if exit_code == 0 else ""
        self.tree.end(self.script.pid)
        seconds = self.clock() - started
        reading = step_detection.read_steps(self.spec.step_dir)
        signs.look(self.clock(), (), reading)
        shown = signs.shown(reading, gpus.samples)
        return TrialResult(
            layer=layer,
            exit_code=exit_code if exit_code is None or exit_code >= 0 else None,
            signal=-exit_code if exit_code is not None and exit_code < 0 else None,
            steps=shown.count,
            step_source=shown.source,
            seconds=round(seconds, 3),
            logs=(read_tail(self.spec.output), *(read_tail(path, name) for name, path in self.protection.logs())),
            measurement=self._summarize_measurement(reading, measured, profile, gpus, loader, seconds),
            crashed=step_detection.has_last_python_crashed(self.spec.step_dir),
            exits=step_detection.list_exits(self.spec.step_dir),
            oom_kills=process_sampler.read_oom_kills(cgroup),
            gpu_shared=step_detection.is_gpu_shared(gpus.samples, signs.pids),
            refused=step_detection.list_refused_commands(self.spec.step_dir),
            no_training=no_training,
            last_line=last_line,
            unproven=unproven,
            uncounted=find_uncounted_reason(commands) if not shown.count else "",
            failed_commands=_find_failed_commands(self.spec, self.protection.spec),
            rehearsal=rehearsal.result(),
            error="the files that it writes would fill the node's disk, where they are kept" if is_filling_disk else "",
        )

    def _make_steps_result(
        self,
        reading: StepReading,
        measured: process_sampler.Sampler,
        profile: TrialProfiler,
        gpus: GpuSampler,
        loader: LoaderSampler,
        *,
        seconds: float,
    ) -> TrialResult:
        """Return the result of a trial that ends in its steps."""
        return TrialResult(
            layer="step",
            steps=reading.count,
            step_source=reading.source,
            seconds=round(seconds, 3),
            measurement=self._summarize_measurement(reading, measured, profile, gpus, loader, seconds),
            refused=step_detection.list_refused_commands(self.spec.step_dir),
            failed_commands=_find_failed_commands(self.spec, self.protection.spec),
        )

    def _summarize_measurement(
        self,
        reading: StepReading,
        measured: process_sampler.Sampler,
        profile: TrialProfiler,
        gpus: GpuSampler,
        loader: LoaderSampler,
        seconds: float,
    ) -> Measurement:
        profiled = profile.result()
        found = measured.measurement(
            reading, seconds=seconds, cpus=len(os.sched_getaffinity(0)), profiled=profiled, gpus=gpus.samples
        )
        loader.look(self.clock())
        return self._add_data(found, loader.summarize(*(profiled.full or (None, None))))

    def _add_data(self, measurement: Measurement, loading: DataLoading | None) -> Measurement:
        """Add how the program loads its data, and how much an epoch reads: by its loader, else by its files."""
        files = None
        with suppress(Exception):
            opened = read_opened_files(self.spec.trial_dir, leave_out=(self.spec.trial_dir,))
            files = measure_dataset_files(opened, self.clock)
        if loading is not None and files is not None:
            mount = find_mount(files.largest)
            loading = replace(loading, mount=mount, is_local=is_local_mount(mount))
        size, source = (files.mib if files is not None else None), BY_FILES
        if loading is not None and loading.batches and loading.batch_mib:
            size, source = round(loading.batch_mib * loading.batches, 3), BY_LOADER
        source = source if size is not None else ""
        return replace(measurement, loading=loading, dataset_mib=size, dataset_source=source)

    def _read_script(self) -> str:
        if self.spec.command:
            return f"#!/bin/sh\n{self.spec.command}\n"
        return python_traceback.read(self.spec.script) or ""

    def _make_no_training_detector(self, began: float) -> NoTrainingDetector:
        expectation = Expectation(self._read_script(), self.spec.chdir, self.spec.args, self.environment)
        return NoTrainingDetector(self.spec.step_dir, expectation, began=began, no_training_s=self.spec.no_training_s)

    def _print_stacks(self, processes: Sequence[psutil.Process]) -> None:
        """Let the Python processes print their stacks, and wait until they have done so."""
        before = size = _get_size(self.spec.output)
        ends_at = self.clock() + STACKS_S if ask_for_stacks(processes) else 0.0
        while self.clock() < ends_at and (size == before or size != _get_size(self.spec.output)):
            size = _get_size(self.spec.output)
            time.sleep(POLL_S)

    def _list_commands(self) -> tuple[StartedProgram, ...]:
        return list_started_programs(
            self._read_script(), self.spec.chdir, self.spec.args, self.environment, python_traceback.read
        )

    def _find_unproven_programs(self, commands: Sequence[StartedProgram]) -> str:
        """Return why exit code 0 does not prove that the script's programs ran; "" if it does."""
        alive = {process.pid for process in self.tree.processes()}
        return find_unproven_reason(
            commands, step_detection.list_starts(self.spec.step_dir), alive, read_tail(self.spec.output).text
        )

    def _find_ending(self, reading: StepReading, seconds: float) -> str:
        if has_forbidden_write(self.spec.step_dir) or needs_no_overlay(self.spec.step_dir):
            return "supervisor"
        if reading.parked or has_reached_steps(self.spec, reading):
            return "step"
        if self.script.poll() is not None:
            return "exit"
        return "timeout" if seconds >= self.spec.time_limit_s else ""


def read_tail(path: str, name: str = "output") -> LogTail:
    """Return the last TAIL_BYTES of a file, beginning at the start of a line."""
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            skipped = max(0, size - TAIL_BYTES)
            lines = _count_lines(path, skipped)
            stream.seek(skipped)
            raw = stream.read(TAIL_BYTES)
    except OSError as error:
        return LogTail(name=name, text=f"(the pre-run's output cannot be read: {error.strerror})")
    if skipped and b"\n" in raw:
        raw, lines = raw.partition(b"\n")[2], lines + 1
    return LogTail(name=name, text=raw.decode("utf-8", "replace"), first_line=lines + 1, truncated=skipped > 0)


def _find_failed_commands(spec: TrialSpec, ran: TrialSpec) -> tuple[FailedCommand, ...]:
    """Return the commands that failed according to the beginning and the end of the output.

    `ran`: `spec` as it was run, perhaps with a copy of the script.
    """
    with suppress(OSError):
        end = read_tail(spec.output)
        with Path(spec.output).open("rb") as stream:
            start = stream.read(TAIL_BYTES).decode("utf-8", "replace") if end.truncated else ""
        if spec.command:
            script, names = spec.command, {spec.script_name or "prerun-command": "--prerun-command"}
        else:
            script = Path(spec.script).read_text(encoding="utf-8", errors="replace")
            names = dict.fromkeys((spec.script, ran.script), spec.script_name or spec.script)
        return find_failed_commands(
            f"{start}\n{end.text}",
            script,
            names=names,
            is_file=lambda path: not path.startswith(spec.trial_dir) and os.path.isfile(os.path.join(spec.chdir, path)),  # noqa: PTH113, PTH118
        )
    return ()


def _count_lines(path: str, upto: int) -> int:
    count = 0
    with Path(path).open("rb") as stream:
        while upto > 0 and (chunk := stream.read(min(upto, 1 << 20))):
            count, upto = count + chunk.count(b"\n"), upto - len(chunk)
    return count


def _get_size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _read_last_line(path: str) -> str:
    try:
        with Path(path).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
            lines = stream.read(4096).replace(b"\r", b"\n").split(b"\n")
    except OSError:
        return ""
    last = next((line for line in reversed(lines) if line.strip()), b"")
    return last.decode("utf-8", "replace")[:500]


def _find_directory(chdir: str, output: int) -> str:
    # slurmstepd changes to /tmp and prints this message if the directory is missing (measured on 22.05.8).
    if os.path.isdir(chdir) and os.access(chdir, os.X_OK):  # noqa: PTH112
        return chdir
    os.write(output, f"slurmstepd: error: couldn't chdir to `{chdir}': going to /tmp instead\n".encode())
    return "/tmp"


def _make_not_started_result(error: OSError, command: tuple[str, ...]) -> TrialResult:
    # A batch job ends with the errno as its exit code (measured: 2 for a missing interpreter).
    text = f"slurmstepd: error: execve(): bad interpreter({command[0]}): {error.strerror}\n"
    logs = (LogTail(name="output", text=text),)
    return TrialResult(layer="exit", exit_code=error.errno or 1, logs=logs)
