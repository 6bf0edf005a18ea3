"""Parse a batch script into commands, words, redirections and here-documents without running it. Pure.

The grammar is that of bash(1), Debian's release 5.2, with `shopt -s extglob`. The parser accepts any text: what is no
valid script gives the commands that can still be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.prerun.static.shell_words import Heredoc, Part, RawCommand, RawWord, Redirection

__all__ = ["parse_commands", "parse_substitutions"]


# The word for `> file` and `done > file`, which run no command of their own.
_NOTHING = RawWord(parts=(("text", ":", ""),))


def parse_commands(script: str) -> tuple[RawCommand, ...]:
    """Return all simple commands of `script` in order. Those in functions, loops and branches are not `sure`.

    Commands in substitutions are left out: parse_substitutions returns them.
    """
    return tuple(_ListReader(_Scanner(script)).read())


def parse_substitutions(script: str) -> tuple[RawCommand, ...]:
    """Return the simple commands in $(...), `...`, <(...) and >(...), also in strings and here-documents.

    The positions of redirections in backquotes and here-documents are not those in `script`.
    """
    scanner = _Scanner(script)
    _ListReader(scanner).read()
    return tuple(scanner.substituted)


_OPERATOR = re.compile(r"\n|;;&|;[;&]?|&&|&(?!>)|\|[|&]?|[()]")
_REDIRECTION = re.compile(r"(?:(\d+|\{[A-Za-z_]\w*\})(?=[<>]))?(<<[<-]?|[<>]&|<>|>[>|]|[<>](?!\()|&>>?)")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)+")
# A whole word, and a part of a word, that need no further look.
_PLAIN_WORD = re.compile(r"[\w./,%^:=@+-]+(?=[ \t\r\n;|)])")
_PLAIN = re.compile(r"[\w./,%^-]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"([A-Za-z_]\w*|\d+|[@*])(:?[-=?+]|(?=\}))")
# The rest is compiled when it is first used: gsub waits for each compilation, and most scripts need few of them.
_EMPTY_BRACKETS = r"[ \t]*\([ \t]*\)"
_TILDE = r"~([A-Za-z_][\w.-]*)?(?=[/:\s;&|()<>]|$)"
_ASSIGNED = r"[A-Za-z_]\w*\+?=([^=]*:)?$"
_ARRAY = r"(?s)[A-Za-z_]\w*(?:\[.*\])?\+?="
# An index with blanks; any other one is read as part of the word.
_SUBSCRIPT = r"\[[^\[\]\n'\"`;&|<>]{0,100}[ \t][^\[\]\n'\"`;&|<>]{0,100}(\]\+?=)"
_BACKQUOTED = r"(?s)`((?:[^`\\]+|\\.)*)`?"
_ANSI_C_STRING = r"(?s)\$'((?:[^'\\]+|\\.)*)'?"
_TEST_OPERATOR = r"&&|\|\||[()]|[<>](?!\()"
_DOUBLE_QUOTED_RUN = r'[^"\\$`]+'
_BRACED_RUN = r"[^}\"'\\$`]+"
_ARITHMETIC_RUN = r"[^()\"'\\$`]+"
_HEREDOC_RUN = r"[^\\$`]+"
_PATTERN_RUN = r"[^()\"'\\$`\n]+"
_REGEX_RUN = r"[^()\"'\\$`\s]+"
_SPECIAL_PARAMETERS = frozenset("@*#0123456789?$!-")
# Substitutions within substitutions: what is nested deeper is not analysed, and the script counts as ended there.
_MAX_DEPTH = 40


def _match(pattern: str, text: str, at: int) -> re.Match[str] | None:
    return re.compile(pattern).match(text, at)


class _Scanner:
    """Reads words, redirections and here-documents at the position `at`, in time proportional to the text."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, 0, depth
        # Here-documents whose bodies begin after the next newline.
        self.pending: list[Heredoc] = []
        # Commands in substitutions.
        self.substituted: list[RawCommand] = []
        self.has_extglob = "extglob" in text
        self._counted, self._line = 0, 1
        # Positions of brackets that are no arithmetic, and how many more characters may be read in vain to find them.
        self._no_arithmetic: set[int] = set()
        self._budget = len(text) + 1000

    def count_line(self, at: int) -> int:
        """Return the number of the line of a position."""
        low, high = sorted((self._counted, at))
        breaks = self.text.count("\n", low, high)
        self._line += breaks if at >= self._counted else -breaks
        self._counted = at
        return self._line

    def skip_blanks(self) -> None:
        """Skip blanks, line continuations and a comment. Stop at a newline."""
        if blanks := _BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        if self.text.startswith("#", self.at):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def skip_lines(self) -> None:
        """Skip blanks, comments and newlines, and the here-documents after a newline."""
        self.skip_blanks()
        while self.text.startswith("\n", self.at):
            self.take_newline()
            self.skip_blanks()

    def take_newline(self) -> None:
        """Skip a newline and the here-documents that begin after it."""
        self.at += 1
        pending, self.pending = self.pending, []
        for here in pending:
            self._read_heredoc(here)

    def take(self, text: str) -> bool:
        """Skip `text` if it is next."""
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _read_heredoc(self, here: Heredoc) -> None:
        here.line, lines = self.count_line(self.at), list[str]()
        continued = False
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            line, self.at = self.text[self.at : end], end + 1
            line = line.lstrip("\t") if here.dashed else line
            if line == here.delimiter and not continued:
                here.ended = True
                break
            lines.append(line)
            continued = not here.quoted and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        self.at = min(self.at, len(self.text))
        here.body = "".join(f"{line}\n" for line in lines)
        if not here.quoted and self.depth < _MAX_DEPTH and ("$(" in here.body or "`" in here.body):
            self._add_inner(here.body, here.line, _Scanner.skip_heredoc_text)

    def skip_heredoc_text(self) -> None:
        """Read the whole text as the body of a here-document."""
        self._read_until("", _HEREDOC_RUN, [], in_quotes=True)

    def skip_list(self) -> None:
        """Read the whole text as commands in a substitution."""
        self.substituted[:0] = _ListReader(self).read()

    def _add_inner(self, text: str, line: int, read: Callable[[_Scanner], None]) -> None:
        """Add the commands in the substitutions of a text that begins at `line` and is not a slice of the script."""
        inner = _Scanner(text, self.depth + 1)
        read(inner)
        self.substituted += [replace(one, line=one.line + line - 1) for one in inner.substituted]

    def read_redirection(self) -> Redirection | None:
        """Return the redirection that begins here; None if there is none."""
        found = _REDIRECTION.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        if blanks := _BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        start, operator = self.at, found[2]
        word, here = self.read_word(), None
        if operator in ("<<", "<<-") and word.parts:
            delimiter = word.literal
            if delimiter is None:
                # Nothing is expanded in it.
                delimiter = re.sub(r"\\\n|[\"'\\]", "", self.text[start : self.at])
            here = Heredoc(delimiter=delimiter, dashed=operator == "<<-", quoted=word.quoted)
            self.pending.append(here)
        return Redirection(
            operator=operator, word=word, start=start, end=self.at, descriptor=found[1] or "", heredoc=here
        )

    def read_word(self, *, first: bool = False) -> RawWord:
        """Return the word that begins here. It has no parts if none does.

        `first`: an assignment to an element of an array may begin here.
        """
        text, line = self.text, self.count_line(self.at)
        if plain := _PLAIN_WORD.match(text, self.at):
            self.at = plain.end()
            return RawWord(parts=(("text", plain[0], ""),), line=line)
        parts: list[Part] = []
        quoted = glob = False
        # Unquoted characters so far that may belong to a pattern or a brace expansion.
        seen = ""
        while self.at < len(text):
            if plain := _PLAIN.match(text, self.at):
                parts.append(("text", plain[0], ""))
                self.at = plain.end()
                seen += "," if "{" in seen and "," not in seen and ("," in plain[0] or ".." in plain[0]) else ""
                continue
            here, before_bracket = text[self.at], text.startswith("(", self.at + 1)
            if here in "'\"\\$`":
                quoted = quoted or here in "'\"" or (here == "$" and text.startswith(("'", '"'), self.at + 1))
                quoted = quoted or (here == "\\" and not text.startswith("\n", self.at + 1))
                self._read_special(parts)
            elif here in "<>" and before_bracket:
                self.at += 2
                parts.append(("process", self._read_substitution(), ""))
            elif here in "?*+@!" and before_bracket:
                self._read_run(_PATTERN_RUN, parts)
                glob = True
            elif here == "(" and re.fullmatch(_ARRAY, _join_text(parts)):
                self._skip_array()
                parts.append(("unknown", "", ""))
            elif here in " \t\r\n;&|()<>":
                break
            elif here == "~" and _is_path_beginning(parts, quoted) and (tilde := _match(_TILDE, text, self.at)):
                parts.append(("home", tilde[1], "") if tilde[1] else ("variable", "HOME", ""))
                self.at = tilde.end()
            elif (
                here == "["
                and first
                and len(parts) == 1
                and _NAME.fullmatch(parts[0][1])
                and (index := _match(_SUBSCRIPT, text, self.at))
            ):
                parts += [("text", "[", ""), ("unknown", "", ""), ("text", index[1], "")]
                self.at = index.end()
            else:
                # `~+` and `~-` are directories that only the shell knows.
                glob = glob or here in "*?" or (here == "~" and not parts)
                glob = glob or (here == "]" and "[" in seen) or (here == "}" and "," in seen)
                seen += here if here in "[{" and here not in seen else ""
                parts.append(("text", here, ""))
                self.at += 1
        whole = _merge_parts(parts) or ((("text", "", ""),) if quoted else ())
        return RawWord(parts=whole, quoted=quoted, glob=glob, line=line)

    def _read_special(self, parts: list[Part]) -> bool:
        """Read what begins here with a quote, a backslash, `$` or a backquote. Return False if nothing does."""
        here = self.text[self.at]
        if here in "'\"\\" or (here == "$" and self.text.startswith(("'", '"'), self.at + 1)):
            self._read_quoting(parts)
        elif here in "$`":
            self._read_expansion(parts, in_quotes=False)
        else:
            return False
        return True

    def _read_run(self, run: str, parts: list[Part]) -> None:
        """Read up to the first character outside of brackets and quotes that `run` does not match."""
        depth = 0
        while self.at < len(self.text):
            here = self.text[self.at]
            if plain := _match(run, self.text, self.at):
                parts.append(("text", plain[0], ""))
                self.at = plain.end()
            elif here in "()":
                depth += 1 if here == "(" else -1
                if depth < 0:
                    return
                parts.append(("text", here, ""))
                self.at += 1
                if depth == 0 and run is _PATTERN_RUN:
                    return
            elif not self._read_special(parts):
                if depth == 0 or here == "\n":
                    return
                parts.append(("text", here, ""))
                self.at += 1

    def _skip_array(self) -> None:
        """Skip the values of an array: words, comments and newlines in brackets."""
        self.at = self.at + 1 if self.depth < _MAX_DEPTH else len(self.text)
        self.depth += 1
        while self.at < len(self.text):
            self.skip_lines()
            if self.take(")"):
                break
            before = self.at
            self.read_word()
            self.at += self.at == before
        self.depth -= 1

    def _read_quoting(self, parts: list[Part]) -> None:
        """Read what begins here with a quote or a backslash outside of double quotes."""
        text = self.text
        if self.take("\\"):
            escaped = text[self.at : self.at + 1]
            self.at += len(escaped)
            parts += [("text", escaped or "\\", "")] if escaped != "\n" else []
        elif self.take("'"):
            end = text.find("'", self.at)
            end = len(text) if end < 0 else end
            parts.append(("text", text[self.at : end], ""))
            self.at = min(end + 1, len(text))
        elif ansi := _match(_ANSI_C_STRING, text, self.at):
            parts.append(("text", _decode_ansi_c(ansi[1]), ""))
            self.at = ansi.end()
        else:
            # "..." and its translation, $"...".
            self.at += 2 if self.text[self.at] == "$" else 1
            self._read_until('"', _DOUBLE_QUOTED_RUN, parts, in_quotes=True)

    def _read_until(self, end: str, run: str, parts: list[Part], *, in_quotes: bool) -> None:
        """Read up to and past `end`. `run` matches what needs no further look."""
        text = self.text
        while self.at < len(text):
            if plain := _match(run, text, self.at):
                parts.append(("text", plain[0], ""))
                self.at = plain.end()
            elif end and self.take(end):
                return
            elif in_quotes and text[self.at] == "\\":
                escaped = text[self.at + 1 : self.at + 2]
                kept = escaped if escaped and escaped in '"\\$`' + end else "\\" + escaped
                parts.append(("text", "" if escaped == "\n" else kept, ""))
                self.at += 1 + len(escaped)
            elif in_quotes and text[self.at] in "$`":
                self._read_expansion(parts, in_quotes=True)
            elif in_quotes and end == "}" and text[self.at] == "'" and (close := text.find("'", self.at + 1)) > 0:
                # In "${X:-'}'}" the quotes are letters of the value, but the first bracket between them ends nothing.
                value = text[self.at : close + 1]
                parts.append(("unknown", "", "") if "$" in value or "`" in value else ("text", value, ""))
                self.at = close + 1
            elif (in_quotes and text[self.at] == "'") or not self._read_special(parts):
                parts.append(("text", text[self.at], ""))
                self.at += 1

    def _read_expansion(self, parts: list[Part], *, in_quotes: bool) -> None:
        """Read a variable or a substitution that begins here with `$` or a backquote."""
        text, start = self.text, self.at
        if text[start] == "`" and (backquoted := _match(_BACKQUOTED, text, start)):
            self.at = backquoted.end()
            inner = re.sub(r"\\([\\`$])", r"\1", backquoted[1])
            if self.depth < _MAX_DEPTH and inner.strip():
                self._add_inner(inner, self.count_line(start), _Scanner.skip_list)
            parts.append(("unknown", inner[:200], ""))
            return
        self.at += 1
        following = text[self.at : self.at + 1]
        if following == "(":
            self.at += 1
            arithmetic = text.startswith("(", self.at) and self.read_arithmetic()
            parts.append(("unknown", "" if arithmetic else self._read_substitution(), ""))
        elif following == "{":
            self.at += 1
            parts.append(self._read_braced(in_quotes=in_quotes))
        elif name := _NAME.match(text, self.at):
            self.at = name.end()
            parts.append(("variable", name[0], ""))
        elif following and following in _SPECIAL_PARAMETERS:
            self.at += 1
            parts.append(("unknown", "", "") if following in "?$!-" else ("variable", following, ""))
        elif following == "[":
            # An older form of $((...)).
            end = text.find("]", self.at)
            self.at = len(text) if end < 0 else end + 1
            parts.append(("unknown", "", ""))
        else:
            parts.append(("text", "$", ""))

    def _read_braced(self, *, in_quotes: bool) -> Part:
        """Read ${...}, of which the first two characters are read already."""
        if self.depth >= _MAX_DEPTH:
            self.at = len(self.text)
            return ("unknown", "", "")
        self.depth += 1
        head = _BRACED.match(self.text, self.at)
        self.at = head.end() if head else self.at
        # The double quotes around it apply to a default, but not to a pattern.
        inner: list[Part] = []
        self._read_until("}", _BRACED_RUN, inner, in_quotes=in_quotes and bool(head and head[2]))
        self.depth -= 1
        whole = _merge_parts(inner)
        if head and head[2] in ("", "-", ":-") and all(kind == "text" for kind, _, _ in whole):
            return ("variable", head[1], whole[0][1] if whole else "")
        return ("unknown", "", "")

    def _read_substitution(self) -> str:
        """Read the commands up to the bracket that closes the current one. Return their code, cut to 200 letters."""
        start, pending = self.at, self.pending
        if self.depth >= _MAX_DEPTH:
            self.at = len(self.text)
            return ""
        self.depth += 1
        # The body of a here-document in the brackets begins after a newline in them.
        self.pending = []
        self.substituted += _ListReader(self, closing=")").read()
        self.pending = pending + self.pending
        self.depth -= 1
        return self.text[start : self.at - 1][:200]

    def read_arithmetic(self) -> bool:
        """Read an expression that begins here at the second of two brackets, up to and past `))`.

        Return False, and read nothing, if the brackets are a subshell in other brackets.
        """
        start, pending, substituted = self.at, self.pending, len(self.substituted)
        if start in self._no_arithmetic or self._budget < 0 or self.depth >= _MAX_DEPTH:
            return False
        self.depth += 1
        self.pending = []
        depth = 0
        while self.at < len(self.text):
            if plain := _match(_ARITHMETIC_RUN, self.text, self.at):
                self.at = plain.end()
            elif self.text[self.at] in "()":
                depth += 1 if self.text[self.at] == "(" else -1
                self.at += 1
                if depth == 0:
                    break
            else:
                self._read_special([])
        self.depth -= 1
        self.pending = pending
        if depth == 0 and self.take(")"):
            return True
        self._budget -= self.at - start
        self._no_arithmetic.add(start)
        self.at = start
        del self.substituted[substituted:]
        return False

    def read_test(self) -> list[RawWord]:
        """Return the words and operators after `[[`, up to `]]`."""
        words: list[RawWord] = []
        while self.at < len(self.text) and not (words and words[-1].bare == "]]"):
            self.skip_lines()
            if operator := _match(_TEST_OPERATOR, self.text, self.at):
                words.append(RawWord(parts=(("text", operator[0], ""),), line=self.count_line(self.at)))
                self.at = operator.end()
            elif words and words[-1].bare == "=~":
                parts: list[Part] = []
                line = self.count_line(self.at)
                self._read_run(_REGEX_RUN, parts)
                words.append(RawWord(parts=_merge_parts(parts), quoted=True, line=line))
            else:
                word = self.read_word()
                if not word.parts:
                    # A `;` or the like: the test never ends.
                    break
                words.append(word)
        return words


