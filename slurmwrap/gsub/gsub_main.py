"""The command line of gsub: parse the call, choose between plain sbatch and a submission by slurmwrap, and run it.

This module is on the fast path: standard library only (no Typer, Jinja2, sqlite-utils, psutil). stdout carries what
sbatch prints there and nothing else; gsub's own messages go to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurmwrap import timing
from slurmwrap.config import load_config as configuration
from slurmwrap.console import Console
from slurmwrap.errors import (
    NoSlurmConf,
    PrerunFailed,
    RefusedError,
    ScriptError,
    SlurmUnreachable,
    SlurmwrapError,
    StaticFailed,
    UnknownOption,
    UsageError,
)
from slurmwrap.gsub import process_env
from slurmwrap.gsub.exec_sbatch import exec_sbatch, refill_pipe
from slurmwrap.sbatch.command_line import Names, add_plugin_names, parse_own_options, select_words_for_sbatch
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.option_table import AUTO_PARTITION, MAKING
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.passthrough import (
    find_passthrough_reason,
    find_prerun_reason,
    find_site_reason,
    find_switch_off_reason,
    is_switched_on,
    may_need_splitting,
    open_file,
    remove_outer_job,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext
    from slurmwrap.model.verdict import Verdict
    from slurmwrap.sbatch.option_table import SbatchOption

HELP = """\
gsub submits a GPU job as sbatch does, and looks after it: a bug is caught on one GPU before the cluster pays for it,
CPUs and memory are tuned to what the job needs, nodes are chosen close together, and a failure is diagnosed (and
retried, if you wish).

  gsub [sbatch's options] [gsub's options] SCRIPT [ARGUMENTS]

  gsub train.sbatch                     submit; a pre-run on one GPU goes first and releases the job when it passes
  gsub --dry-run -G 16 train.sbatch     print the whole rewritten script with a reason for each change; submit nothing
  gsub --explain train.sbatch           show old → new with the reasons, then submit
  gsub --explain --dry-run train.sbatch show that, and where the job would best run now; submit nothing
  gsub --prerun=wait train.sbatch       watch the pre-run, submit when it passes, end with 3 when it fails
  gsub --retry train.sbatch             let failures that are not yours be retried, elsewhere where that helps
  gsub --again 77                       the failed tasks of array 77 again, by the same call; or job 77
  gsub --partition=auto train.sbatch    choose the partitions in which it may start earliest
  gsub --pack=4 --array=0-31 sweep.sbatch               four tasks of the array side by side on each GPU
  gsub --template torchrun -G 16 train.py --lr 3e-4     make the batch script from a template, and submit it
  gsub new --template torchrun -G 16 train.py           write it to train.sbatch (gsub --template list shows them all)

gsub's own options (also as #GSUB lines in the script, or as GSUB_* variables):
  --prerun=MODE            auto: the job waits for its pre-run, 10 minutes at most, unless there is nothing to learn
                           (it passed or completed before, or does not train); given explicitly, only a pass counts
                           profile: the same, always, and some minutes more to learn which CPUs the job needs
                           wait: the pre-run goes first, live; gate: the job waits without bound; off: no pre-run
                           only: the pre-run and nothing else; ends with 0 (pass), 3 (fail) or 4 (inconclusive)
  --prerun-gpus N          GPUs of the pre-run, for a job that cannot shrink to one
  --prerun-steps N         training steps that the pre-run must reach, 3 by default: to find what fails later
  --rehearse MODE          on: after these steps the pre-run goes on with shortened epochs, for 2 minutes at most, so
                           that validation, checkpoints and the end are executed; off: it stops after the steps
                           resume: as on, then the script is started again, as after a requeue
  --resume-args ARGS       the same, with these arguments added: --resume-args='--resume out/last.pt'
  --prerun-command COMMAND what the pre-run runs in the script's place
  --pack[=K|auto]          run K tasks of the array side by side on each GPU; auto, the default: as the pre-run of
                           the job measures it; --pack=4,mps: with NVIDIA's MPS
  --share                  let the job share its GPU with another --share job of yours, where both are expected to do
                           more together than one after the other (docs/sharing.md)
  --resource-profile NAME  store the measured needs of this job under NAME, and use them
  --count-steps            count the real job's training steps: progress for retries, speed for its profile
  --stop-at PLATEAU        stop the running job at its PLATEAU and next checkpoint, by its --signal or scancel; in
                           plateau:0.1%/20% its loss falls by less than 0.1 % in the last 20 % of the steps
  --stop-when diverged     stop it when its loss stays NaN or infinite
  --preemptible[=SIGNAL@SECONDS]
                           it may be taken from its GPUs for other jobs and continued later: after this signal and so
                           many seconds for a checkpoint; without a value, at a checkpoint that it writes anyway
  --lease TIME             after this time it leaves its GPUs at a checkpoint if another job waits for them: --lease=2h
  --retry, --no-retry      may this job be requeued after a failure that is not its own?
  --retry-on LIST          run it again after these exit codes and signals of its own: --retry-on=93,SIGUSR1
  --again JOB              repeat the call that submitted JOB: an array's failed tasks alone; options may be added
  --no-tune, --no-place    leave CPUs and memory, or nodes and switches, as asked
  --dry-run, --explain     see above
  --force                  submit although a check refuses
  --json                   one JSON object on standard output in place of sbatch's line: the job, its pre-run, what was
                           changed and why; with --prerun=only: the verdict
  --template NAME          make the script that starts the program: torchrun, srun, accelerate, deepspeed, jax, array
  --values A,B,C           with --template=array: a task for each; {} in the program's arguments stands for it
  --values-file FILE       the same for each line of FILE; {1}, {2} stand for its words, {@} for all of them

