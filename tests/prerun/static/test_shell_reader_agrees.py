"""The shell parser and tree-sitter-bash find the same commands in batch scripts, and bash the same words."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmwrap.prerun.static.shell_parser import parse_commands
from slurmwrap.prerun.static.shell_words import RawCommand, RawWord

tree_sitter = pytest.importorskip("tree_sitter")
tree_sitter_bash = pytest.importorskip("tree_sitter_bash")

# Stands for an expansion, whatever it is: the two parsers are compared in what they take for one, not in its result.
EXPANSION = "\0"


@dataclass
class Command:
    """A simple command in the form in which both parsers are compared."""

    line: int
    words: list[str] = field(default_factory=list)
    redirections: list[tuple[str, str]] = field(default_factory=list)

    def make_key(self) -> tuple[int, tuple[str, ...], tuple[tuple[str, str], ...]]:
        words = [_join_expansions(word) for word in self.words]
        # One parser takes `time` for a program.
        while (words[:1] == ["time"] and len(words) > 1) or words[:1] == ["-p"]:
            words = words[1:]
        if words[:1] in (["["], ["[["]):
            # One parser may see `a == b` where the other sees `a`, `==`, `b`.
            words = [words[0], re.sub(r"\s", "", "".join(words[1:]))]
        return self.line, tuple(words), tuple(sorted((op, _join_expansions(word)) for op, word in self.redirections))


def _join_expansions(text: str) -> str:
    return re.sub("\0+", "\0", text)


def list_own(script: str) -> list[tuple]:
    return sorted(_make_own(command).make_key() for command in parse_commands(script))


def _make_own(command: RawCommand) -> Command:
    words = [_get_static_text(word) for word in command.words]
    redirections = []
    for one in command.redirections:
        text = _get_static_text(one.word) if one.heredoc is None else _strip_body(one.heredoc.body)
        redirections.append((one.operator, text))
    return Command(command.line, words, redirections)


def _strip_body(body: str) -> str:
    """Remove what the grammar leaves out: empty lines at the beginning, and tabs after `<<-`."""
    return re.sub(r"^\t+", "", body, flags=re.MULTILINE).strip("\n")


def _get_static_text(word: RawWord) -> str:
    return "".join(value if kind == "text" else EXPANSION for kind, value, _ in word.parts)


# What a command may contain that is a program of its own, or no command.
_OPAQUE = {
    *(
        "command_substitution",
        "process_substitution",
        "expansion",
        "simple_expansion",
        "arithmetic_expansion",
        "string",
    ),
    *("translated_string", "raw_string", "ansi_c_string", "array", "comment", "heredoc_body"),
}
_EXPANSIONS = {
    *("command_substitution", "process_substitution", "expansion", "simple_expansion", "arithmetic_expansion", "array"),
}
_SIMPLE = {
    "command",
    "declaration_command",
    "unset_command",
    "test_command",
    "variable_assignment",
    "variable_assignments",
}
_REDIRECTIONS = {"file_redirect", "heredoc_redirect", "herestring_redirect"}


class Reference:
    """The commands of a script according to tree-sitter-bash."""

    def __init__(self, script: str) -> None:
        self.source = script.encode()
        self.root = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language())).parse(self.source).root_node
        self.found: list[Command] = []
        # It has errors, or a command that contains a newline.
        self.faulty = self.root.has_error

    def list_commands(self) -> list[tuple]:
        self._visit(self.root)
        return sorted(command.make_key() for command in self.found)

    def _add(self, node) -> Command:
        self.found.append(Command(node.start_point.row + 1))
        return self.found[-1]

    def _visit(self, node) -> None:
        kind = node.type
        if kind in _OPAQUE:
            return
        if kind in _SIMPLE:
            self._read_simple(node)
        elif kind == "redirected_statement":
            self._read_redirected(node)
        elif kind == "function_definition":
            self._visit(node.child_by_field_name("body"))
            self._attach([one for one in node.children if one.type in _REDIRECTIONS], None)
        elif kind == "compound_statement" and node.children and node.children[0].type == "((":
            self._add(node).words = ["((", EXPANSION]
        elif kind in ("for_statement", "c_style_for_statement"):
            self._visit(node.child_by_field_name("body"))
        elif kind == "case_statement":
            for one in node.children:
                if one.type == "case_item":
                    self._visit(one)
        elif kind == "case_item":
            values = node.children_by_field_name("value")
            for one in node.children:
                if one not in values:
                    self._visit(one)
        else:
            for one in node.children:
                self._visit(one)

    def _read_simple(self, node) -> Command:
        command = self._add(node)
        if node.type == "variable_assignment":
            command.words.append(self._get_text(node))
            return command
        if node.type == "test_command":
            if node.children[0].type == "((":
                command.words = ["((", EXPANSION]
            else:
                command.words = [node.children[0].type, *self._list_leaves(node.children[1:])]
                # The grammar reads on after `[ $# -lt 2 ]`.
                self.faulty = self.faulty or (command.words[0] == "[" and command.words.count("]") > 1)
            return command
        for one in node.children:
            if one.type in _REDIRECTIONS:
                self._attach([one], command)
            elif one.type not in ("comment", "\\\n"):
                self._add_word(command, one)
        return command

    def _add_word(self, command: Command, node) -> None:
        before = node.prev_sibling
        gap = self.source[before.end_byte : node.start_byte].decode() if before is not None else " "
        # A newline ends a command, but the grammar may miss it.
        self.faulty = self.faulty or "\n" in gap.replace("\\\n", "")
        if gap or not command.words:
            command.words.append(self._get_text(node))
        else:
            # The grammar splits $A/$B.c into `$A/$` and `B.c`.
            command.words[-1] = re.sub(r"\$(\w+)", EXPANSION, command.words[-1] + self._get_text(node))

    def _list_leaves(self, nodes) -> list[str]:
        return [
            text
            for one in nodes
            for text in (
                [self._get_text(one)]
                if one.type in _OPAQUE
                or one.type in ("word", "concatenation", "regex", "extglob_pattern")
                or not one.children
                else self._list_leaves(one.children)
            )
        ]

    def _read_redirected(self, node) -> None:
        body = node.child_by_field_name("body")
        before = len(self.found)
        if body is not None:
            self._visit(body)
        redirections = [one for one in node.children if one.type in _REDIRECTIONS]
        last = body
        while last is not None and last.type in ("list", "pipeline", "negated_command", "redirected_statement"):
            inner = [
                one for one in last.children if one.is_named and one.type != "comment" and one.type not in _REDIRECTIONS
            ]
            last = inner[-1] if inner else None
        simple = last is not None and last.type in _SIMPLE and len(self.found) > before
        if simple and redirections:
            # `-` before `<<` belongs to no node.
            self.found[-1].words += (
                self.source[last.end_byte : redirections[0].start_byte].decode().replace("\\\n", "").split()
            )
        self._attach(redirections, self.found[-1] if simple else None)

    def _attach(self, redirections: list, command: Command | None) -> None:
        for one in redirections:
            if command is None:
                command = self._add(one)
                command.words = [":"]
            self._read_redirection(one, command)

    def _read_redirection(self, node, command: Command) -> None:
        if node.type == "heredoc_redirect":
            body = next((one for one in node.children if one.type == "heredoc_body"), None)
            text = self.source[body.start_byte : body.end_byte].decode() if body is not None else ""
            command.redirections.append((node.children[0].type, _strip_body(text)))
            for one in node.children:
                if one.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
                    self._read_redirection(one, command)
                elif one.type in ("heredoc_start", "heredoc_end", "heredoc_body", "file_descriptor"):
                    continue
                elif one in node.children_by_field_name("argument"):
                    self._add_word(command, one)
                elif one.is_named:
                    self._visit(one)
        elif node.type == "herestring_redirect":
            command.redirections.append(("<<<", self._get_text(node.children[-1])))
        elif node.type == "file_redirect":
            operator = next(one.type for one in node.children if re.fullmatch("[<>&|-]+", one.type))
            given = node.children_by_field_name("destination")
            word = self._get_text(given[0]) if given else ""
            if operator in (">&-", "<&-"):
                operator, word, given = operator[:2], "-", [None, *given]
            command.redirections.append((operator, word))
            # The grammar takes the words after `> file` for further destinations.
            for one in given[1:]:
                self._add_word(command, one)

    def _get_text(self, node) -> str:
        kind, text = node.type, self.source[node.start_byte : node.end_byte].decode()
        if kind in _EXPANSIONS:
            # In a string, the blanks before an expansion belong to its node.
            return re.match(r"(?:\s|\\\n)*", text)[0].replace("\\\n", "") + EXPANSION
        if kind == "raw_string":
            return text[1:-1]
        if kind == "ansi_c_string":
            return decode_ansi_c(text[2:-1])
        if kind in ("string", "translated_string"):
            start = node.start_byte + (2 if text.startswith("$") else 1)
            inner = node.children if kind == "string" else node.children[-1].children or node.children
            expanded = [one for one in inner if one.type in _EXPANSIONS]
            return self._join(start, node.end_byte - 1, expanded, r"\\([\"\\$`])")
        if kind == "word" and (tilde := re.match(r"~[\w.-]*(?=/|$)", text)):
            return EXPANSION + self._unescape(node.start_byte + len(tilde[0]), node.end_byte, r"\\(.)")
        return self._join(node.start_byte, node.end_byte, node.children, r"\\(.)")

    def _join(self, start: int, end: int, children: list, escape: str) -> str:
        parts, at = [], start
        for one in children:
            parts.append(self._unescape(at, one.start_byte, escape))
            parts.append(self._get_text(one))
            at = one.end_byte
        parts.append(self._unescape(at, end, escape))
        return "".join(parts)

    def _unescape(self, start: int, end: int, escape: str) -> str:
        text = self.source[start:end].decode().replace("\\\n", "")
        return re.sub(escape, r"\1", text, flags=re.DOTALL)


_ANSI_C = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\033", "E": "\033", "f": "\f", "v": "\v"}


def decode_ansi_c(text: str) -> str:
    def decode(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xuU" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        return _ANSI_C.get(code, code if code in "\\'\"?" else "\\" + code)

    return re.sub(
        r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|.)", decode, text, flags=re.DOTALL
    )


# Scripts.

ROOT = Path(__file__).parents[3]
# A folder of batch scripts to compare besides those of this repository.
FOLDER = "SLURMWRAP_TEST_SCRIPTS"


@dataclass(frozen=True)
class Comparison:
    """How the commands of one script differ; "" if they do not."""

    difference: str
    # It is compared with tree-sitter-bash. If not, then with bash, which gives no line numbers.
    with_lines: bool


def compare_script(script: str) -> Comparison | None:
    """Compare slurmwrap's parser with tree-sitter-bash, or else with bash. None if neither is possible."""
    printed = print_with_bash(script)
    if printed is None:
        return None
    found, reference = list_own(script), Reference(script)
    expected = reference.list_commands()
    if reference.faulty:
        difference = describe_difference("bash", drop_lines(found), drop_lines(list_own(printed)))
        # bash 5.2 may print a here-document in a loop in the wrong place.
        if difference and "<<" in script.replace("<<<", ""):
            return None
    else:
        difference = describe_difference("tree-sitter", found, expected)
    return Comparison(difference, with_lines=not reference.faulty)


