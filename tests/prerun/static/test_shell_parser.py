"""What the shell parser says about commands beyond their words: lines, certainty, redirections, substitutions."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurmwrap.prerun.static.shell_parser import parse_commands, parse_substitutions
from slurmwrap.prerun.static.shell_words import RawCommand, expand, split_shell_assignment


def show(command: RawCommand) -> str:
    """Return the literal words of a command, with ? for each one that must be expanded."""
    return " ".join("?" if word.literal is None else word.literal for word in command.words)


def test_lines_are_those_of_the_script() -> None:
    script = """a $(b \\
  c) "d
e" `f
g`
h $(i <<E
)
E
) \\
  j
k=(l # )
  m)
((n +
  o))
cat <<P; q
'
P
r
"""
    assert [(command.line, show(command)) for command in parse_commands(script)] == [
        (1, "a ? d\ne ?"),
        (5, "h ? j"),
        (10, "?"),
        (12, "(( ?"),
        (14, "cat"),
        (14, "q"),
        (17, "r"),
    ]


@pytest.mark.parametrize(
    ("script", "sure"),
    [
        ("a; b", "a b"),
        ("a && b || c", "a b"),
        ("[ -d a ] && b", "["),
        ("a || { b; c; }", "a"),
        ("a && { b; c; }; d", "a b c d"),
        ("{ a; } && b", "a b"),
        ("if a; then b; fi; c", "c"),
        ("(a; b); c", "c"),
        ("f() { a; { b; }; c; }; d", "d"),
        ("function f { a; }\nf", "f"),
        ("f() [ a ]\nb", "b"),
        ("coproc a; b", "b"),
        ("case $x in a) b;; esac; c", "c"),
        ("for x in a; do b; done > c; d", ": d"),
        ("a || for x in b; do c; done > d; e", "a e"),
        ("f() { a; } > b; c", "c"),
        ("a || (b) > c; d", "a d"),
        ("fi; done; }; ) a", "a"),
    ],
)
def test_commands_that_may_not_run_are_not_sure(script: str, sure: str) -> None:
    assert " ".join(command.words[0].literal or "?" for command in parse_commands(script) if command.sure) == sure


def test_commands_in_functions_and_behind_pipes_are_marked() -> None:
    script = "a | while b; do c; done | d; f() { g; if h; then i; fi; }\nj | (\n k)\nl |\n m"
    commands = parse_commands(script)
    assert " ".join(show(command) for command in commands if command.feeds) == "b c d k m"
    assert " ".join(show(command) for command in commands if command.in_function) == "g h i"
    assert [command.then for command in commands[:4]] == ["|", ";", ";", ";"]


def test_redirections_have_descriptor_operator_and_position() -> None:
    script = "a 2>x >&2 {fd}>>'y z' &>$V < in 3<<E <<<s > >(t) 4<&-\nb\nE\n"
    (command,) = parse_commands(script)
    assert [(one.descriptor, one.operator, script[one.start : one.end]) for one in command.redirections] == [
        ("2", ">", "x"),
        ("", ">&", "2"),
        ("{fd}", ">>", "'y z'"),
        ("", "&>", "$V"),
        ("", "<", "in"),
        ("3", "<<", "E"),
        ("", "<<<", "s"),
        ("", ">", ">(t)"),
        ("4", "<&", "-"),
    ]
    assert [one.word.literal for one in command.targets] == ["x", "2", "y z", None]
    assert [word.literal for word in command.reads] == ["in"]
    assert command.stdin is not None
    assert command.stdin.operator == "<<<"


def test_comparisons_are_no_redirections() -> None:
    for script in ("[[ a > b ]]", "((a > b))", "x=$((a > b))", "for ((i = 0; i < 3; i++)); do :; done", "[ a \\> b ]"):
        assert [command.redirections for command in parse_commands(script)] == [()], script


def test_here_documents_end_at_their_delimiters() -> None:
    script = "a <<A <<-'B' $(b <<C\nc\nC\n)\n\\\nA\n$x\nA\n\td\n\tB\ne <<F\nf\n"
    commands = parse_commands(script)
    found = [one.heredoc for command in commands for one in command.redirections]
    assert [(one.body, one.line, one.quoted, one.ended) for one in found if one is not None] == [
        # The backslash joins its line with the next one, so that this A is no delimiter.
        ("\\\nA\n$x\n", 5, False, True),
        ("d\n", 9, True, True),
        ("f\n", 12, False, False),
    ]


def test_commands_in_substitutions_are_listed_apart() -> None:
    script = """A=$(b > c) # $(no)
d "$(e "$(f)")" '$(no)' `g \\`h\\`` <(i)
cat <<E
$(j) `k`
E
cat <<'E'
$(no)
E
x=$((1 + $(l)))
( (m) )
$((n); o)
"""
    assert [show(command) for command in parse_commands(script)] == ["?", "d ? $(no) ? ?", "cat", "cat", "?", "m", "?"]
    found = sorted((command.line, show(command)) for command in parse_substitutions(script))
    assert found == [
        *((1, "b"), (2, "e ?"), (2, "f"), (2, "g ?"), (2, "h"), (2, "i"), (4, "j"), (4, "k"), (9, "l"), (11, "n")),
        (11, "o"),
    ]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (r"$'it\'s'", "it's"),
        ('${Y:-"a}b"}', "a}b"),
        ("${Y:-'a b'}c", "a"),
        ("\"${Y:-'}'}\"", "'}'"),
        (r"$'a\x41\102\u00e9\n'", "aABé\n"),
        (r"$'a\0b'", "a"),
        ('$"a"', "a"),
        (r"a\ b", "a b"),
        ("a\\\nb", "ab"),
        ("'a'\"b\"c", "abc"),
        ("$X/y", "x/y"),
        ("{a,b}", "\0"),
        ("a[bc]", "\0"),
        ("[", "["),
        ("{}", "{}"),
        ("a{1..3}", "\0"),
        ("+(a|b)", "\0"),
        ("$(a)", "\0"),
    ],
)
def test_a_word_is_expanded(word: str, value: str) -> None:
    (command,) = parse_commands(f"echo {word}")
    assert expand(command.words[1], {"X": "x"}, ())[0] == value


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("a=b", "a", "b"),
        ("a=", "a", ""),
        ("a+=b", "a", None),
        ("a[1]=b", "a", None),
        ("a[$i + 1]=b", "a", None),
        ("a=(b c)", "a", None),
        ("a=$(b)c=d", "a", None),
    ],
)
def test_an_assignment_is_split(word: str, name: str, value: str | None) -> None:
    (command,) = parse_commands(word)
    (assignment,) = command.words
    found = split_shell_assignment(assignment)
    assert found is not None
    assert (found[0], found[1].literal) == (name, value)


PIECES = st.sampled_from(
    [
        *("a", " ", "\n", ";", "&", "|", "(", ")", "{", "}", "<", ">", "<<", "E\n", "'", '"', "\\", "$", "`", "#", "!"),
        *(
            "]",
            "*",
            "@",
            "~",
            "$(",
            "${",
            "$((",
            "((",
            "))",
            "[[ ",
            " ]]",
            "=~",
            "a=(",
            "if ",
            "then ",
            "fi ",
            "for x in ",
        ),
        *(
            "do ",
            "done ",
            "case x in ",
            ";;",
            "esac ",
            "function f ",
            "f()",
            "coproc ",
            "time ",
            "<(",
            "\\\n",
            "\0",
            "é",
        ),
        *("\r", "=", "["),
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text())
@example("".join(f"{{ ( $( {i} ((" for i in range(200)))
def test_any_text_is_read(text: str) -> None:
    count = text.count("\n") + 1
    for command in (*parse_commands(text), *parse_substitutions(text)):
        assert command.words
        assert 1 <= command.line <= count
    for command in parse_commands(text):
        for one in command.redirections:
            assert 0 <= one.start < one.end <= len(text)


@pytest.mark.parametrize(
    "opening", ["$(", "${a:-", "((", "( ", "$((", '"$(', "<(", "a=(", "@(", "{ ", "if ", "[[ ( ", "`"]
)
def test_deep_nesting_is_read(opening: str) -> None:
    first, *_ = parse_commands(f"first\n{opening * 5000}")
    assert show(first) == "first"