--partition=auto submits the job to all partitions that you may use and that it fits, but to none in which jobs are
stopped for others, billed higher or get other GPUs; the earliest expected start is first (docs/placement.md).

An array with indices beyond Slurm's MaxArraySize is submitted as several arrays, which slurmwrap shows as one.

Afterwards: slurmwrap why JOBID shows what was changed, what happened and what to do; slurmwrap prerun list shows the
pre-runs. sbatch's own options stand above.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run gsub and return its exit code (slurmwrap/errors.py lists them)."""
    process_env.normalize_process()
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console.of_terminal("gsub")
    try:
        return process_env.end_by_exit_code(_run_gsub(words, console))
    except SlurmwrapError as error:
        console.error(error)
        _print_json_error(words, error)
        return error.exit_code
    except KeyboardInterrupt:
        process_env.end_by_interrupt()
    except Exception as error:
        # sbatch may have been called already. A second submission could duplicate the job, so there is none.
        console.fault(error)
        console.say("it is not known whether the job was submitted")
        console.say("look with squeue --me before you try again")
        return 70


def _print_json_error(words: list[str], error: SlurmwrapError) -> None:
    """Print `error` to stdout too if --json was given, in the JSON format of all slurmwrap commands."""
    if any(one.option == "json" for one in parse_own_options(words)):
        from slurmwrap.json_output import format_json_error

        # If stdout is not usable, the exit code still reports the error.
        with suppress(OSError, ValueError):
            print(format_json_error(type(error).__name__, str(error), error.hint, error.exit_code), flush=True)


