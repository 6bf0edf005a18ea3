"""Repeat a call of gsub: `gsub --again 77` submits the failed tasks of array 77, or job 77, again.

The call itself is in the user's own records. How the tasks ended is read from Slurm's accounting, Slurm's present
records, the user's own database, and the site's diagnoses for this user; for each task the last run counts.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from slurmwrap.config.load_config import Config, find_user_state_dir, load
from slurmwrap.console import Console
from slurmwrap.digest import sha256_hex
from slurmwrap.errors import ScriptError, SlurmError, SlurmwrapError, StoreError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.gsub.prefetch import make_slurm_commands
from slurmwrap.host.munge import open_sealed
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import FINAL_STATES, JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Observation
from slurmwrap.model.submission import PackedArray, Submission, SubmittedCall
from slurmwrap.policy.run_from_slurm import CLOCKS_S, record_of
from slurmwrap.report.text_format import count
from slurmwrap.sbatch.array_indices import expand_indices, fold_indices, parse_indices
from slurmwrap.sbatch.command_line import ParsedOption, split_command_line
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.sacct import Sacct
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.pack_results import (
    find_array_address,
    find_member_task,
    find_slurm_state,
    read_folded_array,
    read_members,
)
from slurmwrap.store.published_files import list_trusted_uids, parse_published, read_why
from slurmwrap.store.spool_reader import MAX_ENTRIES, PlainSpool
from slurmwrap.store.user_state_files import UserState

# Parses a call: words, environment, working directory, content of standard input.
ParseCall = Callable[[Sequence[str], Mapping[str, str], str, bytes], JobRequest]

_ADDRESS = re.compile(r"(\d{1,18})(?:_(\d{1,9}))?")
# A task that ended in one of these is submitted again.
_FAILED = FINAL_STATES - {"COMPLETED", "CANCELLED", "REVOKED"}
# Options of the call that are not repeated: they were about that one call.
_DROPPED_OWN = ("force", "explain", "json")
# Sealed diagnoses that are opened; each costs a call of unmunge.
_MOST_SEALED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedCall:
    """A call that gsub makes in place of `gsub --again`. `content`: the script on standard input; None: a file."""

    words: list[str]
    cwd: str
    variables: Mapping[str, str]
    content: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSelection:
    """The tasks that are submitted again, and in words what is left out. `indices` (): a job that is no array."""

    indices: tuple[int, ...]
    left_out: str = ""


def repeat_call(words: Sequence[str], environ: Mapping[str, str], console: Console, parse: ParseCall) -> RepeatedCall:
    """Return the call that repeats the one of --again, with this call's own options after it.

    UsageError: this call is wrong. SlurmwrapError: the job cannot be repeated; the message says what is missing.
    """
    address, extra = _split_own_call(words)
    job_id, task = _parse_address(address)
    config = load(environ)
    slurm = make_slurm_commands(config, environ, console)
    state = UserState(find_user_state_dir(environ))
    submission = find_submission(state, slurm.cluster_name(), job_id)
    pack = None if submission is None or submission.pack is None else read_folded_array(submission.pack)
    jobs = [part.job_id for part in pack.parts] if pack is not None else []
    if pack is not None and job_id in jobs[1:]:
        address = find_array_address(pack, address)
        job_id, task = _parse_address(address)
        submission = find_submission(state, slurm.cluster_name(), job_id) or submission
    runs = tuple(run for one in jobs or [job_id] for run in _list_runs(one, submission, state, config, slurm, environ))
    if submission is not None and pack is not None:
        runs = tuple(_list_member_runs(submission, pack, runs))
    given = any(one.option == "array" for one in split_command_line(extra).given)
    if submission is None or submission.call is None:
        line = "" if submission is not None or not runs else _read_submit_line(job_id, slurm, config, environ)
        raise _explain_missing_call(address, submission, runs, line)
    call = submission.call
    variables = {name: value for name, value in call.variables.items() if name not in environ}
    request = _parse_stored_call(call, {**environ, **variables}, submission, parse)
    array = request.value("array") or ""
    chosen = [f"--array={_choose_tasks(address, task, array, runs, console)}"] if array and not given else []
    if not array:
        _check_single_job(address, runs, console)
    for line in find_changed_counts(request.script.content, array, chosen[0] if chosen else ""):
        console.say(line)
    if submission.script_sha256 and sha256_hex(request.script.content) != submission.script_sha256:
        console.say(f"{request.script.name} has changed since job {job_id} was submitted: it goes as it is now")
    options, rest = _split_stored_words(call.words, console)
    return RepeatedCall(
        words=[*options, *extra, *chosen, *rest],
        cwd=call.cwd,
        variables=variables,
        content=_encode_script(call) or None,
    )


def enter_call(repeated: RepeatedCall) -> None:
    """Change to the directory of the repeated call, and set its variables. Raise SlurmwrapError if that fails."""
    try:
        os.chdir(repeated.cwd)
    except OSError as error:
        raise SlurmwrapError(f"{repeated.cwd}, from where it was submitted: {error.strerror}") from None
    os.environ.update(repeated.variables)


def _split_own_call(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return (value of --again, the other options of this call)."""
    command = split_command_line(words)
    if command.script is not None or command.has("wrap") or command.hetjob:
        raise UsageError(
            "--again takes no script and no program: it submits those of the job again",
            hint="Only options may be added: gsub --again 77 --time=4:00:00",
        )
    again = [one for one in command.given if one.own and one.option == "again"]
    gone = {at for one in again for at in (one.word, one.value_word)}
    return again[-1].value or "", [word for at, word in enumerate(words) if at not in gone and word != "--"]