def print_with_bash(script: str) -> str | None:
    """Return the script as bash prints it again from what it has read; None if it refuses the script."""
    for options in (["-n"], ["--pretty-print"]):
        done = subprocess.run(["bash", *options, "/dev/stdin"], input=script.encode(), capture_output=True)
        if done.returncode or done.stderr:
            return None
    return done.stdout.decode("utf-8", "replace").replace("coproc COPROC ", "coproc ")


def drop_lines(commands: list[tuple]) -> list[tuple]:
    """Drop what bash changes when it prints a script: lines, continuations, and `|&`, which is `2>&1 |`."""
    return [
        (words, tuple((op, text.replace("\\\n", "")) for op, text in redirections if (op, text) != (">&", "1")))
        for _, words, redirections in commands
    ]


def describe_difference(name: str, own: list[tuple], expected: list[tuple]) -> str:
    more, fewer = Counter(own) - Counter(expected), Counter(expected) - Counter(own)
    shown = [f"\n  {who}: {list(one.elements())[:3]}" for who, one in (("slurmwrap", more), (name, fewer)) if one]
    return "".join(shown)


def check_files(paths: Iterable[Path]) -> None:
    """Compare these files; print the counts; assert that the parsers agree on them and that most can be compared."""
    all_found = {path: compare_script(path.read_bytes().decode("utf-8", "replace")) for path in paths}
    found = {path: comparison for path, comparison in all_found.items() if comparison is not None}
    with_lines = sum(comparison.with_lines for comparison in found.values())
    differing = {path: comparison.difference for path, comparison in found.items() if comparison.difference}
    print(
        f"{len(all_found)} scripts: {with_lines} compared with tree-sitter-bash, {len(found) - with_lines} with bash, "
        f"{len(all_found) - len(found)} left out, {len(differing)} differ"
    )
    assert not differing, "".join(f"\n{path}:{difference}" for path, difference in differing.items())
    assert with_lines > len(all_found) / 2, "most scripts cannot be compared"