# Reserved words that begin a compound command, and the word that ends it.
_COMPOUND = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac", "{": "}"}
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_SEPARATING = frozenset({"then", "else", "elif", "do"})
_PREFIXES = frozenset({"!", "time", "coproc", "function"})
_RESERVED = frozenset(_COMPOUND) | _CLOSING | _SEPARATING | _PREFIXES
_PIPES = ("|", "|&")
_TIME_OPTIONS = r"(?:[ \t]+(?:-p|--)(?=\s))+"
_COPROC_NAME = r"[ \t]+[A-Za-z_]\w*[ \t]+(?=[{(]|(?:while|until|if|for|case|select|\[\[)\s)"
_TESTS = ("[", "[[", "((", "test", "grep", "command", "which", "type")


@dataclass(slots=True, kw_only=True)
class _Compound:
    """An open compound command. What holds for all commands in it."""

    # The word or bracket that ends it.
    closing: str
    sure: bool
    feeds: bool = False
    in_function: bool = False
    # Whether it is sure as a whole, so that its redirections are made.
    whole_sure: bool = True
    # The next words are patterns of `case`.
    patterns: bool = False
    # Nothing was read after the words of `for`.
    empty: bool = False


class _ListReader:
    """Reads a list of commands: the script, or the inside of a substitution that ends with `closing`."""

    def __init__(self, scanner: _Scanner, closing: str = "") -> None:
        self.scanner = scanner
        self.found: list[RawCommand] = []
        self.open = [_Compound(closing=closing, sure=True)]
        # How many of the open ones end so.
        self.count = dict.fromkeys(("fi", "done", "esac", "}", ")"), 0) | {closing: 1}
        # The command that is being read.
        self.words: list[RawWord] = []
        self.redirections: list[Redirection] = []
        self.line = 0
        # The compound command that was closed last, if its redirections may follow.
        self.closed: _Compound | None = None
        # The operator before the current command.
        self.after = ""
        # The next compound command is a function's body; the next command runs as a coprocess.
        self.defines = self.is_coprocess = False

    def read(self) -> list[RawCommand]:
        """Return the commands up to and past the closing bracket."""
        scanner, text = self.scanner, self.scanner.text
        while self.open:
            scanner.skip_blanks()
            if scanner.at >= len(text):
                break
            if self.open[-1].patterns:
                self._skip_pattern()
            elif operator := _OPERATOR.match(text, scanner.at):
                self._take_operator(operator[0])
            elif not self._take_redirection():
                self._take_word()
        self._end_command("")
        return self.found

    def _take_redirection(self) -> bool:
        line = self.scanner.count_line(self.scanner.at)
        redirection = self.scanner.read_redirection()
        if redirection is not None and redirection.word.parts:
            self.line = self.line or line
            self.redirections.append(redirection)
        return redirection is not None

    def _take_word(self) -> None:
        scanner = self.scanner
        if not self.words and scanner.text.startswith("!(", scanner.at) and not scanner.has_extglob:
            scanner.at += 1
            return
        word = scanner.read_word(first=not self.words or "=" in self.words[-1].parts[0][1])
        if not self.words and word.bare in _RESERVED:
            self._take_reserved_word(word.bare or "")
            return
        self.open[-1].empty = False
        self.line = self.line or word.line
        self.words.append(word)
        if len(self.words) == 1 and word.bare == "[[":
            self.words += scanner.read_test()

    def _take_reserved_word(self, word: str) -> None:
        scanner, compound = self.scanner, self.open[-1]
        if word == "{" and compound.empty:
            # `for x in a b; { ...; }`
            self.count[compound.closing] -= 1
            self.count["}"] += 1
            compound.closing, compound.empty = "}", False
        elif word in _COMPOUND:
            self._open_compound(_COMPOUND[word], keeps_sure=word == "{")
            if word in ("for", "select"):
                self._skip_loop_words()
            elif word == "case":
                scanner.skip_blanks()
                scanner.read_word()
                scanner.skip_lines()
                self.open[-1].patterns = scanner.read_word().bare == "in"
        elif word in _CLOSING:
            self._close_compound(word)
        elif word in _SEPARATING:
            compound.empty = False
            self.after = ""
        elif word == "time":
            options = _match(_TIME_OPTIONS, scanner.text, scanner.at)
            scanner.at = options.end() if options else scanner.at
        elif word == "coproc":
            name = _match(_COPROC_NAME, scanner.text, scanner.at)
            scanner.at = name.end() if name else scanner.at
            self.is_coprocess = True
        elif word == "function":
            scanner.skip_blanks()
            scanner.read_word()
            brackets = _match(_EMPTY_BRACKETS, scanner.text, scanner.at)
            scanner.at = brackets.end() if brackets else scanner.at
            self.defines = True

    def _skip_loop_words(self) -> None:
        """Skip `((...))`, or `NAME in WORD...` up to the separator."""
        scanner = self.scanner
        scanner.skip_blanks()
        if scanner.text.startswith("((", scanner.at):
            scanner.at += 1
            scanner.read_arithmetic()
        else:
            scanner.read_word()
            scanner.skip_lines()
            if re.match(r"in(?=[\s;])", scanner.text[scanner.at : scanner.at + 3]):
                scanner.at += 2
                scanner.skip_blanks()
                while scanner.read_word().parts:
                    scanner.skip_blanks()
        self.open[-1].empty = True

    def _skip_pattern(self) -> None:
        """Skip a pattern of `case` with its bracket; stop before `esac`."""
        scanner = self.scanner
        self.open[-1].patterns = False
        self.after = ""
        scanner.skip_lines()
        if not scanner.take("(") and re.match(r"esac(?![^\s;&|()<>])", scanner.text[scanner.at : scanner.at + 5]):
            return
        while scanner.at < len(scanner.text):
            scanner.skip_lines()
            word = scanner.read_word()
            scanner.skip_blanks()
            if scanner.take(")") or not (scanner.take("|") or word.parts):
                return

    def _take_operator(self, operator: str) -> None:
        scanner = self.scanner
        if operator == "(":
            if brackets := len(self.words) == 1 and _match(_EMPTY_BRACKETS, scanner.text, scanner.at):
                scanner.at = brackets.end()
                self.words, self.line, self.defines = [], 0, True
                return
            if not self.words and scanner.text.startswith("((", scanner.at) and self._take_arithmetic():
                return
        if operator == "\n":
            scanner.take_newline()
        else:
            scanner.at += len(operator)
        if operator != "(" or self.words:
            self._end_command(operator)
        if operator == "(":
            self._open_compound(")", keeps_sure=False)
        elif operator == ")":
            self._close_compound(")")
        elif operator in (";;", ";&", ";;&"):
            self.open[-1].patterns = self.open[-1].closing == "esac"

    def _take_arithmetic(self) -> bool:
        scanner = self.scanner
        start, line = scanner.at, scanner.count_line(scanner.at)
        scanner.at += 1
        if not scanner.read_arithmetic():
            scanner.at = start
            return False
        self.line = self.line or line
        self.words = [RawWord(parts=parts, line=line) for parts in ((("text", "((", ""),), (("unknown", "", ""),))]
        return True

    def _open_compound(self, closing: str, *, keeps_sure: bool) -> None:
        around, sure = self.open[-1], self._is_sure() and not self.defines
        self.open.append(
            _Compound(
                closing=closing,
                sure=sure and keeps_sure,
                feeds=around.feeds or self.after in _PIPES,
                in_function=around.in_function or self.defines,
                whole_sure=sure,
            )
        )
        self.count[closing] += 1
        self.after, self.closed, self.defines, self.is_coprocess = "", None, False, False

    def _close_compound(self, closing: str) -> None:
        """Close the innermost compound command that ends so, and those in it. A stray word ends none."""
        self.closed = None
        if not self.count[closing]:
            return
        while self.closed is None or self.closed.closing != closing:
            self.closed = self.open.pop()
            self.count[self.closed.closing] -= 1
        self.after = ""

    def _end_command(self, operator: str) -> None:
        """Add the command that ends here."""
        words = tuple(self.words) or ((_NOTHING,) if self.redirections else ())
        if words:
            around = self.closed if not self.words else None
            self.found.append(
                RawCommand(
                    words=words,
                    line=self.line,
                    sure=around.whole_sure if around is not None else self._is_sure() and not self.defines,
                    redirections=tuple(self.redirections),
                    feeds=self.open[-1].feeds or self.after in _PIPES,
                    in_function=(around or self.open[-1]).in_function or self.defines,
                    then=operator,
                )
            )
            self.defines = False
        if words or self.closed is not None or operator != "\n":
            self.after, self.is_coprocess = operator, False
        self.words, self.redirections, self.line, self.closed = [], [], 0, None

    def _is_sure(self) -> bool:
        """Return whether a command that begins here runs whenever the script does."""
        continued = self.after != "&&" or (bool(self.found) and _is_continued(self.found[-1]))
        return self.open[-1].sure and self.after != "||" and continued and not self.is_coprocess