def _parse_address(address: str) -> tuple[int, int | None]:
    found = _ADDRESS.fullmatch(address)
    if found is None or not address.isascii():
        raise UsageError(f"--again: '{address}' is no job", hint="It takes 81, 77 for an array, or 77_3 for one task.")
    return int(found[1]), None if found[2] is None else int(found[2])


def find_submission(state: UserState, cluster: str, job_id: int) -> Submission | None:
    """Return this user's newest submission of the job, also one that no reconcile has stored yet."""
    found = state.submissions_of(cluster, [job_id]).get(job_id)
    if found is not None:
        return found
    fresh = [one for one in _list_spooled(state) if (one.cluster, one.job_id) == (cluster, job_id)]
    return max(fresh, key=lambda one: one.at, default=None)


def _list_spooled(state: UserState) -> Iterator[Submission]:
    for entry in PlainSpool(state.spool).collect(limit=MAX_ENTRIES):
        if isinstance(entry.item, Observation) and "submission" in entry.item.facts:
            with suppress(ValueError):
                yield record_from_json(Submission, entry.item.facts["submission"])


def _list_runs(
    job_id: int,
    submission: Submission | None,
    state: UserState,
    config: Config,
    slurm: SlurmCommands,
    environ: Mapping[str, str],
) -> Iterator[JobRun]:
    """Yield all known runs of the job or of the array's tasks. What cannot be read is left out."""
    since = submission.at - CLOCKS_S if submission is not None else 0.0
    cluster = slurm.cluster_name()
    records: list[JobRecord] = []
    with suppress(SlurmError):
        if Sacct.is_there(slurm.config()):
            records += Sacct(environ, timeout_s=config.slurm_timeout_s).runs([job_id])
    with suppress(SlurmError):
        records += slurm.jobs(_find_own_name())
    stored: list[JobRun] = []
    with suppress(StoreError):
        if state.has_database():
            with Database.open(state.database, readonly=True) as database:
                stored += database.attempts_of(str(job_id))
    with suppress(StoreError):
        stored += _read_sealed(config)
    # Slurm's records come last: of two records of one run the later one counts.
    for run in (*stored, *(record_of(one, cluster) for one in records)):
        mine = run.attempt.cluster == cluster and run.uid == os.geteuid()
        if mine and run.address.partition("_")[0] == str(job_id) and run.attempt.submit_time >= since:
            yield run


def _find_own_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _read_sealed(config: Config) -> Iterator[JobRun]:
    if not config.site.published:
        return
    unseal = partial(open_sealed, socket=config.site.munge_socket)
    for plain in read_why(Path(config.site.published), None, unseal, list_trusted_uids(config), limit=_MOST_SEALED):
        with suppress(ValueError):
            yield parse_published(plain)[0]


