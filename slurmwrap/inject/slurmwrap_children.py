"""Change the command lines of child processes in a trial, so that they use the files in the shadow tree.

An argument that names a file with a copy in the shadow tree is replaced by the path of the copy. In shell text, each
target of `>` is passed through shims/redirect. The shims of rm, cp, mv, ... handle other effects of such programs on
files. Used only by slurmwrap_guard. Python 3.6 syntax, standard library.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
# Characters of a word without shell syntax, in addition to letters and digits. The module re is not used, because it
# would have to be imported at each start.
_PLAIN = frozenset("_./@%+:,-")
_ENDS = " \t\n;&|()<>"


def led(text: str, redirect: str, place: "Callable[[Any], Any]" = lambda path: path) -> str:
    """Return the shell `text` with the targets of its redirections passed through the program `redirect`.

    Words without shell syntax are replaced by the result of `place`. Quoted text is not changed.
    """
    # Scan the text from left to right: skip escapes, quotes and conditions, rewrite the target of each redirection,
    # and replace plain words. `written` holds the targets so far, so that later commands read them from the new path.
    out, at, written = [], 0, set()
    while at < len(text):
        here = text[at]
        end = at + 1
        if here == "\\":
            end = at + 2
        elif here in "'\"`":
            end = _closed(text, at)
        elif text.startswith(("[[ ", "(("), at):
            end = _after(text, at, "]]" if here == "[" else "))")
        elif here == ">" and text[at - 1 : at] not in ("=", "-"):
            end = at + (2 if text[at + 1 : at + 2] in (">", "|") else 1)
            start = end
            while text[start : start + 1] in (" ", "\t"):
                start += 1
            stop = _word_end(text, start)
            word = text[start:stop]
            if word and not word.startswith(("&", "/dev/", "(")) and text[start : start + 1] != "&":
                operator = ">>" if text[at : at + 2] == ">>" else ">"
                out.append('%s "$(%s "%s" %s)"' % (text[at:end], _quoted(redirect), operator, word))
                written.add(word)
                at = stop
                continue
        elif _plain(here) and (at == 0 or text[at - 1] in _ENDS):
            end = _word_end(text, at)
            word = text[at:end]
            placed = place(word) if _plain(word) else word
            # A file that the same text has written, as in `cmd > list && wc -l list`.
            if placed == word and word in written:
                out.append('"$(%s "<" %s)"' % (_quoted(redirect), word))
            else:
                out.append(word if placed == word else _quoted(placed))
            at = end
            continue
        out.append(text[at:end])
        at = end
    return "".join(out)


def _plain(word: str) -> bool:
    return all(letter.isalnum() or letter in _PLAIN for letter in word)


def _closed(text: str, at: int) -> int:
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" and quote != "'" else 1
    return at + 1


def _after(text: str, at: int, closing: str) -> int:
    found = text.find(closing, at)
    return len(text) if found < 0 else found + 2


def _word_end(text: str, at: int) -> int:
    while at < len(text) and text[at] not in _ENDS:
        if text[at] in "'\"`":
            at = _closed(text, at)
        elif text.startswith("$(", at):
            at = _after(text, at, ")") - 1
        elif text.startswith("${", at):
            at = _after(text, at, "}") - 1
        else:
            at += 2 if text[at] == "\\" else 1
    return at


def _quoted(text: str) -> str:
    return "'%s'" % text.replace("'", "'\"'\"'")


def _redirect() -> str:
    return os.environ.get("SLURMWRAP_SHIMS", "") + "/redirect"


def _words(args: "Any", place: "Callable[[Any], Any]") -> "Any":
    """Return the command line with paths replaced by those of the shadow tree; for `sh -c text` rewrite the text."""
    words = list(args)
    name = os.path.basename(os.fsdecode(words[0])) if words else ""
    for at in range(1, len(words)):
        word = words[at]
        if name in _SHELLS and isinstance(word, str) and words[at - 1] in ("-c", "-lc", "-ec", "-ce", "-xc", "-exc"):
            words[at] = led(word, _redirect(), place)
        elif isinstance(word, str) and word.startswith("-") and "=" in word:
            option, _, value = word.partition("=")
            words[at] = option + "=" + place(value) if value else word
        elif isinstance(word, (str, bytes)) or hasattr(word, "__fspath__"):
            words[at] = place(word)
    return words


def hook(module: "Any", place: "Callable[[Any], Any]") -> None:
    """Patch subprocess.Popen. `module`: subprocess. `place`: returns the shadow path for a path, or the path itself."""
    plain = module.Popen.__init__

    def __init__(self: "Any", args: "Any", *more: "Any", **kwargs: "Any") -> None:
        try:
            if isinstance(args, (str, bytes)):
                if kwargs.get("shell") and isinstance(args, str):
                    args = led(args, _redirect(), place)
            elif not kwargs.get("shell") and not hasattr(args, "__fspath__"):
                args = _words(args, place)
            if kwargs.get("cwd"):
                kwargs["cwd"] = place(kwargs["cwd"])
        except Exception:
            pass
        plain(self, args, *more, **kwargs)

    __init__.__wrapped__ = plain  # type: ignore[attr-defined]
    module.Popen.__init__ = __init__


def system(plain: "Callable[[Any], int]", place: "Callable[[Any], Any]") -> "Callable[[Any], int]":
    """Return a replacement of os.system that rewrites the shell text."""

    def call(command: "Any") -> int:
        try:
            if isinstance(command, str):
                command = led(command, _redirect(), place)
        except Exception:
            pass
        return plain(command)

    call.__name__, call.__doc__ = "system", plain.__doc__
    return call
