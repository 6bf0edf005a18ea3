"""Draw docs/images/*.svg, the pictures of docs/concepts and README.md: `.venv/bin/python .ci/docs_pictures.py`.

Each picture adapts to the reader's light or dark scheme and has its own background, so it can be read on any page.
Sizes are in SVG units; a picture is 880 wide.
"""

# ruff: noqa: E501 - style sheets and rows of coordinates

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 880

_STYLE = """\
svg { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
.sheet { fill: #fbfbfd; stroke: #d8dce3; } .lane { fill: #f0f2f6; } .grid { stroke: #d8dce3; }
text { fill: #1d2530; } .small { font-size: 11px; fill: #4c5867; } .head { font-weight: 600; } .lanehead { font-weight: 600; fill: #4c5867; }
.box { fill: #ffffff; stroke: #8a95a5; } .line { stroke: #667285; fill: none; stroke-width: 1.5; } .tip { fill: #667285; }
.you { fill: #e1ecff; stroke: #2f66c9; } .gpu { fill: #fff2cf; stroke: #a8740a; } .root { fill: #ffe3e0; stroke: #b8352a; }
.site { fill: #dcf4e2; stroke: #1f7a3d; } .slurm { fill: #e9e5f8; stroke: #6650b3; } .dash { stroke-dasharray: 5 4; }
.yes { fill: #1f7a3d; } .some { fill: none; stroke: #1f7a3d; stroke-width: 2; } .no { stroke: #a3acb8; stroke-width: 1.5; }
.bad { fill: #b8352a; } .bar { fill: #2f66c9; } .kept { fill: #9fbdf0; }
.terminal { font: 18px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; } .terminal.head { font-weight: 600; }
@media (prefers-color-scheme: dark) {
.sheet { fill: #1b1f27; stroke: #39414e; } .lane { fill: #232934; } .grid { stroke: #39414e; }
text { fill: #e6e9ee; } .small { fill: #aeb8c6; } .lanehead { fill: #aeb8c6; }
.box { fill: #262d39; stroke: #8a95a5; } .line { stroke: #9aa6b8; } .tip { fill: #9aa6b8; }
.you { fill: #1d3157; stroke: #7ea8f5; } .gpu { fill: #453710; stroke: #e0b04a; } .root { fill: #4d2220; stroke: #f0867c; }
.site { fill: #173a24; stroke: #62c584; } .slurm { fill: #2e2850; stroke: #a897ec; }
.yes { fill: #62c584; } .some { stroke: #62c584; } .no { stroke: #5f6a7a; } .bad { fill: #f0867c; } .bar { fill: #7ea8f5; } .kept { fill: #39558c; }
}
"""


