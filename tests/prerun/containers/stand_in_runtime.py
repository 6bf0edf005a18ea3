"""Stand-ins for container runtimes that Debian does not have: apptainer, docker, enroot, srun with pyxis or a bundle.

A program of the runtime's name starts `main(NAME, IMAGES, ARGUMENTS)`. Options are those of the runtime's own
documentation; any other is an error. The command really runs, by bubblewrap: it sees only the image and what is bound,
and has only the variables that the runtime passes. IMAGES: directory with the images as trees of files; an image's own
variables are in its `image.env`, and `entrypoint` has the words of its entry point.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

# Option -> (long name, whether it takes a value).
APPTAINER = {
    **{f"--{n}": (n, True) for n in ("bind", "env", "env-file", "pwd", "cwd", "home", "workdir", "overlay", "mount")},
    **{f"--{n}": (n, False) for n in ("nv", "rocm", "cleanenv", "contain", "containall", "no-home", "userns")},
    **{f"--{n}": (n, False) for n in ("writable-tmpfs", "fakeroot", "pid", "ipc", "compat")},
    "-B": ("bind", True), "-H": ("home", True), "-W": ("workdir", True), "-e": ("cleanenv", False),
    "-c": ("contain", False), "-C": ("containall", False), "-u": ("userns", False), "-p": ("pid", False),
}  # fmt: skip
DOCKER = {
    **{f"--{n}": (n, True) for n in ("volume", "env", "env-file", "workdir", "user", "name", "gpus", "shm-size")},
    **{f"--{n}": (n, True) for n in ("ipc", "network", "mount", "entrypoint", "cidfile", "ulimit", "runtime", "pull")},
    **{f"--{n}": (n, False) for n in ("rm", "interactive", "tty", "privileged", "init")},
    "-v": ("volume", True), "-e": ("env", True), "-w": ("workdir", True), "-u": ("user", True),
    "-i": ("interactive", False), "-t": ("tty", False),
}  # fmt: skip
ENROOT = {
    **{f"--{n}": (n, True) for n in ("conf", "env", "mount", "rc")},
    **{f"--{n}": (n, False) for n in ("root", "rw")},
    "-c": ("conf", True),
    "-e": ("env", True),
    "-m": ("mount", True),
    "-r": ("root", False),
    "-w": ("rw", False),
}
SRUN = {
    **{f"--{n}": (n, True) for n in ("nodes", "ntasks", "export", "mpi", "container-image", "container-mounts")},
    **{f"--{n}": (n, True) for n in ("container-workdir", "container-name", "container-env", "container", "chdir")},
    **{f"--{n}": (n, False) for n in ("container-mount-home", "no-container-mount-home", "container-remap-root")},
    **{f"--{n}": (n, False) for n in ("container-entrypoint", "no-container-entrypoint", "container-writable")},
}


def fail(message: str, code: int = 125) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


def parse(name: str, words: list[str], table: dict[str, tuple[str, bool]]) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns (options, the rest); exits on an option that the table does not have."""
    found: list[tuple[str, str]] = []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        option, equals, value = word.partition("=")
        if option not in table and not word.startswith("--") and len(word) > 2:
            head, tail = word[:2], word[2:]
            words.insert(0, tail if table.get(head, ("", False))[1] else f"-{tail}")
            option, equals, value = head, "", ""
        if option not in table:
            fail(f"{name}: unknown flag: {word}")
        long, takes = table[option]
        if takes and not equals:
            value = words.pop(0)
        found.append((long, value))
    return found, words


def read_environment(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.partition("=")[::2] for line in lines)


class Box:
    """The arguments of one bwrap."""

    def __init__(self, root: Path, environ: dict[str, str]) -> None:
        if not root.is_dir():
            fail(
                f"FATAL:   could not open image {root}: failed to retrieve path for {root}: no such file or directory",
                255,
            )
        self.root, self.environ, self.cwd = root, environ, ""
        self.arguments = ["--unshare-user", "--die-with-parent"]
        # Mount points below a read-only root cannot be created, so the root is a tmpfs with the image's directories.
        self.arguments += ["--tmpfs", "/"]
        for entry in sorted(root.iterdir()):
            if entry.is_symlink():
                self.arguments += ["--symlink", str(entry.readlink()), f"/{entry.name}"]
            elif entry.is_dir() and entry.name not in ("tmp", "var", "home", "proc", "dev"):
                self.arguments += ["--ro-bind", str(entry), f"/{entry.name}"]
        self.arguments += ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]

    def bind(self, source: str, target: str = "", *, read_only: bool = False) -> None:
        if not os.path.exists(source):
            fail(
                f"FATAL:   container creation failed: mount {source}->{target}: mount source {source} doesn't exist",
                255,
            )
        self.arguments += ["--ro-bind" if read_only else "--bind", source, target or source]

    def run(self, command: list[str]) -> NoReturn:
        argv = ["bwrap", *self.arguments, "--clearenv"]
        argv += [word for pair in self.environ.items() for word in ("--setenv", *pair)]
        argv += ["--chdir", self.cwd or "/", *command]
        os.execv("/usr/bin/bwrap", argv)


