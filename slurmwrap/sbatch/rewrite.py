"""JobRequest + Wishes → BatchScript, the rewritten job as people are shown it; and the words that are submitted. Pure.

In the rewrite each value is changed where the user set it, and what we add goes on the command line; the script keeps
its lines, and every byte outside of changed `#SBATCH` words (`explain.py` prints it). `list_submitted_options` asks for
the same with the user's script and variables as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange, Origin, RequestChange, SbatchSetting
from slurmwrap.sbatch.option_table import BY_NAME, EXCLUSIVE_GROUPS, NONE, OPPOSITES, OPTIONAL, REQUIRED
from slurmwrap.sbatch.resource_shape import find_memory_in_force
from slurmwrap.sbatch.script_directives import quote_word, replace_spans

# Change.where of what the user had not set.
ADDED = "added"
# Change.where of a wish that only explains why something unset stays unset.
KEPT = "kept"

# This variable takes a count alone, --switches also count@time (sbatch 22.05.8: Invalid numeric value "1@10").
_NOT_IN_ENVIRONMENT = frozenset({"SBATCH_REQ_SWITCH"})


def render(request: JobRequest, wishes: Sequence[OptionChange], *, added: Sequence[OptionChange] = ()) -> BatchScript:
    """The job with the wishes granted. A wish for what is already in force changes nothing and is not listed.

    `wishes` change what the user set, or add to it; `added` are put on the command line even where the user set them
    elsewhere, and win there (a later --begin, for instance). ValueError for a wish that no sbatch would take next to
    what is set: ask `conflict` first. Callers convert to the user's own unit.
    """
    state = _Rewrite(request)
    for wish in wishes:
        state.grant(wish, in_place=True)
    for wish in added:
        state.grant(wish, in_place=False)
    return state.finished()


def find_conflict(request: JobRequest, option: str) -> str | None:
    """Why `option` must not be set next to what the user set, in one sentence; None when it may be."""
    if option not in BY_NAME:
        return f"sbatch has no option --{option}."
    return _find_setting_conflict(request.settings, option)


def list_submitted_options(request: JobRequest, batch: BatchScript) -> tuple[str, ...]:
    """The options of the call that really submits: the user's own words, then each change, which wins there.

    The user's script and variables go as they are. Otherwise Command= would name slurmwrap's copy, where many a
    script looks for its own directory, and the job would see other SBATCH_* variables than they set.
    """
    if request.words is None:
        return batch.options
    changed = [change for change in batch.changes if change.new is not None and change.new != change.old]
    return (*request.words, *(_spell_change(change) for change in changed), *request.components)


def _spell_change(change: RequestChange) -> str:
    flag = not change.new and BY_NAME[change.option].argument is not REQUIRED
    return spell(change.option, None if flag else change.new)


def spell(option: str, value: str | None) -> str:
    """One option as one argument of a command line: `--mem=180G`, `--hold`."""
    return f"--{option}" if value is None else f"--{option}={value}"


class _Rewrite:
    """The request while wishes are granted one by one."""

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._settings = list(request.settings)
        self._spans: dict[tuple[int, int], bytes] = {}
        self._environ: dict[str, str] = {}
        self._changes: list[RequestChange] = []

    def grant(self, wish: OptionChange, *, in_place: bool) -> None:
        at = self._index(wish.option)
        old = None if at is None else _format_value_in_force(self._settings[at])
        if wish.value is None:
            where = KEPT if at is None else self._settings[at].where
            self._changes.append(RequestChange(option=wish.option, old=old, new=old, where=where, reason=wish.reason))
            return
        new = self._check_change(wish)
        if at is not None and old == wish.value:
            return
        if at is not None and (in_place or self._settings[at].origin is Origin.COMMAND_LINE):
            where = self._change(at, new)
        else:
            where = self._add(wish.option, new)
        self._changes.append(
            RequestChange(option=wish.option, old=old, new=wish.value, where=where, reason=wish.reason)
        )

    def finished(self) -> BatchScript:
        return BatchScript(
            content=replace_spans(self._request.script.content, self._spans),
            options=(
                *(spell(s.option, s.value) for s in self._settings if s.origin is Origin.COMMAND_LINE),
                # Behind what we add: that is for the first component, or for the whole job.
                *self._request.components,
            ),
            args=self._request.args,
            environ=self._environ,
            changes=tuple(self._changes),
        )

    def _index(self, option: str) -> int | None:
        """Which setting of `option` is in force; None also when its opposite was said later."""
        asked = (option, OPPOSITES.get(option))
        last = next((i for i in reversed(range(len(self._settings))) if self._settings[i].option in asked), None)
        return last if last is not None and self._settings[last].option == option else None

    def _check_change(self, wish: OptionChange) -> str | None:
        """The value to write: None for a flag."""
        known = BY_NAME.get(wish.option)
        if known is None:
            raise ValueError(f"sbatch has no option --{wish.option}")
        reason = _find_setting_conflict(self._settings, wish.option)
        if reason:
            raise ValueError(f"{reason} Not granted: {spell(wish.option, wish.value)} ({wish.reason})")
        if known.argument is NONE and wish.value:
            raise ValueError(f"--{wish.option} is a flag and takes no value: {wish.value!r}")
        flag = known.argument is NONE or (known.argument is OPTIONAL and not wish.value)
        return None if flag else wish.value

    def _change(self, at: int, value: str | None) -> str:
        """Writes a new value where the old one stands; says where."""
        setting = self._settings[at]
        if setting.origin is Origin.ENVIRONMENT and setting.where in _NOT_IN_ENVIRONMENT:
            return self._add(setting.option, value)
        if setting.origin is Origin.ENVIRONMENT:
            self._environ[setting.where] = value or ""
        elif setting.origin is Origin.SCRIPT:
            if setting.span is None:
                raise ValueError(f"{setting.where}: the place of --{setting.option} in the script is not known")
            self._spans[setting.span] = _rewrite_word(self._request.script.content, setting, value)
        self._settings[at] = replace(setting, value=value)
        return setting.where

    def _add(self, option: str, value: str | None) -> str:
        self._settings.append(SbatchSetting(option=option, value=value, origin=Origin.COMMAND_LINE, where=ADDED))
        return ADDED


def _format_value_in_force(setting: SbatchSetting) -> str:
    """The value in force; "" for a flag or an optional value left out."""
    return setting.value or ""


def _rewrite_word(content: bytes, setting: SbatchSetting, value: str | None) -> bytes:
    """The script's argument with its value changed; its spelling (`-N`, `--nodes=`) stays."""
    start, stop = setting.span or (0, 0)
    attach = setting.prefix
    if value is not None and setting.value is None and attach.startswith("--"):
        # An optional value that was left out: --exclusive becomes --exclusive=user, but -k -koff.
        attach += "="
    plain = attach.encode(errors="surrogateescape")
    if plain and content[start:stop].startswith(setting.prefix.encode(errors="surrogateescape")):
        return plain + (quote_word(value) if value else b"")
    return quote_word(attach + (value or ""))


def _find_setting_conflict(settings: Sequence[SbatchSetting], option: str) -> str | None:
    group = next((group for group in EXCLUSIVE_GROUPS if option in group), frozenset())
    others = [s for s in settings if s.option in group and s.option != option]
    if "mem" in group:
        memory = find_memory_in_force(settings)
        others = [memory] if memory is not None and memory.option != option else []
    if others:
        return f"--{option} and --{others[-1].option} ({others[-1].where}) exclude each other."
    tres = next((s for s in reversed(settings) if s.option == "tres-per-task"), None)
    if "cpus-per-task" in group and tres and any(e.startswith("cpu") for e in (tres.value or "").split(",")):
        return f"--{option} and --tres-per-task={tres.value} ({tres.where}) both set CPUs."
    return None
