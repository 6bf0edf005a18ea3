"""What each key does in the list of jobs of `slurmwrap watch`. Pure: (view, key) -> (view, command)."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.cli.watch.job_list import SORT_KEYS, ListedJob
from slurmwrap.fast_dataclasses import dataclass, replace

# Values of ListView.page.
LIST, JOB, LOG = "list", "job", "log"
# Commands for the caller.
QUIT, REFRESH, CANCEL = "quit", "refresh", "cancel"
_MOST_SEARCHED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ListView:
    """What the user looks at."""

    page: str = LIST
    selected: str = ""  # ListedJob.label of the selected line; "": the first line
    top: int = 0  # first line of the list that is shown
    sort: str = "state"  # key of SORT_KEYS
    search: str = ""
    typing: bool = False  # keys are added to `search`
    unfolded: frozenset[str] = frozenset()  # arrays of which each task is shown
    opened: str = ""  # address of the job on the pages JOB and LOG
    came_from: str = LIST  # page to which LOG returns
    scroll: int = 0  # of LOG: lines above the end; 0: it follows
    file: int | None = None  # of LOG: place of the file in the job's files; None: the one written last
    asks_cancel: str = ""  # address of the job that is cancelled if the user confirms
    message: str = ""  # shown until the next key


def find_selected(view: ListView, lines: Sequence[ListedJob]) -> int:
    """Return the place of the selected line; 0 if it is not there any more."""
    return next((place for place, one in enumerate(lines) if one.label == view.selected), 0)


def scroll_to_selected(view: ListView, lines: Sequence[ListedJob], rows: int) -> ListView:
    """Return the view with the selected line within the `rows` lines that are shown. The cursor stays where it is."""
    place = find_selected(view, lines)
    top = min(max(view.top, place - rows + 1), place)
    return replace(view, top=max(0, min(top, len(lines) - rows)))


def handle_key(view: ListView, key: str, lines: Sequence[ListedJob], rows: int) -> tuple[ListView, str]:
    """Return the view after a key, and a command or "". `rows`: height of the list or the log, in lines.

    `key`: a printable character, or one of the names in full_screen.KEYS.
    """
    view = replace(view, message="")
    if view.asks_cancel:
        return (view, CANCEL) if key in ("y", "Y") else (replace(view, asks_cancel=""), "")
    if view.typing:
        return _handle_search_key(view, key), ""
    if view.page == LIST:
        return _handle_list_key(view, key, lines, rows)
    if key in ("escape", "q", "left", "backspace"):
        return replace(view, page=view.came_from if view.page == LOG else LIST), ""
    if key == "x":
        return replace(view, asks_cancel=view.opened), ""
    if key == "r":
        return view, REFRESH
    if view.page == LOG:
        return _handle_log_key(view, key, rows), ""
    if key in ("l", "enter"):
        return _open_log(view, view.opened), ""
    return view, ""


def _handle_search_key(view: ListView, key: str) -> ListView:
    if key == "escape":
        return replace(view, typing=False, search="")
    if key in ("enter", "down", "up"):
        return replace(view, typing=False)
    if key == "backspace":
        return replace(view, search=view.search[:-1])
    return replace(view, search=(view.search + key)[:_MOST_SEARCHED]) if len(key) == 1 else view


def _handle_list_key(view: ListView, key: str, lines: Sequence[ListedJob], rows: int) -> tuple[ListView, str]:
    if key == "q":
        return view, QUIT
    if key == "escape":
        return replace(view, search=""), ""
    if key == "/":
        return replace(view, typing=True, search=""), ""
    if key == "s":
        names = tuple(SORT_KEYS)
        return replace(view, sort=names[(names.index(view.sort) + 1) % len(names)]), ""
    if key == "r":
        return view, REFRESH
    if not lines:
        return view, ""
    place = find_selected(view, lines)
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -rows, "pagedown": rows, "home": -len(lines)}
    steps |= {"g": -len(lines), "end": len(lines), "G": len(lines)}
    if key in steps:
        return replace(view, selected=lines[max(0, min(len(lines) - 1, place + steps[key]))].label), ""
    entry = lines[place]
    view = replace(view, selected=entry.label)
    if key in ("enter", "right"):
        return replace(view, page=JOB, opened=entry.address), ""
    if key == "l":
        return _open_log(view, entry.address), ""
    if key == "x":
        # The pending tasks of an array are cancelled without the others.
        return replace(view, asks_cancel=entry.label), ""
    if key == " ":
        return _unfold(view, entry), ""
    return view, ""


def _unfold(view: ListView, entry: ListedJob) -> ListView:
    """Show the tasks of an array, or fold them again."""
    array = entry.address.partition("_")[0] if entry.task else entry.address
    if not entry.status.array and not entry.task:
        return replace(view, message=f"job {entry.address} is no array")
    return replace(view, unfolded=view.unfolded ^ {array}, selected=array)


def _open_log(view: ListView, address: str) -> ListView:
    return replace(view, page=LOG, opened=address, came_from=view.page, scroll=0, file=None)


def _handle_log_key(view: ListView, key: str, rows: int) -> ListView:
    steps = {"up": 1, "k": 1, "down": -1, "j": -1, "pageup": rows, " ": -rows, "pagedown": -rows}
    if key in steps:
        return replace(view, scroll=max(0, view.scroll + steps[key]))
    if key in ("end", "G"):
        return replace(view, scroll=0)
    if key in ("home", "g"):
        return replace(view, scroll=1 << 30)
    if key == "tab":
        return replace(view, file=0 if view.file is None else view.file + 1, scroll=0)
    return view