def picture(height: int, about: str, *parts: str) -> str:
    """Return the text of an SVG file; `about` is its description for screen readers."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(about)}</title>",
            f"<style>\n{_STYLE}</style>",
            '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
            '<path class="tip" d="M0 0 L9 4 L0 8 Z"/></marker></defs>',
            f'<rect class="sheet" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>",
            "",
        )
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, head: str, *lines: str) -> str:
    """Return a rounded box with centred text: a line in bold and smaller lines below."""
    middle, rows = x + width / 2, 17 + 15 * len(lines)
    top = y + (height - rows) / 2 + 14
    said = [text(middle, top, head, "head", "middle")]
    said += [text(middle, top + 16 + 15 * n, line, "small", "middle") for n, line in enumerate(lines)]
    return f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>' + "".join(said)


def arrow(*points: tuple[float, float], kind: str = "") -> str:
    d = "M" + " L".join(f"{x} {y}" for x, y in points)
    return f'<path class="line {kind}" d="{d}" marker-end="url(#tip)"/>'


def line(*points: tuple[float, float], kind: str = "line") -> str:
    d = "M" + " L".join(f"{x} {y}" for x, y in points)
    return f'<path class="{kind}" d="{d}"/>'


def lane(y: float, height: float, head: str, under: str = "") -> str:
    parts = [f'<rect class="lane" x="10" y="{y}" width="{WIDTH - 20}" height="{height}" rx="6"/>']
    return "".join([*parts, text(20, y + 20, head, "lanehead"), text(20, y + 36, under, "small")])


# --- pictures -----------------------------------------------------------------------------------------------------


def way_of_a_job() -> str:
    steps = ("parse", "check", "profile", "place", "submit")
    under = ("script + options", "files, imports", "what it needs", "where it fits", "the job waits")
    boxes = [box(150 + 145 * n, 30, 122, 48, "you", *pair) for n, pair in enumerate(zip(steps, under, strict=True))]
    joins = [arrow((272 + 145 * n, 54), (294 + 145 * n, 54)) for n in range(4)]
    return picture(
        500,
        "The stages of a job: parse, check, profile, place, submit; pre-run on one GPU; run; reconcile; report",
        lane(15, 78, "you", "login node"),
        lane(103, 92, "one GPU", "the pre-run"),
        lane(205, 92, "Slurm", "all its GPUs"),
        lane(307, 92, "controller", "the reconciler"),
        lane(409, 76, "every night", ""),
        *boxes,
        *joins,
        arrow((791, 78), (791, 120), (700, 120)),
        box(
            490,
            117,
            210,
            64,
            "gpu",
            "the same script, one GPU",
            "until 3 optimizer steps ran;",
            "then all its processes end",
        ),
        arrow((490, 137), (330, 137)),
        text(410, 131, "fails", "small", "middle"),
        box(150, 117, 180, 64, "root", "the job is cancelled", "file, line, message:", "slurmwrap why"),
        arrow((595, 181), (595, 222)),
        text(603, 200, "passes: the job is planned again and released", "small"),
        box(490, 222, 210, 58, "slurm", "the job runs", "Prolog and Epilog record", "on every node"),
        arrow((490, 251), (330, 251)),
        text(410, 245, "it ends", "small", "middle"),
        box(150, 222, 180, 58, "slurm", "observations", "signed by MUNGE, in the spool", ""),
        arrow((240, 280), (240, 324)),
        box(150, 324, 122, 58, "site", "evidence", "kernel, NVML,", "Slurm, log"),
        arrow((272, 353), (310, 353)),
        box(310, 324, 130, 58, "site", "diagnosis", "category, cited", "line, confidence"),
        arrow((440, 353), (478, 353)),
        box(478, 324, 122, 58, "site", "decision", "by rule and", "budget"),
        arrow((600, 353), (638, 353)),
        box(
            638,
            324,
            214,
            58,
            "site",
            "requeue or stop",
            "on other nodes, with more memory;",
            "block the input, strike, drain",
        ),
        arrow((745, 324), (745, 251), (700, 251)),
        text(753, 290, "runs again", "small"),
        arrow((539, 382), (539, 422)),
        box(310, 422, 458, 48, "site", "night report", "what failed, why, what it cost, what was saved, what to do"),
    )


def hooks_timeline() -> str:
    marks = ((190, "gsub"), (330, "pre-run"), (470, "start"), (690, "end"), (760, "+ seconds"))
    grid = [line((x, 40), (x, 400), kind="grid") for x, _ in marks]
    heads = [text(x, 32, words, "small", "middle") for x, words in marks]
    return picture(
        415,
        "What runs when, where and as which user: gsub and the pre-run as the user, hooks as root and SlurmUser, the reconciler",
        lane(45, 62, "login node", "as you"),
        lane(113, 62, "a GPU's node", "as you"),
        lane(181, 92, "the job's nodes", ""),
        lane(279, 112, "controller", "as SlurmUser"),
        *grid,
        *heads,
        box(150, 55, 130, 42, "you", "gsub", "submits, then ends"),
        arrow((280, 76), (330, 76), (330, 122)),
        box(290, 123, 130, 42, "gpu", "pre-run", "minutes, one GPU"),
        arrow((420, 144), (470, 144), (470, 190)),
        text(20, 222, "as root", "small"),
        text(20, 262, "as you", "small"),
        box(425, 190, 90, 38, "root", "Prolog", "≤ 10 s, exit 0"),
        box(660, 190, 90, 38, "root", "Epilog", "≤ 10 s, exit 0"),
        '<rect class="box root dash" x="520" y="200" width="135" height="20" rx="4"/>',
        text(587, 214, "sampler, once a second", "small", "middle"),
        box(470, 234, 220, 32, "you", "the job"),
        box(610, 288, 160, 38, "root", "EpilogSlurmctld", "a record, a wake-up"),
        arrow((770, 307), (800, 307), (800, 340)),
        arrow((705, 228), (822, 228), (822, 340)),
        text(826, 250, "spool", "small"),
        box(
            150, 341, 590, 40, "site", "the reconciler's passes", "relax and tune waiting jobs; publish what gsub reads"
        ),
        box(745, 341, 112, 40, "site", "reconcile", "decide, act"),
    )


def retry_ledger() -> str:
    """Return the picture of one job's runs, with the retry budget of its root cause."""
    runs = (
        ("run 1", "n3", 0, 1200, "GPU fell off the bus", "retry on other nodes", "1 of 3"),
        ("run 2", "n5", 1000, 1150, "GPU fell off the bus", "retry on other nodes", "2 of 3"),
        ("run 3", "n6", 1000, 2400, "GPU fell off the bus", "retry: it made progress", "1 of 3"),
        ("run 4", "n1", 2000, 3000, "completed", "", ""),
    )
    return picture(
        372,
        "A retry ledger: failures of one root cause count against a budget; only progress beyond the best step resets it",
        text(20, 30, "training steps", "lanehead"),
        text(510, 30, "ended with", "lanehead"),
        text(680, 30, "decision", "lanehead"),
        text(860, 30, "spent", "lanehead", "end"),
        *(part for n, run in enumerate(runs) for part in _run(45 + 42 * n, *run)),
        text(
            20,
            236,
            "Only a step beyond the best earlier one (1200) resets the budget: run 3 reached 2400, run 2 only 1150.",
            "small",
        ),
        line((20, 250), (860, 250), kind="grid"),
        text(20, 274, "a log that blames an input", "lanehead"),
        *_run(284, "run 1", "n2", 0, 0, "shard-07.tar is truncated", "retry on another node", "1 of 1"),
        *_run(320, "run 2", "n7", 0, 0, "the same content", "stop; block the input", "used up"),
    )