def _run_gsub(words: list[str], console: Console) -> int:
    environ, stdin = dict(os.environ), _Stdin()
    if "SLURMWRAP_COMPLETE" in environ and not words:
        from slurmwrap.gsub.recent_runs import print_recent

        return print_recent(environ)
    off = find_switch_off_reason(environ)
    if words[:1] == ["new"]:
        from slurmwrap.gsub import new_script

        if new_script.is_new_command(words, environ):
            return new_script.write_new_script(words[1:], environ, console)
    if off and not _has_gsub_option(words, environ):
        return exec_sbatch(words)
    try:
        work_dir = os.getcwd()
    except OSError:
        # The working directory was removed: sbatch reports that with its own message and exit code.
        return _pass_unchanged(words, stdin)
    if _has_again_option(words):
        from slurmwrap.gsub.resubmission import enter_call, repeat_call

        repeated = repeat_call(words, environ, console, _parse_stored_call)
        enter_call(repeated)
        words, work_dir, stdin.content = repeated.words, repeated.cwd, repeated.content
        environ.update(repeated.variables)
    if _has_template_option(words):
        from slurmwrap.gsub.new_script import make_from_template

        made = make_from_template(words, environ, console)
        if made is None:
            return 0
        words, stdin.content = made.words, made.content
    try:
        request = _parse_call(words, environ, work_dir, stdin)
    except (UsageError, ScriptError) as error:
        # A UsageError with a hint concerns one of gsub's own options. sbatch itself reports all other errors.
        is_own_option = isinstance(error, UsageError) and error.hint
        if is_own_option or _is_only_shown(words, environ):
            raise
        return _pass_unchanged(words, stdin)
    except Exception as error:
        return _fall_back_after_fault(error, _is_only_shown(words, environ), words, console, stdin)
    asked = next((s.option for s in request.settings if s.option in ("help", "usage", "version")), None)
    if asked and not off:
        from slurmwrap.gsub.help_output import run_help_of_sbatch

        return run_help_of_sbatch(select_words_for_sbatch(words), asked, HELP)
    if request.setting("dependency") is not None and not off and not find_prerun_reason(environ):
        from slurmwrap.gsub.pack_dependency import adapt_call

        try:
            adapted = adapt_call(words, request, environ, console)
            if adapted is not None:
                words, request = adapted, _parse_call(adapted, environ, work_dir, stdin)
        except RefusedError:
            raise
        except Exception as error:
            return _fall_back_after_fault(error, _is_only_shown(words, environ), words, console, stdin)
    if request.value("partition") == AUTO_PARTITION and not off and not find_prerun_reason(environ):
        chosen = _choose_partition(words, request, environ, console)
        words, request = chosen if chosen is not None else (words, request)
    reason = (
        off or find_prerun_reason(environ) or find_passthrough_reason(request, at_terminal=process_env.is_at_terminal())
    )
    timing.reached("parse")
    if reason is None or may_need_splitting(request, reason):
        return _submit(words, request, remove_outer_job(environ), console, stdin, reason)
    return _pass_with_reason(reason, words, request, console, stdin)


def _choose_partition(
    words: list[str], request: JobRequest, environ: Mapping[str, str], console: Console
) -> tuple[list[str], JobRequest] | None:
    """Return the call with partitions for --partition=auto; None if it is the name of one. Raise SlurmwrapError."""
    from slurmwrap.gsub.choose_partition import choose_partition  # few calls use it
    from slurmwrap.gsub.prefetch import ask
    from slurmwrap.gsub.submit import open_submit_context

    def open_context() -> SubmitContext:
        config, given = configuration.load(environ), remove_outer_job(environ)
        return open_submit_context(config, given, console, ask(config, given, console))

    try:
        return choose_partition(words, request, open_context)
    except SlurmwrapError:
        raise
    except Exception as error:
        # sbatch would take the word for a name.
        console.fault(error)
        raise SlurmwrapError(
            "--partition=auto: no partition was chosen, so nothing was submitted", hint="Name one: --partition=NAME."
        ) from error


def _parse_call(words: Sequence[str], environ: Mapping[str, str], work_dir: str, stdin: _Stdin) -> JobRequest:
    """Parse the call by slurmwrap's table of sbatch's options.

    Only if an option is not in the table, sbatch is asked which options the site's plugins add.
    """
    script = b""

    def read(path: str) -> bytes:
        nonlocal script
        script = _read_script(path)
        return script

    def parsed(extra: Sequence[SbatchOption] = ()) -> JobRequest:
        return parse_request(words, environ=environ, cwd=work_dir, read_script=read, read_stdin=stdin.read, extra=extra)

    try:
        return parsed()
    except UnknownOption:
        from slurmwrap.slurm.plugin_options import PluginOptions, list_directive_words

        plugins = PluginOptions(environ)
        if not plugins.names:
            raise
    # Once the plugin options of the command line are known, the parser finds and reads the script. Its directives may
    # use further plugin options, so the call is parsed a second time.
    with suppress(UsageError, ScriptError):
        parsed(plugins.used_in(words))
    return parsed(plugins.used_in((*words, *list_directive_words(script or stdin.content or b""))))


def _parse_stored_call(words: Sequence[str], environ: Mapping[str, str], work_dir: str, content: bytes) -> JobRequest:
    """Parse an earlier call. `content`: what it read from standard input."""
    stdin = _Stdin()
    stdin.content = content
    return _parse_call(words, environ, work_dir, stdin)