def test_the_scripts_of_this_repository_are_read_as_by_bash_and_tree_sitter() -> None:
    folders = ("tests/scripts", "examples", "templates")
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*") if is_shell_file(path))
    check_files(paths)


def is_shell_file(path: Path) -> bool:
    if not path.is_file():
        return False
    first = path.read_bytes()[:100].partition(b"\n")[0]
    # Templates with {{ }} or {% %} are no scripts yet.
    return re.match(rb"#!\S*[/ ](ba)?sh\b", first) is not None and not re.search(rb"\{\{|\{%", path.read_bytes())


def test_public_scripts_are_read_as_by_bash_and_tree_sitter() -> None:
    folder = os.environ.get(FOLDER)
    if not folder:
        pytest.skip(f"{FOLDER} names no folder of batch scripts")
    check_files(sorted(path for path in Path(folder).rglob("*") if path.is_file()))


# Scripts composed from a grammar.

WORDS = st.sampled_from(
    [
        *("a", "train.py", "--lr=0.1", "-n", "7", "x=y", "file.tar.gz", "a/b", "@", "a,b", "%j", "é"),
        *("$X", "${X}", '"$X"', '"$X/$Y z"', "$1", '"$@"', "${X[0]}", '"${X[@]}"', "${#X}", "${X%.*}", "${X:-d}"),
        *('"${X:-"a}b"}"', '${X:-"a}b"}', "${X:-'}'}", "${X//a/b}", "${X/ /}", "$((1 + 2))", '"$(( (X + 1) * 2 ))"'),
        *("'it is'", "'#'", "'$X'", "'a\"b'", "$'it\\'s'", "$'a\\tb'", '"it\'s"', '"a\\"b"', '"a\\$b"', '"# x"'),
        *("a\\ b", "\\$X", "\\'", "a'b'\"c\"", "a#b", "''", '""', '"a\nb"', "'a\nb'", "*.py", "a?", "[a-c]x"),
        *("$(date)", '"$(date +"%s %F")"', '$(echo ")")', "$(echo ')')", "$(echo \\))", "`date`", '"`date`"'),
        *("$(a | b; c)", "$(\n  a \\\n  b\n)", "$(a # )\n)", "$(case x in a) b;; esac)", "$( (a) )"),
        *("<(sort a)", ">(tee log)", "~/x", "a=$X", "--x=$(date)", "$(cat <<E\n)\nE\n)"),
    ]
)
NAMES = st.sampled_from(["srun", "python", "./run.sh", "echo", "module", "$CMD", '"$CMD"', "a-b", "ls"])
REDIRECTIONS = st.sampled_from(
    [
        *("> out", ">out", ">> log.txt", "2>&1", "2> err", "< in", "&> all", "&>> all", ">| out", ">&2", "1>&2"),
        *('> "$X/out"', "> $X.log", '<<< "$X"', "<<< a", "< <(sort a)", "> >(tee log)", "3< in", "2>/dev/null"),
    ]
)
ASSIGNMENTS = st.sampled_from(
    ["A=1", 'A="$B c"', "A=", "A+=x", "A=$(date)", "A=(a b)", "A=(a # )\n  'b c'\n)", "A+=(x)", "A[1]=x", "A=$X/b"]
)
CONDITIONS = st.sampled_from(
    [
        *("[ -f a ]", '[ "$X" = "a b" ]', "[[ -n $X ]]", "[[ $X == *.py && -n $Y ]]", "[[ $X =~ ^[0-9]+$ ]]"),
        *("[[ $X < $Y || ! -e a ]]", "((i++))", "(( X > 1 ))", "test -f a", "! grep -q a b", "true"),
    ]
)
BLANKS = st.sampled_from([" ", "  ", "\t", " \\\n  "])
HEREDOCS = st.sampled_from(
    [
        *(
            "cat <<EOF\na $X )\nEOF\n",
            "cat <<'E' > out\n$(a\nE\n",
            'cat <<-"E"\n\ta\n\tE\n',
            "cat > out <<EOF\n# a\nEOF\n",
        ),
        *("cat <<EOF | sort\nit's\nEOF\n", "python - <<\\PY\nprint('a')\nPY\n", "cat <<A\na\nA\n"),
    ]
)