def _run(y: float, name: str, node: str, first: int, last: int, ended: str, decision: str, spent: str) -> Iterator[str]:
    yield text(20, y + 20, f"{name} on {node}")
    if last:
        yield f'<rect class="kept" x="{120 + first * 0.11}" y="{y + 8}" width="2" height="16"/>'
        yield f'<rect class="bar" x="{120 + first * 0.11}" y="{y + 8}" width="{(last - first) * 0.11}" height="16" rx="2"/>'
        yield text(126 + last * 0.11, y + 20, str(last), "small")
    yield f'<circle class="{"yes" if ended == "completed" else "bad"}" cx="502" cy="{y + 16}" r="5"/>'
    yield text(516, y + 20, ended, "small")
    yield text(680, y + 20, decision, "small")
    yield text(860, y + 20, spent, "small", "end")


def who_vouches() -> str:
    heads = (("stop or retry", "the user's own job"), ("block an input", "for the user"), ("block an input", "for all users"),
             ("strike", "a node"), ("drain", "a node"))  # fmt: skip
    rows = (
        ("what the job printed", "the user's text", "yyp--"),
        ("state, exit codes, Reason", "Slurm", "y--y-"),
        ("the node's kernel log", "root, signed on the node", "y--yy"),
        ("NVML", "root, signed on the node", "y--yy"),
        ("slurmwrap's read of the file", "with the user's rights", "yyp--"),
        ("an administrator", "", "yyyyy"),
    )
    parts = [part for n, row in enumerate(rows) for part in _witness(78 + 46 * n, *row)]
    tops = [text(330 + 118 * n, 34 + 15 * at, words, "small" if at else "head", "middle") for n, two in enumerate(heads)
            for at, words in enumerate(two)]  # fmt: skip
    return picture(
        400,
        "Which evidence is trusted: log text may stop its own job; only kernel, NVML and Slurm count against a node",
        *tops,
        *parts,
        '<circle class="yes" cx="30" cy="372" r="6"/>',
        text(44, 376, "is enough", "small"),
        '<circle class="some" cx="160" cy="372" r="5"/>',
        text(174, 376, "needs more: two users on two nodes, or a file that the user cannot write or rename", "small"),
        line((690, 372), (702, 372), kind="no"),
        text(712, 376, "never", "small"),
    )


def _witness(y: float, name: str, who: str, marks: str) -> Iterator[str]:
    yield line((20, y - 8), (860, y - 8), kind="grid")
    yield text(20, y + 12, name, "head")
    yield text(20, y + 28, who, "small")
    for n, mark in enumerate(marks):
        x, middle = 330 + 118 * n, y + 15
        if mark == "y":
            yield f'<circle class="yes" cx="{x}" cy="{middle}" r="7"/>'
        elif mark == "p":
            yield f'<circle class="some" cx="{x}" cy="{middle}" r="6"/>'
        else:
            yield line((x - 6, middle), (x + 6, middle), kind="no")


def placement_levels() -> str:
    levels = (
        ("these nodes", "--nodelist", "placement.pin_s"),
        ("fewest nodes", "in one domain", "by its skew"),
        ("one domain", "--switches=N@t", "Slurm's clock"),
        ("any nodes", "in the partition", "in time"),
        ("as asked", "CPUs and memory", ""),
    )
    boxes = [
        box(40 + 165 * n, 80 + 44 * n, 140, 56, "site" if n < 3 else "slurm", head, under)
        for n, (head, under, _) in enumerate(levels)
    ]
    joins = [
        part
        for n, (_, _, until) in enumerate(levels[:-1])
        for part in (
            arrow((180 + 165 * n, 104 + 44 * n), (275 + 165 * n, 104 + 44 * n), (275 + 165 * n, 123 + 44 * n)),
            text(188 + 165 * n, 97 + 44 * n, until, "small"),
        )
    ]
    return picture(
        345,
        "Levels of placement: from certain nodes to any nodes, each with a deadline",
        text(40, 36, "strict", "lanehead"),
        text(840, 36, "relaxed", "lanehead", "end"),
        arrow((100, 32), (778, 32)),
        text(
            40,
            60,
            "While the job waits, its required locality is relaxed level by level; each deadline adds to the one before.",
            "small",
        ),
        *boxes,
        *joins,
        text(
            40,
            320,
            "A level that costs no waiting is left out: most jobs start at once and require nothing.",
            "small",
        ),
    )