def _pass_with_reason(reason: str, words: list[str], request: JobRequest, console: Console, stdin: _Stdin) -> int:
    """Pass the call to plain sbatch. Print `reason` only if the user asked for an explanation or a dry run."""
    wrapped = "--pack" if request.own.pack else "--share" if request.own.share else ""
    if wrapped and not find_prerun_reason(os.environ):
        raise RefusedError(
            f"{wrapped}: this call would go to sbatch unchanged. {reason}", hint=f"Submit it without {wrapped}."
        )
    if request.own.dry_run:
        _reject_json_of_dry_run(request)
        sys.stdout.buffer.write(request.script.content)
        console.say(f"{reason} Nothing is changed, nothing submitted.")
        return 0
    if request.own.prerun == "only":
        return _report_no_prerun(reason, request)
    if request.own.json:
        raise UsageError(
            f"--json: this call goes to sbatch unchanged, which prints no JSON. {reason}",
            hint="Leave out --json; --parsable prints the job's number alone.",
        )
    elsewhere = _goes_to_other_cluster(request)
    if request.own.explain and not elsewhere:
        console.say(f"{reason} Submitted unchanged.")
    names = add_plugin_names(request.plugin_options)
    if elsewhere:
        from slurmwrap.gsub.other_cluster import submit_to_other_cluster  # few calls use it

        silent = not request.own.explain and any(map(request.setting, ("quiet", "parsable")))
        remark = "" if silent else f"{reason} The call goes to sbatch unchanged."
        call = select_words_for_sbatch(words, names)
        return submit_to_other_cluster(call, request, dict(os.environ), console, remark)
    return _pass_unchanged(words, stdin, names)


def _goes_to_other_cluster(request: JobRequest) -> bool:
    """Return whether a job with GPUs may go to another cluster, and sbatch says at once which one took it."""
    unlike = ("wait", "test-only", "help", "usage", "version", "autocomplete")
    plain = not request.hetjob and not any(map(request.setting, unlike)) and not request.environ.get("SLURM_JOB_ID")
    return plain and request.setting("clusters") is not None and request.shape.gpus > 0


def _submit(
    words: list[str],
    request: JobRequest,
    environ: Mapping[str, str],
    console: Console,
    stdin: _Stdin,
    unchanged: str | None = None,
) -> int:
    """Prepare and submit the job. If slurmwrap fails before sbatch was called, submit the job unchanged.

    `unchanged`: why it goes to sbatch unchanged unless it is an array that must be split; None: it does not.
    """
    submit_nothing = request.own.dry_run or request.own.prerun == "only"
    _reject_json_of_dry_run(request)
    try:
        config = configuration.load(environ)
        reason = _find_switch_reason(config, console) or find_site_reason(
            request, config.submit, _get_user_name() if config.submit.pass_users else ""
        )
    except Exception as error:
        return _fall_back_after_fault(error, submit_nothing, words, console, stdin)
    if reason is not None and not may_need_splitting(request, reason):
        return _pass_with_reason(reason, words, request, console, stdin)
    unchanged = unchanged or reason
    try:
        from slurmwrap.gsub.prefetch import ask

        timing.reached("configuration")
        # Slurm answers while the next import loads the modules that use the answer.
        slurm = ask(config, environ, console)
        timing.reached("ask Slurm")
        from slurmwrap.gsub import submit

        timing.reached("load what plans")
        context = submit.open_submit_context(config, environ, console, slurm)
        prepared: PreparedJob | None
        if unchanged is None:
            prepared = submit.prepare_and_warn(request, context, console)
        else:
            from slurmwrap.gsub.pack_submission import prepare_split_array

            prepared = prepare_split_array(request, context, unchanged)
    except StaticFailed as failed:
        if "only" not in (request.own.prerun, config.prerun.mode if request.own.prerun is None else ""):
            raise
        console.error(failed)
        from typing import cast

        from slurmwrap.gsub.verdict_output import print_alone

        return print_alone(cast("Verdict", failed.verdict), request.own.json)
    except (RefusedError, PrerunFailed, ScriptError, UsageError, NoSlurmConf):
        raise
    except Exception as error:
        return _fall_back_after_fault(error, submit_nothing, words, console, stdin)
    if prepared is None:
        return _pass_with_reason(unchanged or "", words, request, console, stdin)
    return submit.run(prepared, context, console)