@st.composite
def simple_commands(draw) -> str:
    assigned = draw(st.lists(ASSIGNMENTS.filter(lambda text: "(" not in text or "$(" in text), max_size=1))
    parts = [*assigned, draw(NAMES), *draw(st.lists(WORDS | REDIRECTIONS, max_size=4))]
    return parts[0] + "".join(draw(BLANKS) + part for part in parts[1:])


def scripts() -> st.SearchStrategy[str]:
    """Return a strategy for lists of commands, each ended by a newline."""
    commands = st.deferred(lambda: simple_commands() | simple_commands() | compounds)
    chains = st.builds(
        lambda first, rest, end: first + "".join(a + b for a, b in rest) + end,
        commands,
        st.lists(
            st.tuples(st.sampled_from([" && ", " || ", " | ", "; ", " |\n", " &&\n  ", "|"]), commands), max_size=2
        ),
        st.sampled_from(["\n", "\n", " &\n", "; # a 'b\n", " # (\n", "\n\n# if\n"]),
    )
    assignments = st.builds(lambda a: f"{a}\n", ASSIGNMENTS)
    lists = st.lists(chains | HEREDOCS | assignments, min_size=1, max_size=3).map("".join)
    after = st.one_of(st.just(""), st.just(""), st.sampled_from([" > out", " < in", " 2>&1", " >> $X"]))
    compounds = st.one_of(
        st.builds(lambda c, a, b: f"if {c}; then\n{a}else\n{b}fi", CONDITIONS, lists, lists),
        st.builds(lambda c, d, a, b: f"if {c}\nthen {a}elif {d}; then {b}fi", CONDITIONS, CONDITIONS, lists, lists),
        st.builds(lambda c, a, z: f"while {c}; do\n{a}done{z}", CONDITIONS, lists, after),
        st.builds(
            lambda w, a, z: f"for x in {w}; do {a}done{z}", st.lists(WORDS, min_size=1).map(" ".join), lists, after
        ),
        st.builds(lambda a: f"for ((i = 0; i < 3; i++)); do\n{a}done", lists),
        st.builds(lambda a: f"for x in a b\ndo\n{a}done", lists),
        st.builds(lambda a, b: f'case "$X" in\n  a|b)\n{a};;\n  (*.py) {b};;\nesac', lists, lists),
        st.builds(lambda a, z: f"{{ {a}}}{z}", lists, after),
        st.builds(lambda a, z: f"({a}){z}", lists, after),
        st.builds(lambda a: f"f() {{\n{a}}}", lists),
        st.builds(lambda a: f"function f {{\n{a}}}", lists),
        CONDITIONS,
    )
    return lists