# Lanes of the picture below: head, what it is, what begins at minute 0, minutes until it is found, what is found. With
# None nothing is found: the job makes its next step after nine minutes.
_FOUND_WHILE_RUNNING = (
    ("a rank dies", "the others wait for it", "an error of one rank", 3, "partly dead"),
    ("the loss is NaN", "the steps go on", "loss nan", 2, "diverged"),
    ("it hangs", "no GPU is in use", "the last step", 10, "stuck"),
    ("a process is gone", "its GPU is empty", "no process", 15, "idle GPUs"),
    ("a long checkpoint", "a good job", '"Saving checkpoint"', None, ""),
)


def running_findings() -> str:
    """Return the picture of docs/running.md: when the rule `early` finds what, with the default waiting times."""
    start, minute = 300, 30

    def steps(y: float, first: float, last: float) -> str:
        places = [first + 0.4 * n for n in range(int((last - first) / 0.4) + 1)]
        return "".join(line((start + minute * at, y - 6), (start + minute * at, y + 6)) for at in places)

    parts = []
    for place, (head, under, begins, found_after, found) in enumerate(_FOUND_WHILE_RUNNING):
        top = 40 + 62 * place
        middle = top + 34
        waits = 9 if found_after is None else found_after
        parts += [lane(top, 54, head, under), steps(middle, -4.4, 0), text(start, top + 16, begins, "small")]
        parts.append(
            f'<rect class="box gpu dash" x="{start}" y="{middle - 8}" width="{minute * waits}" height="16" rx="3"/>'
        )
        if found_after is None:
            parts += [
                steps(middle, 9, 18),
                text(start + minute * 9 + 4, top + 16, "the next step: nothing is found", "small"),
            ]
            continue
        parts.append(f'<circle class="bad" cx="{start + minute * waits}" cy="{middle}" r="7"/>')
        parts.append(text(start + minute * waits + 14, middle + 4, found, "head"))
    marks = (0, 5, 10, 15)
    heads = [text(start + minute * at, 30, f"{at} min", "small", "middle") for at in marks]
    grid = [line((start + minute * at, 36), (start + minute * at, 345), kind="grid") for at in marks]
    legend = text(
        20,
        368,
        "Marks are steps, dashed boxes the waiting time (the defaults; longer if the job's own pauses are).",
        "small",
    )
    return picture(
        382, "When something is found about a running job: partly dead after 3 minutes, diverged after 2, stuck after 10, "
        "idle GPUs after 15, and nothing about a checkpoint of 9 minutes", *heads, *parts, *grid, legend,
    )  # fmt: skip


def terminal_session() -> str:
    """Return the picture of the failed job of README.md. Tests compare that text with the output of a real Slurm."""
    rows = list_terminal_rows((ROOT / "README.md").read_text(encoding="utf-8"))
    return picture(
        44 + 27 * len(rows),
        "In a terminal: " + " ".join(row.strip() for row in rows),
        *(
            f'<text x="24" y="{42 + 27 * place}" class="terminal {_tone(row)}" xml:space="preserve">{escape(row)}</text>'
            for place, row in enumerate(rows)
        ),
    )


def list_terminal_rows(readme: str) -> list[str]:
    """Return the gsub command and the output of `slurmwrap why` in README.md. Raise ValueError without them."""
    call = re.search(r"^gsub examples/buggy/\S+", readme, re.MULTILINE)
    answer = re.search(r"^\$ slurmwrap why\n.*?(?=^\$|^```)", readme, re.MULTILINE | re.DOTALL)
    if call is None or answer is None:
        raise ValueError("README.md: no call of gsub with examples/buggy, or no answer of slurmwrap why")
    return [f"$ {call[0]}", *answer[0].rstrip("…\n").splitlines()]


def _tone(row: str) -> str:
    return "head" if row.startswith("$") else "bad" if "Error" in row else ""


PICTURES = {
    "terminal-session": terminal_session,
    "way-of-a-job": way_of_a_job,
    "hooks-timeline": hooks_timeline,
    "retry-ledger": retry_ledger,
    "who-vouches": who_vouches,
    "placement-levels": placement_levels,
    "running-findings": running_findings,
}


def pictures() -> dict[str, str]:
    """Return file name -> content of all pictures."""
    return {f"{name}.svg": draw() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    for file, content in pictures().items():
        (IMAGES / file).write_text(content, encoding="utf-8")
