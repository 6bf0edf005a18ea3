"""Combine slurmwrap's hooks with the site's: determine the changes to slurm.conf and the files that they need. Pure.

The site's programs stay in force: they run unchanged, under their own names, after slurmwrap's hooks. slurmwrap's run
first because they only read, because the site's Epilog may remove what they are to read, and because a failing Prolog
of the site must not hide that the job started. slurmwrap's hooks exit 0, so the site's programs always run (unless the
Prolog gate, off by default, refuses the node). When the site's intention is ambiguous, the conflict is reported and
nothing is changed.

    site has                what is done
    nothing                 Prolog=HOOKS/prolog
    one program             from 24.11 slurmwrap's line before the site's; before that Prolog=HOOKS/prolog_site, a
    script
                            that runs slurmwrap's hook and then execs the site's (same pid, environment and exit code)
    a pattern /DIR/*        a file of slurmwrap in DIR whose name comes first in Slurm's reverse alphabetical order
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.install.slurm_conf import KEPT, Edit, SlurmConfSetting, named

# Since this release `scontrol reconfigure` starts a new slurmctld process. Before, slurmctld ignores an EpilogSlurmctld
# if none was set when it started (seen on 22.05.8).
FORKS_SINCE = (23, 11)
# Since this release, Prolog, Epilog and EpilogSlurmctld may be set on several lines (slurm.conf(5) of that release).
MANY_SINCE = (24, 11)
OUR_DEADLINE_S = 10  # deadline of each of slurmwrap's hooks (prolog/node_hook.sh)
TIMEOUT_S = 60
NODE_HOOKS = ("Prolog", "Epilog")
PROGRAMS = (*NODE_HOOKS, "EpilogSlurmctld")
# Flags with which the Prolog runs when the allocation is made (slurm.conf(5), PrologFlags).
_IMPLY_ALLOC = frozenset(("alloc", "contain", "nohold", "x11", "deferbatch", "forcerequeueonfail", "runinjob"))
_PATTERN = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A script of slurmwrap in the hooks' directory that runs hook `first` and then execs the site's program `site`."""

    name: str
    first: str
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The combination of slurmwrap's and the site's hooks.

    `copies`: (path in a directory of the site on every node, name of the hook that is copied there).
    """

    edits: tuple[Edit, ...] = ()
    chains: tuple[Chain, ...] = ()
    copies: tuple[tuple[Path, str], ...] = ()
    # Each names a solution; while there is one, nothing may be changed.
    conflicts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    # slurmctld must be restarted before EpilogSlurmctld runs.
    restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The changes for one key of slurm.conf."""

    lines: tuple[str, ...] = ()
    # (setting, new value); with "" the line becomes a comment.
    swaps: tuple[tuple[SlurmConfSetting, str], ...] = ()
    chain: Chain | None = None
    copy: tuple[Path, str] | None = None
    # slurmwrap's line must precede this one.
    first: SlurmConfSetting | None = None
    conflict: str = ""
    remark: str = ""


def compose(
    settings: Collection[SlurmConfSetting],
    *,
    directory: Path,
    release: tuple[int, int],
    main: str,
    names_in: Collection[tuple[str, str]] = (),
    cli_filter: bool = False,
    spank: bool = False,
) -> Composition:
    """Return the changes that combine slurmwrap's hooks with the site's.

    `settings`: without slurmwrap's own. `directory`: of the hooks. `main`: path of slurm.conf. `names_in`: (directory,
    file name) of all files in directories that the site's patterns name. `spank`: there are SPANK plugins, whose prolog
    and epilog have the same timeout.
    """
    parts = [_compose_program(key, named(settings, key), directory, release, names_in) for key in PROGRAMS]
    others = spank or any(named(settings, key) for key in (*PROGRAMS, "PrologSlurmctld", "PlugStackConfig"))
    parts += [
        _compose_flags(named(settings, "PrologFlags"), bool(named(settings, "Prolog"))),
        _check_timeout(named(settings, "PrologEpilogTimeout"), others),
    ]
    parts += [_remark_on_short_timeout(named(settings, key)) for key in ("PrologTimeout", "EpilogTimeout")]
    if cli_filter:
        parts.append(_filter(named(settings, "CliFilterPlugins")))
    parts = [_make_space_for_line(part) for part in parts]
    return Composition(
        edits=_make_edits(parts, main),
        chains=tuple(part.chain for part in parts if part.chain),
        copies=tuple(part.copy for part in parts if part.copy),
        conflicts=tuple(part.conflict for part in parts if part.conflict),
        remarks=tuple(part.remark for part in parts if part.remark),
        restart=release < FORKS_SINCE and not named(settings, "EpilogSlurmctld"),
    )


