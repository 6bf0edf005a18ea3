"""The shipped signatures, and signatures from a site's own file."""

from __future__ import annotations

import re
from pathlib import Path
from pprint import pformat

import pytest

from slurmwrap.diagnosis import signatures
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.regex_prefilter import find_required_literals
from slurmwrap.diagnosis.signatures import (
    LogSignature,
    compile_pattern,
    get_default_signatures,
    get_signatures_with,
    load_signatures,
)
from slurmwrap.diagnosis.taxonomy import CATEGORIES, FAILURES, NO_SIGNATURE, list_decisions
from slurmwrap.errors import ConfigError
from slurmwrap.model.evidence import Evidence, LogTail

SHIPPED = get_default_signatures()
NAMES = [signature.id for signature in SHIPPED.signatures]


def matches(pattern: str, text: str) -> bool:
    return bool(compile_pattern(pattern).search(text))


def matches_signature(signature: LogSignature, text: str) -> bool:
    found = any(matches(pattern, text) for pattern in signature.patterns)
    return found and not (signature.unless and matches(signature.unless, text))


def test_a_signature_matches_its_own_examples_and_not_its_counterexamples() -> None:
    wrong = [
        (signature.id, text)
        for signature in SHIPPED.signatures
        for texts, expected in ((signature.examples, True), (signature.counterexamples, False))
        for text in texts
        if matches_signature(signature, text) is not expected
    ]
    assert not wrong, pformat(wrong)


def test_every_pattern_has_an_example_with_one_of_its_literals() -> None:
    wrong = []
    for signature in SHIPPED.signatures:
        for pattern in signature.patterns:
            shown = [text for text in signature.examples if matches(pattern, text)]
            literals = find_required_literals(pattern)
            if not shown or not all(any(literal in text for literal in literals) for text in shown):
                wrong.append((signature.id, pattern))
    assert not wrong, pformat(wrong)


def test_each_signature_names_its_program_and_has_an_allowed_decision() -> None:
    allowed = {category: ("", *list_decisions(category)) for category in CATEGORIES} | {"": ("",)}
    wrong = [one.id for one in SHIPPED.signatures if not one.by or one.decision not in allowed[one.category]]
    assert wrong == []


def test_ids_are_unique_and_every_failure_category_has_a_signature() -> None:
    assert len(NAMES) == len(set(NAMES))
    covered = {signature.category for signature in SHIPPED.signatures if signature.role == "root"}
    assert set(FAILURES) - covered == {NO_SIGNATURE}


def test_a_log_with_only_an_example_line_gets_the_signatures_category() -> None:
    wrong = {}
    for signature in SHIPPED.signatures:
        if signature.role == "root" and signature.where == "log" and not (signature.frame or signature.context):
            for text in signature.examples:
                log = LogTail(name="out", text=text)
                found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(log,))).category
                if found != signature.category:
                    wrong[signature.id, text] = found
    assert not wrong, pformat(wrong)


def test_the_shipped_signatures_have_a_version() -> None:
    assert re.fullmatch(r"\d{4}\.\d{2}", SHIPPED.version)


SITE = """
version = "site-1"
[[signature]]
id = "site.flexlm"
category = "permission_error"
pattern = ['FlexNet Licensing error:-\\d+']
by = "our solver"
example = ['FlexNet Licensing error:-15']
decision = "stop"
"""


def test_signatures_of_a_site_are_added_to_the_shipped_ones(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    both = load_signatures(*signatures.SHIPPED, path)
    log = LogTail(name="out", text="starting\nFlexNet Licensing error:-15,570\n")
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(log,)), signatures=both)
    assert (found.category, found.signature, both.version) == (
        "permission_error",
        "site.flexlm",
        f"{SHIPPED.version}+site-1",
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("permission_error", "permision_error"), "unknown category 'permision_error'"),
        (("decision =", "decison ="), "unknown key 'decison'"),
        (('"stop"', '"halt"'), "unknown decision 'halt'"),
        (("FlexNet", "(FlexNet"), "missing ), unterminated subpattern"),
        (("FlexNet Licensing error:-\\d+", "\\d+"), "no plain text of three characters"),
        (("FlexNet", "(?i)FlexNet"), "(?i)"),
        (("[[signature]]", "[[signature"), "site.toml"),
        (("-\\d+", "-(\\d+)+"), "may be slow: a repetition inside a repetition"),
        (('decision = "stop"', 'advice = "Ask {whom}."'), "advice names {whom}"),
    ],
)
def test_a_mistake_in_a_sites_signature_file_is_reported(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE.replace(*change))
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load_signatures(path)


def test_the_example_in_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/diagnosis.md").read_text()
    path = tmp_path / "site.toml"
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path.write_text(next(block for block in blocks if "[[signature]]" in block))
    both = get_signatures_with(str(path))
    (own,) = (signature for signature in both.signatures if signature.id == "site.flexlm")
    log = LogTail(name="out", text=own.examples[0])
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(log,)), signatures=both)
    assert (found.signature, found.category) == ("site.flexlm", own.category)
    assert "15" in found.advice


def test_without_a_site_file_the_shipped_signatures_are_used() -> None:
    assert get_signatures_with("") is get_default_signatures()


def test_a_missing_signature_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read signatures .*none\.toml"):
        load_signatures(tmp_path / "none.toml")