def _list_member_runs(submission: Submission, pack: PackedArray, runs: Sequence[JobRun]) -> Iterator[JobRun]:
    """Yield a run for each member of a packed array, in place of the runs of its tasks."""
    last = {run.address: run for run in sorted(runs, key=lambda run: run.attempt.submit_time)}
    members = {one.index: one for one in read_members(pack)}
    job = submission.job_id
    for index in expand_indices(pack.array):
        # Tasks that never started share one record, without an index.
        address = find_member_task(pack, job, index) or ""
        task, member = last.get(address, last.get(address.partition("_")[0])), members.get(index)
        if task is None and member is None:
            continue
        key = RunKey(cluster=submission.cluster, job_id=job, submit_time=int(submission.at))
        run = task or JobRun(attempt=key, uid=submission.uid)
        state = run.state if member is None else find_slurm_state(member, run.state)
        yield replace(run, address=f"{job}_{index}", state=state)


def find_last_states(runs: Iterable[JobRun]) -> dict[int | None, str]:
    """Return the state of the last run of each task; "" if it has not ended. None stands for a job without tasks."""
    last: dict[int | None, JobRun] = {}
    for run in runs:
        _, _, task = run.address.partition("_")
        index = int(task) if task.isdecimal() else None
        if index not in last or run.attempt.submit_time >= last[index].attempt.submit_time:
            last[index] = run
    return {index: run.state if run.state in FINAL_STATES else "" for index, run in last.items()}


def select_failed_tasks(array: str, states: Mapping[int | None, str]) -> TaskSelection:
    """Return the failed tasks; all of them if the whole array was cancelled before any of them ran to its end.

    `array`: the value of --array with which it was submitted.
    """
    every = expand_indices(array)
    # Tasks that never started share one record, without an index.
    rest = states.get(None)
    known = {index: states.get(index, rest) for index in every}
    failed = tuple(index for index in every if known[index] in _FAILED)
    if not failed and every and all(state == "CANCELLED" for state in known.values()):
        return TaskSelection(indices=every)
    words = {"COMPLETED": "completed", "CANCELLED": "cancelled", "": "not ended", None: "unknown"}
    others = Counter(words.get(state, "unknown") for state in known.values() if state not in _FAILED)
    return TaskSelection(
        indices=failed, left_out=", ".join(f"{others[word]} {word}" for word in _ORDER if others[word])
    )


_ORDER = ("completed", "cancelled", "not ended", "unknown")


def _choose_tasks(address: str, task: int | None, array: str, runs: Sequence[JobRun], console: Console) -> str:
    """Return the value of --array for the tasks of an array that are submitted again."""
    states = find_last_states(runs)
    limit = array.partition("%")[2]
    if task is not None:
        if task not in expand_indices(array):
            raise UsageError(f"--again {address}: the array has no such task", hint=f"It was submitted with {array}.")
        _check_ended(address, states.get(task, states.get(None)), console)
        return str(task)
    chosen = select_failed_tasks(array, states)
    if not chosen.indices:
        raise SlurmwrapError(
            f"no task of array {address} failed, as far as is known: {chosen.left_out}",
            hint=f"Name the tasks: gsub --again {address} --array=3,17",
        )
    folded = fold_indices(chosen.indices)
    left_out = f" ({chosen.left_out}: left out)" if chosen.left_out else ""
    console.say(f"array {address}: {count(len(chosen.indices), 'task')} again, {folded}{left_out}")
    return f"{folded}%{limit}" if limit else folded


def find_changed_counts(script: bytes, array: str, option: str) -> tuple[str, ...]:
    """Return a warning for each variable of the array that the script uses and that has another value now.

    A script that divides its work by SLURM_ARRAY_TASK_COUNT does other work in an array of fewer tasks. `option`:
    --array of the new call.
    """
    before, after = parse_indices(array), parse_indices(option.partition("=")[2])
    if before is None or after is None:
        return ()
    old, new = before.environment(), after.environment()
    return tuple(
        f"the script uses {name}, which is {new[name]} now and was {old[name]}"
        for name in old
        if name != "SLURM_ARRAY_TASK_ID" and new[name] != old[name] and name.encode() in script
    )


