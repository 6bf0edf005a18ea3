"""gsub: sbatch's own options in, the job's loop started, sbatch's own words out.

On the fast path: standard library only (no Typer, Jinja2, sqlite-utils, psutil). stdout carries what sbatch prints
there and nothing else; what gsub itself has to say goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from slurmwrap import config as configuration
from slurmwrap.cli.voice import Voice
from slurmwrap.errors import (
    NoSlurmConf,
    PrerunFailed,
    RefusedError,
    ScriptError,
    SlurmwrapError,
    StaticFailed,
    UsageError,
)
from slurmwrap.job.command_line import split_command_line
from slurmwrap.job.parse import parse_request
from slurmwrap.job.request import JobRequest
from slurmwrap.job.shape import passthrough_reason
from slurmwrap.slurm.which import slurms_own, started_with

if TYPE_CHECKING:
    from slurmwrap.prerun.verdict import Verdict

HELP = """\
gsub submits a GPU job as sbatch does, and looks after it: a bug is caught on one GPU before the cluster pays for it,
CPUs and memory are tuned to what the job needs, nodes are chosen close together, and a failure is diagnosed (and
retried, if you wish).

Usage: gsub [sbatch's options] [gsub's options] SCRIPT [ARGUMENTS]

  gsub train.sbatch                     submit; a pre-run on one GPU goes first and lets the job go when it passes
  gsub --dry-run -G 16 train.sbatch     print the whole rewritten script with a reason for each change; submit nothing
  gsub --explain train.sbatch           show old → new with the reasons, then submit
  gsub --explain --dry-run train.sbatch show that, and where the job would best run now; submit nothing
  gsub --prerun=wait train.sbatch       watch the pre-run, submit when it passes, end with 3 when it fails
  gsub --retry train.sbatch             let failures that are not yours be retried, elsewhere where that helps

gsub's own options (also as #GSUB lines in the script, or as GSUB_* variables):
  --prerun=MODE            auto: the job waits for its pre-run, 10 minutes at most, unless there is nothing to learn
                           profile: the same, always, and some minutes more to learn which CPUs the job needs
                           wait: the pre-run goes first, live; gate: the job waits without bound; off: no pre-run
                           only: the pre-run and nothing else; ends with 0 (pass), 3 (fail) or 4 (inconclusive)
  --prerun-gpus N          GPUs of the pre-run, for a job that cannot shrink to one
  --prerun-command COMMAND what the pre-run runs in the script's place
  --resource-profile NAME  keep what is learnt of this job under NAME, and use it
  --count-steps            count the real job's training steps: progress for retries, speed for its profile
  --retry, --no-retry      may this job be requeued after a failure that is not its own?
  --no-tune, --no-place    leave CPUs and memory, or nodes and switches, as asked
  --dry-run, --explain     see above
  --force                  submit although a check refuses
  --json                   with --prerun=only: the verdict as JSON

Afterwards: slurmwrap why JOBID tells what was changed, what happened and what to do; slurmwrap prerun list shows the
pre-runs. All of sbatch's options follow.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code (slurmwrap/errors.py lists them)."""
    words = list(sys.argv[1:] if argv is None else argv)
    voice = Voice.of_terminal("gsub")
    try:
        return _main(words, voice)
    except SlurmwrapError as error:
        voice.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # after sbatch was called: nothing is submitted again
        voice.fault(error)
        voice.say("it is not known how far the submission came; look with squeue --me before you try again")
        return 70


def _main(words: list[str], voice: Voice) -> int:
    if words[:1] == ["--help"]:
        sys.stdout.write(HELP + "\n")
        sys.stdout.flush()
        return _exec_sbatch(words)
    environ, stdin = dict(os.environ), _Stdin()
    try:
        here = str(Path.cwd())
    except OSError:  # the directory is gone: sbatch has words and an exit code for that
        return _unchanged(words, stdin)
    try:
        request = parse_request(words, environ=environ, cwd=here, read_script=_read_script, read_stdin=stdin.read)
    except (UsageError, ScriptError) as error:
        ours = isinstance(error, UsageError) and error.hint  # one of our own options is concerned
        if ours or _submits_nothing(words):
            raise
        return _unchanged(words, stdin)  # sbatch says it best itself
    reason = passthrough_reason(request)
    if reason is None:
        return _submit(words, request, environ, voice, stdin)
    if request.own.dry_run:
        sys.stdout.buffer.write(request.script.content)
        voice.say(f"{reason} Nothing is changed, nothing submitted.")
        return 0
    if request.own.prerun == "only":
        return _no_prerun(reason, request)
    if request.own.explain:
        voice.say(f"{reason} Submitted unchanged.")
    return _unchanged(words, stdin)


def _submit(words: list[str], request: JobRequest, environ: Mapping[str, str], voice: Voice, stdin: _Stdin) -> int:
    """The loop; whatever of ours fails before sbatch was called leaves a plain submission."""
    try:
        from slurmwrap.cli import flow

        config = configuration.load(environ)
        desk = flow.open_desk(config, environ, voice)
        prepared = flow.prepare(request, desk, voice)
    except StaticFailed as failed:
        if "only" not in (request.own.prerun, config.prerun.mode if request.own.prerun is None else ""):
            raise
        voice.error(failed)
        return flow.print_alone(cast("Verdict", failed.verdict), request.own.json)
    except (RefusedError, PrerunFailed, ScriptError, UsageError, NoSlurmConf):
        raise
    except Exception as error:
        voice.fault(error)
        if request.own.dry_run or request.own.prerun == "only":
            raise SlurmwrapError("nothing was submitted") from error
        voice.say("the job is submitted unchanged")
        return _unchanged(words, stdin)
    return flow.run(prepared, desk, voice)


def _no_prerun(reason: str, request: JobRequest) -> int:
    """--prerun=only for a call that is not for us: its verdict is that nothing is proven."""
    from slurmwrap.cli.verdicts import nothing_proven, print_alone

    return print_alone(nothing_proven(f"no pre-run: {reason}"), request.own.json)


def _submits_nothing(words: Sequence[str]) -> bool:
    """Whether the call asks only to be shown or tried: then it must not reach sbatch, whatever is wrong with it."""
    try:
        given = split_command_line(words).given
    except UsageError:
        return False
    return any(one.own and one.option in ("dry-run", "prerun") and one.value in (None, "only") for one in given)


def _unchanged(words: Sequence[str], stdin: _Stdin) -> int:
    """Hands the call to sbatch as it came, without gsub's own options."""
    with suppress(UsageError):  # sbatch refuses it, or knows a site plugin's option that we do not
        words = split_command_line(words).without_own
    return _exec_sbatch(words, stdin.content)


def _exec_sbatch(words: Sequence[str], stdin: bytes | None = None) -> int:
    """Becomes sbatch: its output, signals and exit code are the user's."""
    if stdin is not None:
        reader = os.memfd_create("script")
        os.write(reader, stdin)
        os.lseek(reader, 0, os.SEEK_SET)
        os.dup2(reader, 0)
    sys.stderr.flush()
    path = slurms_own(os.environ)
    os.execve(path, ["sbatch", *words], started_with(path, os.environ))


def _read_script(path: str) -> bytes:
    return Path(path).read_bytes()


class _Stdin:
    """The script on standard input: it can be read only once, so it is kept for a plain submission."""

    content: bytes | None = None

    def read(self) -> bytes:
        """All of it."""
        self.content = sys.stdin.buffer.read()
        return self.content


if __name__ == "__main__":
    sys.exit(main())
