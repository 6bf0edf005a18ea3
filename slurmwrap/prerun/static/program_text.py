"""Read the user's own files of a program, if they alone decide what it does.

Everything else that it imports must be the standard library or a library that is known to start no process, use no
second GPU and create no directory by itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slurmwrap.prerun.static.imported_files import ProgramImports, read_program
from slurmwrap.prerun.static.word_tables import split_word_table

if TYPE_CHECKING:
    from slurmwrap.prerun.static.started_program import EntryPoint
    from slurmwrap.prerun.static.static_context import StaticContext

_LIBRARIES = split_word_table(
    """torch torchvision torchaudio torchtext numpy scipy pandas matplotlib seaborn sklearn skimage PIL cv2 imageio
    h5py yaml tqdm einops timm torchmetrics torchinfo torchsummary thop tiktoken sentencepiece tokenizers nltk regex
    networkx torch_geometric torch_scatter torch_sparse albumentations kornia lpips piq pytorch_msssim medmnist
    nibabel pydicom librosa soundfile absl requests psutil simplejson termcolor colorama tabulate prettytable
    slurmwrap_step
    tensorboardX tensorboard tensorflow keras attr attrs easydict addict configargparse loguru rich"""
)
_MARGIN_S = 0.3


def read_own_program(entry: EntryPoint, context: StaticContext) -> ProgramImports | None:
    """Return the program of a Python file with all its imports of user files; None if these cannot be read in full."""
    if not entry.path or entry.code is not None or entry.contained or context.left() < _MARGIN_S:
        return None
    source = context.source(entry.path)
    program = read_program(entry, source, context) if source.tree is not None else None
    return program if program is not None and program.whole and not _is_running_text(program) else None


def read_own_text(entry: EntryPoint, context: StaticContext) -> bytes | None:
    """Return the text of all the program's own files, joined; None if other code may also decide what it does."""
    program = read_own_program(entry, context)
    if program is None:
        return None
    for reached in program.files:
        if reached.source.tree is None:
            return None
        for one in reached.imports:
            top = one.module.split(".")[0]
            if not top or top in sys.stdlib_module_names:
                continue
            if program.find(one.module, reached.folder).kind not in ("module", "package") and top not in _LIBRARIES:
                return None
    return b"\n".join(reached.source.content for reached in program.files)


def _is_running_text(program: ProgramImports) -> bool:
    """Return whether the program runs code that it makes at run time or imports by a computed name."""
    return any(
        reached.source.mentions(b"exec(", b"eval(compile", b"importlib", b"__import__", b"runpy")
        for reached in program.files
    )