# What tree-sitter-bash does not know or misreads without an error; bash alone is asked.
UNUSUAL = (
    *("time -p ls", "! time a", "coproc ls -l", "coproc X { ls; }", "coproc X (a; b)"),
    *("coproc while read a; do b; done", "select x in a b; do c; done 2> /dev/null", "for x; do a; done"),
    *("for x in a; { b; }", "for ((;;)) { b; }", "exec {fd}> x", "exec 3<&0 {fd}>&-", "> out", "2>&1 > a b"),
    *("f() (ls)", "function g if x; then y; fi", "f () { a; } > x 2>&1", "function g() { a; }", "f() [[ -n $X ]]"),
    *("case $x in a) b;& c|d) e;;& *) ;; esac", "case a in esac", "case $x in (a) b; esac", "case x in if) c;; esac"),
    *(
        "cat <<A <<-B; echo $(cat <<C\nc )\nC\n)\na\nA\n\tb\n\tB\nd",
        "a <<E && b $(\n c\n)\nE\nd",
        "cat <<E\n\\\nE2\nE\nd",
    ),
    *("((1 + (2)))", "((a); b)", "( (a); b)", "$( (a); b)", "$((a); b)", "x=$((1 + $(a)))", "a=$[1 + 2]"),
    *("[[ $x =~ ^(a|b c)$ ]]", "[[ ( a < b ) && ! c > d ]]", "[[ -n a &&\n -n b ]]"),
    *("a[1 + 1]=x", "a[$i + 1]+=y b", "a=([k]=v [b c]=d) e", "declare -a a=(b\n c) d", "A=1 > a B=2 c"),
    *(
        'echo "${X:-$(a ")" "b")}" "$(a "b c" `d`)"',
        "echo ${X#'}'} ${X%\"}\"} ${X/\\}/y}",
        "echo \"${X#'}'}\" \"${X:-'}'a}\"",
    ),
    *("echo `a \\`b\\` 'c`", 'echo "`a "b"`" c', "echo a >&2 2>&1- <&3", "echo a&> b", "echo 2> a 12> b c2> d"),
    *(
        "if a; then b; fi | c && { d; } || e",
        "{ { a; } }",
        "echo } if fi do",
        "a\\\nb \\\n c",
        "if a;then b;else c;fi>d",
    ),
    *(
        "echo $",
        'echo "$" a$ "$\'b\'" $"c"',
        "echo a;#b",
        "a # \\\nb",
        "echo a\\ # c",
        "echo {a,b}{1..3} }",
        "echo a{ b",
    ),
)