def _check_single_job(address: str, runs: Sequence[JobRun], console: Console) -> None:
    if "_" in address:
        raise UsageError(f"--again {address}: job {address.partition('_')[0]} is no array")
    _check_ended(address, find_last_states(runs).get(None), console)


def _check_ended(address: str, state: str | None, console: Console) -> None:
    """Raise SlurmwrapError for a job that has not ended; say so if it did not fail."""
    if state == "":
        raise SlurmwrapError(
            f"job {address} has not ended", hint=f"Cancel it first (scancel {address}), or submit its script anew."
        )
    if state is None:
        console.say(f"how job {address} ended is not known")
    elif state not in _FAILED:
        console.say(f"job {address} did not fail (Slurm says {state}); it is submitted again")


def _parse_stored_call(
    call: SubmittedCall, environ: Mapping[str, str], submission: Submission, parse: ParseCall
) -> JobRequest:
    try:
        return parse(call.words, environ, call.cwd, _encode_script(call))
    except ScriptError as error:
        job_id = submission.job_id
        file = submission.script_path or "the script"
        raise ScriptError(
            f"the script of job {job_id} cannot be submitted again: {error}",
            hint=f"Slurm may have it for some minutes: scontrol write batch_script {job_id} {file}",
        ) from None


def _encode_script(call: SubmittedCall) -> bytes:
    return call.script.encode("utf-8", "surrogateescape")


def _split_stored_words(words: Sequence[str], console: Console) -> tuple[list[str], list[str]]:
    """Return (options, script and arguments), without options that were about that one call."""
    command = split_command_line(words)
    dropped = [one for one in command.given if _is_dropped(one, words)]
    gone = {at for one in dropped for at in (one.word, one.value_word)}
    for one in dropped:
        if not one.own:
            console.say(f"without --{one.option}={one.value}, which was about the first submission")
    end = len(words) - len(command.args) - (command.script is not None)
    options = [word for at, word in enumerate(words[:end]) if at not in gone]
    rest = list(words[end:])
    if options and options[-1] == "--":
        options.pop()
        rest.insert(0, "--")
    return options, rest


def _is_dropped(one: ParsedOption, words: Sequence[str]) -> bool:
    """Return whether an option is not repeated: a dependency and a begin were about the first submission."""
    if one.own:
        return one.option in _DROPPED_OWN
    # A letter behind others in one word cannot be removed alone.
    alone = words[one.word].startswith("--") or one.value_word != one.word or one.value_at == 2
    return alone and (one.option == "begin" or (one.option == "dependency" and one.value != "singleton"))


def _read_submit_line(job_id: int, slurm: SlurmCommands, config: Config, environ: Mapping[str, str]) -> str:
    """Return the command line in Slurm's accounting; "" without one. It has no quotes, so it cannot be repeated."""
    with suppress(SlurmError):
        if Sacct.is_there(slurm.config()):
            return Sacct(environ, timeout_s=config.slurm_timeout_s).submit_line(job_id)
    return ""


def _explain_missing_call(
    address: str, submission: Submission | None, runs: Sequence[JobRun], line: str
) -> SlurmwrapError:
    """Return the error for a job whose call is not known, with the command that the user can complete.

    `line`: the command line as Slurm has it.
    """
    failed = fold_indices(i for i, state in find_last_states(runs).items() if i is not None and state in _FAILED)
    tasks = f"--array={failed} " if failed else ""
    script = submission.script_path if submission is not None and submission.script_path else "SCRIPT"
    if submission is None and not runs:
        return SlurmwrapError(
            f"nothing is known of a job {address} of yours", hint="slurmwrap history lists your jobs."
        )
    what = "was not submitted with gsub" if submission is None else "was submitted by an older gsub"
    return SlurmwrapError(
        f"job {address} {what}, so its options and arguments are not known",
        hint=f"Add them to this: gsub {tasks}{script}" + (f"  (Slurm has, without quotes: {line})" if line else ""),
    )
