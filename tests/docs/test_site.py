"""The documentation site: builds without warnings, needs no network, and a broken link fails the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT
from docs_hooks import LostFile, on_page_markdown, outside_links_as_text

if not os.environ.get("CI"):
    pytest.importorskip("material", reason="the extra docs is not installed (pip install '.[docs]')")


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict` of a tree with docs/, .mkdocs.yml and .ci/."""
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", source / ".mkdocs.yml", "-d", site]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """Addresses that a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loaded = tag in ("script", "img", "iframe", "source", "video", "audio", "embed")
        linked = tag == "link" and given.get("rel") not in ("canonical", "prev", "next")
        address = given.get("src") if loaded else given.get("href") if linked else None
        self.found += [address] if address else []


def loaded_by(page: Path) -> list[str]:
    reader = Loads()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.found


def outside(addresses: list[str]) -> list[str]:
    return [one for one in addresses if re.match(r"(?:[a-z]+:)?//", one)]


def test_no_page_loads_anything_from_other_servers(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    assert {str(page.relative_to(site)): found for page in pages if (found := outside(loaded_by(page)))} == {}


def test_no_style_sheet_loads_anything_from_other_servers(site: Path) -> None:
    loaded = re.compile(r"url\(['\"]?([^'\")]+)|@import ['\"]([^'\"]+)")
    found = {path.name: loaded.findall(path.read_text(encoding="utf-8")) for path in site.rglob("*.css")}
    assert len(found) >= 3
    assert [one for pairs in found.values() for one in outside([a or b for a, b in pairs])] == []


def test_every_page_of_the_documentation_is_in_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in PAGES if path.is_relative_to(ROOT / "docs")]
    assert [str(page) for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


def test_instructions_are_not_shown(site: Path) -> None:
    assert [str(page.relative_to(site)) for page in site.rglob("*.html") if "<!-- test: " in page.read_text()] == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site with the same settings and one page."""
    (tmp_path / "docs" / "images").mkdir(parents=True)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    settings = (ROOT / ".mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    (tmp_path / ".mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "docs" / "images" / "site.css").touch()
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## There\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[good](other.md#there)", ()),
        (
            "[broken](nosuch.md) [broken](other.md#nowhere) [broken](#nowhere) ![broken](images/nosuch.svg)",
            (
                "link 'nosuch.md', but the target is not found",
                "does not contain an anchor '#nowhere'",
                "there is no such anchor on this page",
                "link 'images/nosuch.svg', but the target is not found",
            ),
        ),
        ("[broken](../nosuch.py)", ("leads to nosuch.py, which is not there",)),
    ],
    ids=["good", "broken", "a file outside"],
)
def test_a_broken_link_fails_the_build(small: Path, text: str, said: tuple[str, ...]) -> None:
    (small / "docs" / "index.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    done = build(small, small / "site")
    assert [one for one in said if one not in done.stderr] == [], done.stderr
    assert (done.returncode == 0) == (not said), done.stderr


def links_of(page: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            yield path, anchor


def test_links_of_pages_outside_the_site_have_a_target() -> None:
    lost = []
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"):
        for path, anchor in links_of(page):
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in headings(target)):
                lost.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert lost == []


def test_the_readme_begins_with_a_picture_with_an_absolute_address() -> None:
    """PyPI shows no picture by a relative address."""
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]
    begin = source.replace("github.com", "raw.githubusercontent.com") + "/main/"
    assert (ROOT / "README.md").read_text(encoding="utf-8").split("\n")[2].startswith("![")
    assert [one for one in pictures if not (ROOT / one.removeprefix(begin)).is_file()] == []
    assert [one for one in pictures if not one.startswith(begin)] == []


def headings(page: Path) -> set[str]:
    """Anchors of a page, as Markdown makes them of its headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip()) for text in found}


def test_a_link_to_a_file_of_the_repository_becomes_its_name() -> None:
    shown = outside_links_as_text(
        "see [the table](../slurmwrap/sbatch/option_table.py) and [`Makefile`](../Makefile)", "x.md"
    )
    assert shown == "see the table (`slurmwrap/sbatch/option_table.py`) and `Makefile`"
    assert outside_links_as_text("[page](../dropin.md)", "concepts/job.md") == "[page](../dropin.md)"
    with pytest.raises(LostFile, match=r"docs/x.md: \[it\]\(../nosuch\) leads to nosuch"):
        outside_links_as_text("[it](../nosuch)", "x.md")


def test_instructions_are_removed_from_a_page() -> None:
    class Page:
        class file:
            src_uri = "x.md"

    text = "a\n<!-- test: first: b\nc -->\n```sh\nd\n```\n"
    assert on_page_markdown(text, page=Page, config=None, files=None) == "a\n```sh\nd\n```\n"
