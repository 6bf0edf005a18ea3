"""Programs that go on after a broken input file are told from those that would end."""

from __future__ import annotations

import textwrap

import pytest

from slurmwrap.prerun.inputs.tolerant_code import find_tolerant_code

GOES_ON = {
    "PIL": "from PIL import ImageFile\nImageFile.LOAD_TRUNCATED_IMAGES = True\n",
    "webdataset": "data = wds.WebDataset(urls, handler=wds.warn_and_continue)\n",
    "another sample": """
        class Images:
            def __getitem__(self, index):
                try:
                    return Image.open(self.paths[index]).convert("RGB")
                except Exception:
                    return self[index + 1]
        """,
    "wrapped dataset": """
        class Safe:
            def __getitem__(self, index):
                try:
                    return self.inner[index]
                except:
                    return None
        """,
    "loop": """
        for path in paths:
            try:
                samples.append(np.load(path))
            except (ValueError, OSError) as error:
                print("skipped", path, error)
        """,
    "pandas": "table = pd.read_csv(path, on_bad_lines='skip')\n",
}
ENDS = {
    "no handler": "for path in paths:\n    x = np.load(path)\n",
    "raises again": """
        def load(path):
            try:
                return np.load(path)
            except Exception as error:
                raise RuntimeError(path) from error
        """,
    "exits": """
        def load(path):
            try:
                return np.load(path)
            except OSError:
                sys.exit(f"cannot read {path}")
        """,
    "another error": """
        def load(path):
            try:
                return np.load(path)
            except KeyboardInterrupt:
                pass
        """,
    "optional import": "try:\n    import wandb\nexcept ImportError:\n    wandb = None\n",
    "something else": """
        def number(text):
            try:
                return int(text)
            except ValueError:
                return 0
        """,
    "settings at the top": "try:\n    settings = json.load(open('a.json'))\nexcept OSError:\n    settings = {}\n",
    "no Python": "print 'a'\ntry:\n  open(1)\nexcept: pass\n",
}


@pytest.mark.parametrize("name", GOES_ON)
def test_code_that_goes_on_after_a_broken_file_is_found(name: str) -> None:
    assert find_tolerant_code({"/w/train.py": textwrap.dedent(GOES_ON[name]).encode()}).startswith("/w/train.py:")


@pytest.mark.parametrize("name", ENDS)
def test_other_code_is_not(name: str) -> None:
    assert find_tolerant_code({"/w/train.py": textwrap.dedent(ENDS[name]).encode()}) == ""
