"""An image for containers, as a tree of files, built from the host's own Python: no registry and no network needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# The part of torch.optim.optimizer that the step hook uses.
FAKE_TORCH = {
    "torch/__init__.py": "",
    "torch/optim/__init__.py": "from .optimizer import Optimizer\nclass SGD(Optimizer):\n    pass\n",
    "torch/optim/optimizer.py": """
_post_hooks = []
def register_optimizer_step_post_hook(hook):
    _post_hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in _post_hooks:
            hook(self, (), {})
""",
}
PROGRAMS = (
    "/usr/bin/python3",
    "/bin/bash",
    "/bin/dash",
    "/bin/ls",
    "/bin/cat",
    "/usr/bin/env",
    "/bin/mkdir",
    "/bin/rm",
)


def build_image(root: Path) -> None:
    """Copies the host's Python with what it needs to run."""
    for name in ("usr/bin", "usr/lib", "etc", "tmp", "dev", "proc", "sys", "root", "home", "run", "var/tmp", "work"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}") if name != "lib64" else (root / name).mkdir()
    for number in range(10):
        (root / f"mnt/{number}").mkdir(parents=True)
    for name in ("group", "passwd", "hosts", "resolv.conf", "nsswitch.conf"):
        (root / "etc" / name).write_text("root:x:0:0::/root:/bin/sh\n" if name == "passwd" else "")
    for program in PROGRAMS:
        shutil.copy(os.path.realpath(program), root / "usr/bin" / Path(program).name)
    (root / "usr/bin/sh").symlink_to("dash")
    (root / "usr/bin/python").symlink_to("python3")
    version = Path(os.path.realpath("/usr/bin/python3")).name
    shutil.copytree(
        f"/usr/lib/{version}", root / "usr/lib" / version, ignore=shutil.ignore_patterns("test", "__pycache__")
    )
    binaries = [*(root / "usr/bin").iterdir(), *(root / "usr/lib" / version / "lib-dynload").iterdir()]
    for library in sorted({lib for binary in binaries for lib in list_libraries(binary)}):
        target = root / library.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(library), target)
    (root / "opt/lib").mkdir(parents=True)
    (root / "opt/lib/imagepackage.py").write_text("")
    (root / "image.env").write_text("PYTHONPATH=/opt/lib\nPATH=/usr/local/bin:/usr/bin:/bin\n")
    script = root / ".singularity.d/runscript"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\nexec python3 "$@"\n')
    script.chmod(0o755)
    # The kernel's way to run torchrun without the package: what it is called by is enough for the launcher's rewriting.
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.is_dir() else 0))


def list_libraries(binary: Path) -> list[str]:
    done = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    return [path for path in re.findall(r"(/\S+) \(0x", done.stdout) if os.path.exists(path)]
