"""Apply option changes to a JobRequest: the BatchScript that is shown, and the options that are submitted. Pure.

In the BatchScript each value is changed where the user set it, and added options go on the command line. The script
keeps its lines and every byte outside of changed `#SBATCH` words (`explain.py` prints it). `list_submitted_options`
returns options with the same effect for the user's unchanged script and variables.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange, Origin, RequestChange, SbatchSetting
from slurmwrap.sbatch.option_table import BY_NAME, EXCLUSIVE_GROUPS, NONE, OPPOSITES, OPTIONAL, REQUIRED
from slurmwrap.sbatch.resource_shape import find_memory_in_force
from slurmwrap.sbatch.script_directives import quote_word, replace_spans

# RequestChange.where of an option that the user had not set.
ADDED = "added"
# RequestChange.where of a change that only explains why an option stays unset.
KEPT = "kept"

# This variable takes only a count, --switches also count@time (sbatch 22.05.8: Invalid numeric value "1@10").
_NOT_IN_ENVIRONMENT = frozenset({"SBATCH_REQ_SWITCH"})


def render(request: JobRequest, wishes: Sequence[OptionChange], *, added: Sequence[OptionChange] = ()) -> BatchScript:
    """Return the job with the changes applied. A change to the value that already applies has no effect and no entry.

    `wishes` change what the user set, or add to it. `added` are put on the command line even if the user set the
    option elsewhere, and take precedence there (for instance a later --begin). Raises ValueError for a change that
    sbatch would refuse next to the other settings; call `find_conflict` first. Callers convert values to the user's
    own unit.
    """
    state = _Rewrite(request)
    for wish in wishes:
        state.apply_change(wish, in_place=True)
    for wish in added:
        state.apply_change(wish, in_place=False)
    return state.build_batch_script()


def find_conflict(request: JobRequest, option: str) -> str | None:
    """Return the reason, in one sentence, why `option` conflicts with the user's settings; None if it does not."""
    if option not in BY_NAME:
        return f"sbatch has no option --{option}."
    return _find_setting_conflict(request.settings, option)


def list_submitted_options(request: JobRequest, batch: BatchScript) -> tuple[str, ...]:
    """Return the options of the real sbatch call: the user's own words, then each change, which overrides them.

    The user's script and variables are used unchanged. Otherwise the job's Command= would name a copy made by
    slurmwrap, where many scripts look for their own directory, and the job would see other SBATCH_* variables than
    the user set.
    """
    if request.words is None:
        return batch.options
    changed = [change for change in batch.changes if change.new is not None and change.new != change.old]
    return (*request.words, *(_spell_change(change) for change in changed), *request.components)


def _spell_change(change: RequestChange) -> str:
    flag = not change.new and BY_NAME[change.option].argument is not REQUIRED
    return spell(change.option, None if flag else change.new)


def spell(option: str, value: str | None) -> str:
    """Format one option as one command line argument: `--mem=180G`, `--hold`."""
    return f"--{option}" if value is None else f"--{option}={value}"


class _Rewrite:
    """The request while changes are applied one by one."""

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._settings = list(request.settings)
        self._spans: dict[tuple[int, int], bytes] = {}
        self._environ: dict[str, str] = {}
        self._changes: list[RequestChange] = []
        for change in request.chosen:
            at = self._find_setting_in_force(change.option)
            where = ADDED if at is None else self._replace_value(at, change.new)
            self._changes.append(replace(change, where=where))

    def apply_change(self, wish: OptionChange, *, in_place: bool) -> None:
        at = self._find_setting_in_force(wish.option)
        old = None if at is None else _format_value_in_force(self._settings[at])
        if wish.value is None:
            where = KEPT if at is None else self._settings[at].where
            self._changes.append(RequestChange(option=wish.option, old=old, new=old, where=where, reason=wish.reason))
            return
        new = self._check_change(wish)
        if at is not None and old == wish.value:
            return
        if at is not None and (in_place or self._settings[at].origin is Origin.COMMAND_LINE):
            where = self._replace_value(at, new)
        else:
            where = self._add_option(wish.option, new)
        self._changes.append(
            RequestChange(option=wish.option, old=old, new=wish.value, where=where, reason=wish.reason)
        )

    def build_batch_script(self) -> BatchScript:
        return BatchScript(
            content=replace_spans(self._request.script.content, self._spans),
            options=(
                *(spell(s.option, s.value) for s in self._settings if s.origin is Origin.COMMAND_LINE),
                # After the added options, because those are for the first component or for the whole job.
                *self._request.components,
            ),
            args=self._request.args,
            environ=self._environ,
            changes=tuple(self._changes),
        )

    def _find_setting_in_force(self, option: str) -> int | None:
        """Return the index of the setting of `option` that applies; None also if its opposite was set later."""
        asked = (option, OPPOSITES.get(option))
        last = next((i for i in reversed(range(len(self._settings))) if self._settings[i].option in asked), None)
        return last if last is not None and self._settings[last].option == option else None

    def _check_change(self, wish: OptionChange) -> str | None:
        """Return the value to write, None for a flag. Raise ValueError if sbatch would refuse it."""
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

    def _replace_value(self, at: int, value: str | None) -> str:
        """Replace the value where it was set, and return that place."""
        setting = self._settings[at]
        if setting.origin is Origin.ENVIRONMENT and setting.where in _NOT_IN_ENVIRONMENT:
            return self._add_option(setting.option, value)
        if setting.origin is Origin.ENVIRONMENT:
            self._environ[setting.where] = value or ""
        elif setting.origin is Origin.SCRIPT:
            if setting.span is None:
                raise ValueError(f"{setting.where}: the place of --{setting.option} in the script is not known")
            self._spans[setting.span] = _rewrite_word(self._request.script.content, setting, value)
        self._settings[at] = replace(setting, value=value)
        return setting.where

    def _add_option(self, option: str, value: str | None) -> str:
        self._settings.append(SbatchSetting(option=option, value=value, origin=Origin.COMMAND_LINE, where=ADDED))
        return ADDED


def _format_value_in_force(setting: SbatchSetting) -> str:
    """Return the value that applies; "" for a flag or an optional value that was left out."""
    return setting.value or ""


def _rewrite_word(content: bytes, setting: SbatchSetting, value: str | None) -> bytes:
    """Return the word of the script with its value changed; its spelling (`-N`, `--nodes=`) is kept."""
    start, stop = setting.span or (0, 0)
    attach = setting.prefix
    if value is not None and setting.value is None and attach.startswith("--"):
        # The optional value was left out before: --exclusive becomes --exclusive=user, but -k becomes -koff.
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