def _make_space_for_line(part: _Part) -> _Part:
    """Return `part`, or a conflict when a line to be changed also sets another key."""
    for setting, _ in part.swaps:
        if not setting.alone:
            return _Part(
                conflict=f"{_place(setting)}: {setting.key} is on a continued line or with other keys: give it "
                "a line of its own."
            )
    return part


def select_node_lines(edits: Iterable[Edit]) -> tuple[str, ...]:
    """Return the added lines that name slurmd's hooks."""
    lines = (line for edit in edits for line in edit.block)
    return tuple(line for line in lines if line.partition("=")[0] in NODE_HOOKS)


def get_hook_name(key: str) -> str:
    """Return the file name of the hook for a key of slurm.conf."""
    return {"Prolog": "prolog", "Epilog": "epilog", "EpilogSlurmctld": "epilog_slurmctld"}[key]


def _compose_program(
    key: str,
    found: tuple[SlurmConfSetting, ...],
    directory: Path,
    release: tuple[int, int],
    names_in: Collection[tuple[str, str]],
) -> _Part:
    own_hook, many = directory / get_hook_name(key), release >= MANY_SINCE
    if not found:
        return _Part(lines=(f"{key}={own_hook}",))
    # Before `hooks install` existed, administrators added such lines by hand.
    by_hand = [one for one in found if Path(one.value).parent == directory]
    if by_hand:
        line = by_hand[0].text.strip()
        return _Part(conflict=f"{_place(by_hand[0])}: {line} was written by hand and names a hook of slurmwrap: remove "
                              "the line, do not reconfigure, and install; the same line is written again.")  # fmt: skip
    if len(found) > 1 and not many:
        where = ", ".join(_place(one) for one in found)
        return _Part(conflict=f"{key} is set {len(found)} times ({where}); Slurm {_release(release)} takes only the "
                              "last: leave one of them.")  # fmt: skip
    patterns = [one for one in found if _PATTERN & set(one.value)]
    if patterns and key in NODE_HOOKS:
        return _compose_into_pattern(key, patterns[0], names_in)
    if many:
        remark = f"{key}: slurmwrap's runs before {', '.join(one.value for one in found)}, which stays as it is."
        return _Part(lines=(f"{key}={own_hook}",), first=found[0], remark=remark)
    return _compose_chained(key, found[0], directory, release)


def _compose_chained(key: str, site: SlurmConfSetting, directory: Path, release: tuple[int, int]) -> _Part:
    if "," in site.value:
        return _Part(conflict=f"{_place(site)}: {key}={site.value} holds a comma; Slurm {_release(release)} takes one "
                              "program: name one, or a directory by a pattern, /etc/slurm/prolog.d/*.")  # fmt: skip
    if not site.value.startswith("/") or any(c.isspace() for c in site.value):
        return _Part(conflict=f"{_place(site)}: {key}={site.value} is not a full path: give it one, or install with "
                              f"Slurm {_release(MANY_SINCE)} or newer, which takes several lines.")  # fmt: skip
    chain = Chain(name=f"{get_hook_name(key)}_site", first=get_hook_name(key), site=site.value)
    remark = f"{key}: {chain.name} runs slurmwrap's and then execs {site.value}, which stays as it is."
    return _Part(swaps=((site, ""),), lines=(f"{key}={directory / chain.name}",), chain=chain, remark=remark)


def _compose_into_pattern(key: str, site: SlurmConfSetting, names_in: Collection[tuple[str, str]]) -> _Part:
    pattern = PurePosixPath(site.value)
    if not pattern.is_absolute() or _PATTERN & set(str(pattern.parent)):
        return _Part(conflict=f"{_place(site)}: {key}={site.value}: the directory for slurmwrap's file is not clear: "
                              "give one directory by a full path and a pattern, /etc/slurm/prolog.d/*.")  # fmt: skip
    name = pattern.name.replace("*", "zz-slurmwrap", 1).replace("*", "")
    if "*" not in pattern.name or not fnmatch.fnmatchcase(name, pattern.name):
        return _Part(conflict=f"{_place(site)}: {key}={site.value}: no name for slurmwrap's file would match: use a "
                              "pattern with a *.")  # fmt: skip
    later = sorted(
        n for d, n in names_in if d == str(pattern.parent) and fnmatch.fnmatchcase(n, pattern.name) and n > name
    )
    remark = f"{key}: {pattern.parent / name} on every node; Slurm runs what matches {site.value} from z to a"
    remark += f", so {', '.join(later)} before it." if later else ", so slurmwrap's first."
    return _Part(copy=(Path(pattern.parent / name), get_hook_name(key)), remark=remark)


