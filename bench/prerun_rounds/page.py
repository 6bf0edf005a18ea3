"""The rows of a round for docs/prerun-rounds.md, from results.json and truth.json. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from prerun_rounds.binomial import compute_interval, compute_upper_bound
from prerun_rounds.late_stages import STAGES

Result = Mapping[str, Any]
STATIC = ("static", "sbatch")
_LONGEST = 160


def format_page(
    results: Sequence[Result],
    truths: Mapping[tuple[str, str], Mapping[str, Any]],
    number: str,
    failing: Collection[str] = (),
    stages: Mapping[tuple[str, str], str] | None = None,
    without: Sequence[Result] = (),
) -> str:
    """Return the Markdown of one round. `failing`: cases whose original fails when sbatch runs it on this cluster.

    `stages`: of late bugs that were planted as such; `without`: results of the same round without rehearsal.
    """
    groups: dict[str, list[Result]] = {}
    refused = sorted(one["case"] for one in results if is_refused_by_slurm(one))
    for one in results:
        if one["case"] in refused or one["case"] in failing:
            continue
        found = truths.get((one["case"], one["variant"]), {}).get("class", "unusable")
        groups.setdefault(found, []).append(one)
    visible = groups.get("visible", [])
    parts = [
        f"### Round {number}",
        _format_sound(groups.get("sound", [])),
        *_format_left_out(refused, sorted(failing)),
        *([_format_visible(visible)] if visible or not stages else []),
        *_format_late(groups.get("late", []), stages or {}),
        _format_others(groups),
        _format_seconds(results),
        *_format_rehearsal(results, without, truths),
        "#### By operator",
        _format_operators(groups),
        "#### Visible bugs that were not stopped",
        _format_list([one for one in visible if not is_stopped(one)]) or "None.",
        "#### Called `fail` although the plain run completed",
        _format_list([one for name in ("sound", "silent") for one in groups.get(name, []) if is_stopped(one)])
        or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def is_stopped(result: Result) -> bool:
    """Return whether the job would not have run."""
    return bool(result["verdict"] == "fail")


def _format_left_out(refused: Sequence[str], failing: Sequence[str]) -> Sequence[str]:
    reasons = {"Slurm refuses the job on this cluster": refused, "the original fails when sbatch runs it here": failing}
    return [f"Not counted, because {why}: {', '.join(names)}." for why, names in reasons.items() if names]


def is_refused_by_slurm(result: Result) -> bool:
    """Return whether this is an original that this cluster cannot run: more than its nodes have, or unknown names."""
    return not result.get("operator") and (
        result["layer"] == "sbatch" or str(result["reason"]).startswith("Slurm refuses the job")
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. A heading that begins with ">" aligns its column to the right."""
    names = [name.removeprefix(">") for name in head]
    rules = ["---:" if name.startswith(">") else "---" for name in head]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (names, rules, *rows))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _count(results: Sequence[Result], verdict: str) -> int:
    return sum(one["verdict"] == verdict for one in results)


def _format_sound(sound: Sequence[Result]) -> str:
    failed = _count(sound, "fail")
    bound = _percent(compute_upper_bound(failed, len(sound)))
    row = [len(sound), _count(sound, "pass"), _count(sound, "inconclusive"), failed, bound, _count(sound, "error")]
    head = (">sound jobs", ">pass", ">inconclusive", ">called fail", ">95 % upper bound (one-sided)", ">no verdict")
    return table(head, [row])


def _format_visible(visible: Sequence[Result]) -> str:
    stopped = [one for one in visible if is_stopped(one)]
    early = sum(one["layer"] in STATIC for one in stopped)
    low, high = compute_interval(len(stopped), len(visible))
    share = f"{_percent(len(stopped) / len(visible))} ({_percent(low)} to {_percent(high)})" if visible else "-"
    others = [_count(visible, verdict) for verdict in ("pass", "inconclusive", "error")]
    head = [">visible bugs", ">stopped", ">static", ">trial", ">share (95 % interval)"]
    head += [">pass", ">inconclusive", ">no verdict"]
    return table(head, [[len(visible), len(stopped), early, len(stopped) - early, share, *others]])


def _format_others(groups: Mapping[str, Sequence[Result]]) -> str:
    meanings = {
        "late": "fails after its third step",
        "silent": "the plain run completes",
        "timeout": "the plain run reaches its time limit",
        "unusable": "the original fails, or is not known",
    }
    rows = [
        [f"{name}: {meaning}", len(found), *(_count(found, verdict) for verdict in ("pass", "inconclusive", "fail"))]
        for name, meaning in meanings.items()
        if (found := groups.get(name, []))
    ]
    return table(("other mutants", ">number", ">pass", ">inconclusive", ">called fail"), rows)