def _is_continued(command: RawCommand) -> bool:
    # A command after `cd x &&` runs in every job worth checking; a command after a test may not run.
    return command.sure and command.words[0].literal not in _TESTS


_ANSI_C_ESCAPE = r"(?s)\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))"
_ANSI_C_LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\33\33\f\n\r\t\v\\'\"?", strict=True))


def _decode_ansi_c(text: str) -> str:
    """Return the value of $'text'. Bytes that are no UTF-8 become surrogates. The value ends at a NUL, as in bash."""
    found = bytearray()
    at = 0
    for escape in re.finditer(_ANSI_C_ESCAPE, text):
        found += text[at : escape.start()].encode("utf-8", "surrogateescape")
        at = escape.end()
        byte, short, long, octal, control, letter = escape.groups()
        if byte or octal:
            found.append(int(byte, 16) if byte else int(octal, 8) & 0xFF)
        elif short or long:
            found += chr(min(int(short or long, 16), 0x10FFFF)).encode("utf-8", "replace")
        elif control:
            found.append(0x7F if control == "?" else ord(control) & 0x1F)
        else:
            found += _ANSI_C_LETTERS.get(letter, escape[0]).encode("utf-8", "surrogateescape")
    found += text[at:].encode("utf-8", "surrogateescape")
    return bytes(found).partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _join_text(parts: list[Part]) -> str:
    return "".join(value for kind, value, _ in parts if kind == "text")


def _is_path_beginning(parts: list[Part], quoted: bool) -> bool:
    """Return whether the shell expands a tilde after `parts`.

    It does at the beginning of a word and of an assigned value, and after a colon in that value (bash(1), Tilde
    Expansion).
    """
    if quoted or not parts:
        return not quoted
    # A longer value is no path or list of paths that a user wrote.
    if parts[0][0] != "text" or parts[-1][0] != "text" or len(parts) > 500:
        return False
    return parts[-1][1].endswith(("=", ":")) and re.match(_ASSIGNED, _join_text(parts)) is not None


def _merge_parts(parts: list[Part]) -> tuple[Part, ...]:
    """Return `parts` with neighbouring texts joined, and without empty ones beside others."""
    merged: list[Part] = []
    texts: list[str] = []
    for part in (*parts, None):
        if part is not None and part[0] == "text":
            texts.append(part[1])
            continue
        if any(texts) or (texts and len(texts) == len(parts)):
            merged.append(("text", "".join(texts), ""))
        texts = []
        merged += [part] if part is not None else []
    return tuple(merged)