def _compose_flags(found: tuple[SlurmConfSetting, ...], theirs: bool) -> _Part:
    """Return the change of PrologFlags. `theirs`: the site has a Prolog."""
    when = " With Alloc the Prolog, yours too, runs on every node of a job as it is allocated, not at the first step."
    if not found:
        return _Part(lines=("PrologFlags=Alloc",), remark=when.strip() if theirs else "")
    last = found[-1]
    flags = {flag.strip().lower() for flag in last.value.split(",")}
    if "runinjob" in flags:
        return _Part(remark=f"PrologFlags={last.value}: with RunInJob Slurm runs the hooks in each job's own cgroup. "
                            "slurmwrap was not tried with it: try it on one node first.")  # fmt: skip
    if _IMPLY_ALLOC & flags:
        return _Part()
    return _Part(
        swaps=((last, f"Alloc,{last.value}"),),
        remark=f"PrologFlags={last.value} gets Alloc as well.{when if theirs else ''}",
    )


def _check_timeout(found: tuple[SlurmConfSetting, ...], others: bool) -> _Part:
    if not found:
        if others:
            return _Part(remark="PrologEpilogTimeout is not set and stays so: it would end the site's programs too. "
                                f"slurmwrap's end by themselves within {OUR_DEADLINE_S} s.")  # fmt: skip
        return _Part(lines=(f"PrologEpilogTimeout={TIMEOUT_S}",))
    return _remark_on_short_timeout(found)


def _remark_on_short_timeout(found: tuple[SlurmConfSetting, ...]) -> _Part:
    """Return a remark when the site's timeout may end a hook of slurmwrap.

    Slurm 26.05 also has one timeout per hook.
    """
    value = found[-1].value if found else ""
    if value.isdigit() and int(value) < OUR_DEADLINE_S + 5:
        return _Part(remark=f"{found[-1].key}={value} is the site's and stays. A hook of slurmwrap may take "
                            f"{OUR_DEADLINE_S} s when a driver or file system hangs, and Slurm drains the node when it "
                            f"has to end a hook: {OUR_DEADLINE_S + 5} or more is safer.")  # fmt: skip
    return _Part()


def _filter(found: tuple[SlurmConfSetting, ...]) -> _Part:
    if not found:
        return _Part(lines=("CliFilterPlugins=lua",))
    if "lua" in {word.strip().lower() for word in found[-1].value.split(",")}:
        # make_plan checks whether the file of the plugin can be written.
        return _Part()
    return _Part(swaps=((found[-1], f"{found[-1].value},lua"),))


def _make_edits(parts: Iterable[_Part], main: str) -> tuple[Edit, ...]:
    """Return one Edit per file; only slurm.conf itself gets a block."""
    parts = [part for part in parts if not part.conflict]
    swaps = [swap for part in parts for swap in part.swaps]
    lines = tuple(line for part in parts for line in part.lines)
    files = dict.fromkeys([main] if lines else []) | dict.fromkeys(setting.file for setting, _ in swaps)
    return tuple(_edit(file, swaps, lines, parts, main) for file in files)


def _edit(
    file: str, swaps: Iterable[tuple[SlurmConfSetting, str]], lines: tuple[str, ...], parts: Iterable[_Part], main: str
) -> Edit:
    here = tuple(
        (setting.text, _format_replacement(setting, value)) for setting, value in swaps if setting.file == file
    )
    if file != main:
        return Edit(file=file, swaps=here)
    firsts = [part.first for part in parts if part.first is not None]
    # If such a line is in an included file, slurmwrap's lines are inserted at the start of slurm.conf.
    top = any(one.file != main for one in firsts)
    before = "" if top or not firsts else min(firsts, key=lambda one: one.line).text
    return Edit(file=file, swaps=here, block=lines, before=before, top=top)


def _format_replacement(setting: SlurmConfSetting, value: str) -> str:
    return f"{setting.key}={value}" if value else f"{KEPT}{setting.text}"


def _place(setting: SlurmConfSetting) -> str:
    return f"{setting.file}:{setting.line}"


def _release(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]:02}"