def _find_switch_reason(config: configuration.Config, console: Console) -> str | None:
    """Return the reason if an administrator switched slurmwrap off, and print it for a person at a terminal."""
    # Not needed by the many calls that are passed on before the configuration is read.
    from slurmwrap.store.site_switch import read_site_switch

    switch = read_site_switch(config)
    if switch is None:
        return None
    if process_env.is_at_terminal():
        console.say(f"slurmwrap is switched off at this site ({switch.describe()}): the call goes to sbatch unchanged")
    return f"slurmwrap is switched off at this site ({switch.describe()})."


def _reject_json_of_dry_run(request: JobRequest) -> None:
    if request.own.json and request.own.dry_run:
        raise UsageError("--json: --dry-run prints a batch script", hint="Leave out one of the two.")


def _fall_back_after_fault(
    error: Exception, submit_nothing: bool, words: Sequence[str], console: Console, stdin: _Stdin
) -> int:
    """Submit the job unchanged after slurmwrap failed before calling sbatch; raise an error if `submit_nothing`."""
    silent = isinstance(error, SlurmUnreachable)
    if silent and not submit_nothing:
        console.say(f"Slurm did not answer ({error}); the job is handed to sbatch unchanged")
        return _pass_unchanged(words, stdin)
    console.fault(error)
    if submit_nothing:
        raise SlurmwrapError("nothing was submitted") from error
    console.say("the job is handed to sbatch unchanged")
    return _pass_unchanged(words, stdin)


def _get_user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _report_no_prerun(reason: str, request: JobRequest) -> int:
    """Print an inconclusive verdict for --prerun=only in a call that slurmwrap passes on to sbatch."""
    from slurmwrap.gsub.verdict_output import make_unproven_verdict, print_alone

    return print_alone(make_unproven_verdict(f"no pre-run: {reason}"), request.own.json)


def _is_only_shown(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether the call is a dry run or --prerun=only. Such a call must never reach sbatch, even if invalid."""
    if environ.get("GSUB_PRERUN") == "only" or is_switched_on(environ, "GSUB_DRY_RUN"):
        return True
    return any(one.option in ("dry-run", "prerun") and one.value in (None, "only") for one in parse_own_options(words))


def _has_again_option(words: Sequence[str]) -> bool:
    """Return whether gsub must repeat an earlier call (gsub/resubmission.py)."""
    has_such_word = any(word.startswith("--again") for word in words)
    return has_such_word and any(one.option == "again" for one in parse_own_options(words))


def _has_template_option(words: Sequence[str]) -> bool:
    """Return whether gsub must generate the script from a template (sbatch/launch_templates.py).

    The program's own arguments do not count.
    """
    has_such_word = any(word.startswith(("--template", "--values")) for word in words)
    return has_such_word and any(one.option in MAKING for one in parse_own_options(words))


def _has_gsub_option(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether the call has one of gsub's own options: then it is parsed although gsub is switched off."""
    return bool(parse_own_options(words)) or _is_only_shown(words, environ)


def _pass_unchanged(words: Sequence[str], stdin: _Stdin, names: Names | None = None) -> int:
    """Replace this process by sbatch, with the words of the call except gsub's own options."""
    return exec_sbatch(select_words_for_sbatch(words, names), stdin.content)


def _read_script(path: str) -> bytes:
    if open_file(path) is None and _can_be_read_once(path):
        # sbatch would read it a second time and block forever.
        raise ScriptError(f"{path} cannot be read twice: it is no regular file")
    with open(path, "rb") as file:
        content = file.read()
    descriptor = open_file(path)
    if descriptor is not None:
        refill_pipe(descriptor, content)
    return content


def _can_be_read_once(path: str) -> bool:
    """Return whether `path` is a named pipe or a character device such as a terminal."""
    # File type bits as literals, so that the module `stat` need not be imported.
    kind = os.stat(path).st_mode & 0o170000
    return kind in (0o010000, 0o020000)


class _Stdin:
    """The batch script on standard input. It can be read only once, so its content is kept for a plain submission."""

    content: bytes | None = None

    def read(self) -> bytes:
        """Return the whole script."""
        if self.content is None:
            # On a terminal, tell the user that gsub waits for input.
            if os.isatty(0) and os.isatty(2):
                Console.of_terminal("gsub").say("reading the batch script from standard input; end it with Ctrl-D")
            self.content = sys.stdin.buffer.read()
        return self.content


if __name__ == "__main__":
    sys.exit(main())