def run_apptainer(images: Path, words: list[str]) -> NoReturn:
    if words[:1] == ["--version"]:
        print("apptainer version 1.3.0")
        sys.exit(0)
    subcommand = words.pop(0)
    if subcommand not in ("exec", "run"):
        fail(f'Error for command "apptainer": unknown command "{subcommand}"', 1)
    options, rest = parse("apptainer", words, APPTAINER)
    given = {name for name, _ in options}
    image = rest.pop(0)
    root = images / Path(image).name.removesuffix(".sif")
    clean = bool(given & {"cleanenv", "containall", "compat"})
    contained = bool(given & {"contain", "containall", "compat"})
    passed = {} if clean else {k: v for k, v in os.environ.items() if not k.startswith(("APPTAINER", "SINGULARITY"))}
    # /.singularity.d/env/10-docker2singularity.sh: the image's values are defaults, except PATH.
    own = read_environment(root / "image.env")
    environ = {**own, **passed, "PATH": own.get("PATH", "/usr/local/bin:/usr/bin:/bin"), "HOME": os.environ["HOME"]}
    injected = {
        name.removeprefix(prefix): value
        for prefix in ("SINGULARITYENV_", "APPTAINERENV_")
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }
    environ |= injected
    environ |= dict(part.partition("=")[::2] for name, value in options if name == "env" for part in value.split(","))
    box = Box(root, environ)
    if not contained:
        box.bind("/tmp")
        if "no-home" not in given:
            box.bind(os.environ["HOME"])
        box.bind(os.getcwd())
        box.cwd = os.getcwd()
    listed = [value for name, value in options if name == "bind"]
    listed.append(os.environ.get("APPTAINER_BIND") or os.environ.get("SINGULARITY_BIND", ""))
    for part in ",".join(value for value in listed if value).replace(",ro", "+ro").split(","):
        if part:
            source, _, tail = part.partition(":")
            target, _, flags = tail.partition(":")
            box.bind(source, target.replace("+ro", ""), read_only="ro" in flags or "+ro" in target)
    box.cwd = next((value for name, value in reversed(options) if name in ("pwd", "cwd")), box.cwd)
    box.run(["/.singularity.d/runscript", *rest] if subcommand == "run" else rest)


def run_docker(images: Path, words: list[str]) -> NoReturn:
    if words[:2] == ["image", "inspect"]:
        own = read_environment(images / words[-1].partition(":")[0] / "image.env")
        print(json.dumps([f"{name}={value}" for name, value in own.items()]))
        sys.exit(0)
    if words[:2] == ["rm", "-f"]:
        print(words[2])
        sys.exit(0)
    if words.pop(0) != "run":
        fail("docker: unknown command")
    options, rest = parse("docker", words, DOCKER)
    root = images / rest.pop(0).partition(":")[0]
    if not root.is_dir():
        fail(
            f"Unable to find image '{root.name}:latest' locally\n"
            f"docker: Error response from daemon: pull access denied for {root.name}"
        )
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", **read_environment(root / "image.env")}
    for name, value in options:
        if name == "env":
            key, equals, text = value.partition("=")
            if equals or key in os.environ:
                environ[key] = text if equals else os.environ[key]
    box = Box(root, environ)
    for name, value in options:
        if name == "volume":
            source, target, *flags = value.split(":")
            box.bind(source, target, read_only="ro" in ",".join(flags).split(","))
        elif name == "cidfile":
            Path(value).write_text("0123456789ab" * 5 + "abcd")
    box.cwd = next((value for name, value in reversed(options) if name == "workdir"), "/")
    entry = next((value.split() for name, value in reversed(options) if name == "entrypoint"), None)
    own_entry = (root / "entrypoint").read_text().split() if (root / "entrypoint").exists() else []
    box.run([*(own_entry if entry is None else entry), *rest])


def run_enroot(images: Path, words: list[str]) -> NoReturn:
    if words.pop(0) != "start":
        fail("enroot: invalid command")
    options, rest = parse("enroot", words, ENROOT)
    root = images / Path(rest.pop(0)).name.removesuffix(".sqsh")
    environ = {
        "HOME": os.environ["HOME"],
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        **read_environment(root / "image.env"),
    }
    box = Box(root, environ)
    for name, value in options:
        if name == "env":
            key, equals, text = value.partition("=")
            environ[key] = text if equals else os.environ.get(key, "")
        elif name == "mount":
            box.bind(*value.split(":")[:2])
    box.run(rest)


def run_srun(images: Path, words: list[str]) -> NoReturn:
    options, rest = parse("srun", words, SRUN)
    given = dict(options)
    exported = given.get("export", "ALL").split(",")
    passed = dict(os.environ) if "ALL" in exported else {k: os.environ[k] for k in exported if k in os.environ}
    if "container" in given:
        config = json.loads(Path(given["container"], "config.json").read_text())
        # slurmstepd replaces process.env and process.args (Slurm's containers.html).
        box = Box(Path(given["container"], config["root"]["path"]), passed)
        for mount in config["mounts"]:
            box.bind(mount["source"], mount["destination"], read_only="ro" in mount["options"])
        box.cwd = config["process"]["cwd"]
        box.run(rest)
    root = images / Path(given["container-image"]).name.removesuffix(".sqsh")
    own = read_environment(root / "image.env")
    kept = {k: v for k, v in passed.items() if k in given.get("container-env", "").split(",")}
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    box = Box(root, {**passed, **path, **own, **kept})
    for part in given.get("container-mounts", "").split(","):
        if part:
            source, target, *flags = part.split(":")
            box.bind(source, target, read_only="ro" in "".join(flags).split("+"))
    box.cwd = given.get("container-workdir", "/")
    box.run(rest)


RUN = {
    "apptainer": run_apptainer,
    "singularity": run_apptainer,
    "docker": run_docker,
    "enroot": run_enroot,
    "srun": run_srun,
}

if __name__ == "__main__":
    RUN[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:])