def _format_seconds(results: Sequence[Result]) -> str:
    rows = []
    for name, early in (("static stage refuses", True), ("trial", False)):
        seconds = sorted(
            float(one["seconds"]) for one in results if one["seconds"] and (one["layer"] in STATIC) is early
        )
        if seconds:
            ninth = statistics.quantiles(seconds, n=10)[-1] if len(seconds) > 1 else seconds[0]
            rows.append([name, len(seconds), f"{statistics.median(seconds):.1f}", f"{min(ninth, seconds[-1]):.1f}"])
    return table(("seconds", ">number", ">median", ">p90"), rows)


def _format_late(late: Sequence[Result], stages: Mapping[tuple[str, str], str]) -> Sequence[str]:
    """Return the late bugs by the stage that they show in, and those that were not stopped; nothing without stages."""
    known = [one for one in late if (one["case"], one["variant"]) in stages]
    if not known:
        return []
    rows = []
    for stage in (*STAGES, ""):
        mine = [one for one in known if stage in ("", stages[one["case"], one["variant"]])]
        if not mine:
            continue
        stopped = sum(map(is_stopped, mine))
        early = sum(one["layer"] in STATIC for one in mine if is_stopped(one))
        low, high = compute_interval(stopped, len(mine))
        share = f"{_percent(stopped / len(mine))} ({_percent(low)} to {_percent(high)})"
        others = [_count(mine, verdict) for verdict in ("pass", "inconclusive", "error")]
        rows.append([stage or "all", len(mine), stopped, early, stopped - early, share, *others])
    head = ["stage", ">late bugs", ">stopped", ">static", ">trial", ">share (95 % interval)"]
    head += [">pass", ">inconclusive", ">no verdict"]
    missed = _format_list([one for one in known if not is_stopped(one)]) or "None."
    title = "#### Late bugs that were not stopped"
    return ["#### Late bugs by stage", table(head, rows), title, missed]


def _format_rehearsal(
    results: Sequence[Result], without: Sequence[Result], truths: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Sequence[str]:
    """Return the seconds of the pre-runs of sound originals, in pairs with and without rehearsal."""
    before = {(one["case"], one["variant"]): float(one["seconds"] or 0) for one in without}
    pairs = [
        (float(one["seconds"]), before[key])
        for one in results
        if (key := (one["case"], one["variant"])) in before and one["seconds"] and before[key]
        if truths.get(key, {}).get("class") == "sound"
    ]
    if not pairs:
        return []
    numbers = ([a for a, _ in pairs], [b for _, b in pairs], [a - b for a, b in pairs])
    row = [len(pairs), *(f"{statistics.median(one):.1f}" for one in numbers)]
    head = (">sound jobs", ">median seconds with rehearsal", ">without", ">median of the differences")
    return [table(head, [row])]


def _format_operators(groups: Mapping[str, Sequence[Result]]) -> str:
    visible = groups.get("visible", [])
    others = Counter((name, one["operator"]) for name in ("late", "silent") for one in groups.get(name, []))
    names = {one["operator"] for one in visible} | {operator for _, operator in others}
    rows = []
    for operator in sorted(names):
        mine = [one for one in visible if one["operator"] == operator]
        stopped = [one for one in mine if is_stopped(one)]
        early = sum(one["layer"] in STATIC for one in stopped)
        rows.append(
            [operator, len(mine), early, len(stopped) - early, len(mine) - len(stopped)]
            + [others[name, operator] for name in ("late", "silent")]
        )
    head = ("operator", ">visible", ">static", ">trial", ">not stopped", ">late", ">silent")
    return table(head, rows)


def _format_list(results: Sequence[Result]) -> str:
    rows = [
        [
            f"{one['case']} {one['variant']}",
            one.get("operator") or "-",
            f"{one['file']}:{one['line']}" if one.get("file") else "-",
            format_change(one),
            f"{one['verdict']} ({one['layer']}): {_escape(str(one['reason']))}",
        ]
        for one in results
    ]
    return table(("case", "operator", "place", "change", "verdict and reason"), rows) if rows else ""


def format_change(result: Result) -> str:
    """Return the first line that differs, before and after; "-" for an original."""
    if not result.get("operator"):
        return "-"
    if result.get("damage"):
        return f"{result['old']}: {result['new']}"
    old, new = result["old"].splitlines(), result["new"].splitlines()
    at = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new)))
    before, after = ((lines[at].strip() if at < len(lines) else "") for lines in (old, new))
    if len(new) < len(old):
        after = ""
    return f"{_as_code(before)} → {_as_code(after) if after else 'removed'}"


def _as_code(text: str) -> str:
    return f"`{_escape(text).replace('`', chr(39))}`"


def _escape(text: str) -> str:
    short = " ".join(text.split())
    short = short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…"
    return short.replace("|", "\\|")