def compare_composed(strategy: st.SearchStrategy[str], examples: int) -> Counter[str]:
    """Compare composed scripts; return how many were compared with what."""
    counts: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def compare(script: str) -> None:
        found = compare_script(script)
        counts["refused" if found is None else "with lines" if found.with_lines else "with bash"] += 1
        assert found is None or not found.difference, f"{found.difference}\n{script}"

    compare()
    print(dict(counts))
    return counts


def test_composed_scripts_are_read_as_by_bash_and_tree_sitter() -> None:
    assert compare_composed(scripts(), 100)["with lines"] > 40


def test_unusual_commands_are_read_as_by_bash() -> None:
    wrong = []
    for text in UNUSUAL:
        # The command after it must not be lost.
        script = f"shopt -s extglob\n{text}\nnext $?\n"
        printed = print_with_bash(script)
        own = drop_lines(list_own(script))
        if printed is None or (difference := describe_difference("bash", own, drop_lines(list_own(printed)))):
            wrong.append(f"{text!r}: {'refused' if printed is None else difference}")
        elif list_own(script)[-1][:2] != (script.count("\n"), ("next", EXPANSION)):
            wrong.append(f"{text!r}: the command after it is {list_own(script)[-1]}")
    assert not wrong, "\n".join(wrong)


# Words, as bash itself reads them.

PIECES = st.one_of(
    st.text("ab.=/:,@%^+-", min_size=1),
    st.text('ab c\n"\\$`#;|()<>&*é').map(lambda text: f"'{text}'"),
    st.text("ab c\n'#;|()<>&*é{}").map(lambda text: f'"{text}"'),
    st.sampled_from(['\\"', "\\\\", "\\$", "\\`", "\\\n", "\\a", "'"]).map(lambda text: f'"x{text}y"'),
    st.sampled_from(["\\ ", "\\'", '\\"', "\\\\", "\\$", "\\\n", "\\#", "\\;", "\\n"]),
    st.sampled_from(
        ["n", "t", "'", '"', "\\", "?", "x41", "x4", "101", "7", "u00e9", "U0001F600", "cA", "e", "xc3\\xa9", "z", "0b"]
    ).map(lambda escape: f"$'a\\{escape}b'"),
    st.just('$"a b"'),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(PIECES, min_size=1, max_size=4).map("".join), min_size=1, max_size=8))
def test_quoted_words_are_read_as_by_bash(words: list[str]) -> None:
    # A word that is a line continuation only is none. `--` is for printf.
    script = "printf '%s\\0' : " + " ".join(f"x{word}" for word in words)
    done = subprocess.run(["bash", "-c", script], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True)
    (command,) = parse_commands(script)
    assert [word.literal for word in command.words[3:]] == done.stdout.decode("utf-8", "surrogateescape").split("\0")[
        1:-1
    ]
