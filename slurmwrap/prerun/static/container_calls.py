"""Parse the command lines of container runtimes: their options, the image, and the command that runs inside. Pure.

The tables list the options that take a value; every other option is a flag. Sources: apptainer's and SingularityCE's
cmd/internal/cli/action_flags.go, `podman run --help` of 4.3 and 5, docker/cli's container_run.md, bwrap(1) 0.8 to 0.11,
ch-run(1) 0.31 to 0.39, enroot's start.md, shifter(1), sarus's `sarus help run`. srun's container options are in
launcher_args.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.prerun.static.launcher_args import parse_srun
from slurmwrap.prerun.static.shell_words import UNKNOWN


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntime:
    """What is known of one runtime's command line."""

    # "apptainer" | "podman" | "docker" | "ch-run" | "bwrap" | "enroot" | "shifter" | "sarus"
    kind: str
    # Subcommands that start a program; () if the program has no subcommands.
    starts: tuple[str, ...] = ()
    # Subcommands of these words may follow a group: `docker container run`.
    groups: tuple[str, ...] = ()
    # Names, without dashes, of the options that take a value, before and after the subcommand.
    valued: frozenset[str] = frozenset()
    global_valued: frozenset[str] = frozenset()
    # Options that take more values than one.
    arity: Mapping[str, int] | None = None
    # Whether the image is a word of its own, before the command.
    has_image: bool = True
    # Letter -> long name.
    letters: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCall:
    """One call of a container runtime, split so that its words can be joined again without a change."""

    runtime: ContainerRuntime
    # The words before the options: global options and the subcommand.
    head: tuple[str, ...]
    subcommand: str
    # (name without dashes, value or None, the words as given), in order.
    options: tuple[tuple[str, str | None, tuple[str, ...]], ...]
    # The image or container; "" if there is none.
    image: str
    # What runs inside; () if the image itself decides.
    command: tuple[str, ...]
    # The word "--" was given before the image, and before the command.
    dashes: tuple[bool, bool] = (False, False)

    def values(self, *names: str) -> list[str]:
        """Return the values of these options, in order."""
        return [value for name, value, _ in self.options if name in names and value is not None]

    def given(self, *names: str) -> bool:
        """Return whether one of these options was given."""
        return any(name in names for name, _, _ in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPath:
    """One directory or file of the host that a call makes visible inside the container."""

    source: str
    target: str
    read_only: bool = False


_APPTAINER = _split_words(
    """B bind app apply-cgroups add-caps drop-caps blkio-weight blkio-weight-device config containlibs cpu-shares cpus
    cpuset-cpus cpuset-mems cwd data device cdi-dirs dmtcp-launch dmtcp-restart dns docker-host docker-password
    docker-username authfile env env-file fusemount H home hostname memory memory-reservation memory-swap mount network
    network-args no-mount netns-path o overlay pem-path pids-limit platform arch pwd S scratch s security shell tmpdir
    vm-cpu vm-ip vm-ram W workdir"""
)
_DOCKER = _split_words(
    """add-host annotation a attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns cidfile
    cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime c cpu-shares cpus cpuset-cpus cpuset-mems
    detach-keys device device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops dns
    dns-opt dns-option dns-search domainname entrypoint e env env-file expose gpus group-add health-cmd health-interval
    health-retries health-start-interval health-start-period health-timeout h hostname io-maxbandwidth io-maxiops ip
    ip6 ipc isolation kernel-memory l label label-file link link-local-ip log-driver log-opt mac-address m memory
    memory-reservation memory-swap memory-swappiness mount name net net-alias network network-alias oom-score-adj pid
    pids-limit platform p publish pull restart runtime security-opt shm-size stop-signal stop-timeout storage-opt sysctl
    tmpfs ulimit u user userns uts v volume volume-driver volumes-from w workdir"""
)
_PODMAN = _DOCKER | _split_words(
    """arch authfile cert-dir cgroup-conf cgroups chrootdirs conmon-pidfile creds decryption-key env-merge gidmap
    health-log-destination health-max-log-count health-max-log-size health-on-failure health-startup-cmd
    health-startup-interval health-startup-retries health-startup-success health-startup-timeout hosts-file hostuser
    image-volume init-path intel-rdt-closid os passwd-entry personality pidfile pod pod-id-file preserve-fd preserve-fds
    rdt-class requires retry retry-delay sdnotify seccomp-policy secret shm-size-systemd subgidname subuidname systemd
    timeout tz uidmap umask unsetenv variant"""
)
_PODMAN_GLOBAL = _split_words(
    """cgroup-manager conmon connection c events-backend hooks-dir identity imagestore log-level module namespace
    network-cmd-path network-config-dir out root runroot runtime runtime-flag ssh storage-driver storage-opt tmpdir url
    volumepath tlscacert tlscert tlskey"""
)
_ENGINE_LETTERS = {"v": "volume", "e": "env", "w": "workdir", "u": "user", "d": "detach", "h": "hostname"}
_APPTAINER_RUNTIME = ContainerRuntime(
    kind="apptainer",
    starts=("exec", "run", "shell", "test"),
    valued=_APPTAINER,
    global_valued=_split_words("c config"),
    letters={"B": "bind", "H": "home", "e": "cleanenv", "c": "contain", "C": "containall", "w": "writable"}
    | {"o": "overlay", "S": "scratch", "W": "workdir", "u": "userns", "p": "pid", "f": "fakeroot"},
)
_PODMAN_RUNTIME = ContainerRuntime(
    kind="podman",
    starts=("run", "create", "exec"),
    groups=("container",),
    valued=_PODMAN,
    global_valued=_PODMAN_GLOBAL,
    letters=_ENGINE_LETTERS,
)
_DOCKER_RUNTIME = replace(
    _PODMAN_RUNTIME,
    kind="docker",
    valued=_DOCKER,
    global_valued=_split_words("config c context H host l log-level tlscacert tlscert tlskey n namespace address a"),
)
_BWRAP_ARITY = {
    **dict.fromkeys(
        _split_words(
            """args argv0 userns userns2 pidns uid gid hostname chdir unsetenv lock-file sync-fd remount-ro exec-label
            file-label proc dev tmpfs mqueue dir seccomp add-seccomp-fd block-fd userns-block-fd info-fd json-status-fd
            cap-add cap-drop perms size overlay-src tmp-overlay ro-overlay"""
        ),
        1,
    ),
    **dict.fromkeys(
        _split_words(
            """setenv bind bind-try dev-bind dev-bind-try ro-bind ro-bind-try bind-fd ro-bind-fd file bind-data
            ro-bind-data symlink chmod"""
        ),
        2,
    ),
    "overlay": 3,
}
RUNTIMES: Mapping[str, ContainerRuntime] = {
    **dict.fromkeys(("apptainer", "singularity"), _APPTAINER_RUNTIME),
    **dict.fromkeys(("podman", "podman-hpc"), _PODMAN_RUNTIME),
    **dict.fromkeys(("docker", "nerdctl"), _DOCKER_RUNTIME),
    "ch-run": ContainerRuntime(
        kind="ch-run",
        valued=_split_words(
            "b bind c cd feature g gid join-ct join-pid join-tag m mount s storage u uid unset-env gpu"
        ),
        letters={"b": "bind", "c": "cd", "w": "write", "t": "private-tmp", "s": "storage", "W": "write-fake"},
    ),
    "bwrap": ContainerRuntime(kind="bwrap", valued=frozenset(_BWRAP_ARITY), arity=_BWRAP_ARITY, has_image=False),
    "enroot": ContainerRuntime(
        kind="enroot",
        starts=("start",),
        valued=_split_words("c conf config e env m mount rc"),
        letters={"e": "env", "m": "mount", "r": "root", "w": "rw", "c": "conf"},
    ),
    "shifter": ContainerRuntime(
        kind="shifter",
        valued=_split_words("image i env e env-file m module V volume w workdir"),
        has_image=False,
        letters={"i": "image", "e": "env", "V": "volume", "w": "workdir", "m": "module", "E": "clearenv"},
    ),
    "sarus": ContainerRuntime(
        kind="sarus",
        starts=("run",),
        valued=_split_words("e env mount mpi-type name n workdir w device annotation"),
        letters={"e": "env", "w": "workdir", "m": "mpi", "n": "name", "t": "tty"},
    ),
}


def parse_container_call(words: Sequence[str]) -> ContainerCall | None:
    """Return the call that `words` are, the first of which is the runtime's program; None if they start no container.

    `apptainer pull`, `podman build` and the like start none. Never fails: an unknown option is taken for a flag.
    """
    runtime = RUNTIMES.get(os.path.basename(words[0])) if words else None
    if runtime is None:
        return None
    rest, head = list(words[1:]), [words[0]]
    subcommand = ""
    if runtime.starts:
        _, taken = _take_options(rest, runtime.global_valued, None, None)
        head += rest[:taken]
        rest = rest[taken:]
        if rest and rest[0] in runtime.groups:
            head.append(rest.pop(0))
        if not rest or rest[0] not in runtime.starts:
            return None
        subcommand = rest.pop(0)
        head.append(subcommand)
    options, taken = _take_options(rest, runtime.valued, runtime.arity, runtime.letters)
    rest = rest[taken:]
    while len(rest) > 1 and rest[0] == UNKNOWN and (rest[1] == UNKNOWN or rest[1].startswith("-")):
        # `docker run $OPTIONS -v /data:/data IMAGE`
        options.append((UNKNOWN, None, (rest.pop(0),)))
        more, taken = _take_options(rest, runtime.valued, runtime.arity, runtime.letters)
        options, rest = [*options, *more], rest[taken:]
    before, after, image = False, False, ""
    if rest[:1] == ["--"]:
        before = True
        rest.pop(0)
    rest = rest[_count_unknown_options(rest) :] if runtime.has_image else rest
    if runtime.has_image and rest:
        image = rest.pop(0)
        if rest[:1] == ["--"] and runtime.kind in ("ch-run", "shifter"):
            after = True
            rest.pop(0)
    return ContainerCall(
        runtime=runtime,
        head=tuple(head),
        subcommand=subcommand,
        options=tuple(options),
        image=image,
        command=tuple(rest),
        dashes=(before, after),
    )


_IMAGE = re.compile(r".*\.(?:sif|simg|img|sqsh|sqfs|squashfs)|\w+://.*", re.DOTALL)
_PROGRAM = re.compile(r"(?:python|pypy)[\d.]*|torchrun|accelerate|deepspeed|(?:ba|da|z)?sh|.*\.(?:py|sh)")


def _count_unknown_options(words: Sequence[str]) -> int:
    """Return how many words before the image may be options in a variable: `docker run $OPTIONS IMAGE python ...`."""
    if words[:1] != [UNKNOWN] or len(words) < 2:
        return 0
    names = [os.path.basename(word) for word in words[1:3]]
    starts_program = len(names) > 1 and _PROGRAM.fullmatch(names[1]) and not _PROGRAM.fullmatch(names[0])
    return 1 if _IMAGE.fullmatch(words[1]) or starts_program else 0


def _take_options(
    words: Sequence[str], valued: frozenset[str], arity: Mapping[str, int] | None, letters: Mapping[str, str] | None
) -> tuple[list[tuple[str, str | None, tuple[str, ...]]], int]:
    """Return (options, number of words that they are)."""
    found: list[tuple[str, str | None, tuple[str, ...]]] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        word = words[at]
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and len(word) > 1 and word[1:] not in valued:
            taken = _take_letters(word[1:], words[at + 1 : at + 2], valued, letters or {})
            found += taken
            at += len(taken[-1][2])
            continue
        name = (letters or {}).get(name, name) if len(name) == 1 else name
        count = 0 if equals or not _is_valued(word, valued) else (arity or {}).get(name, 1)
        values = words[at + 1 : at + 1 + count]
        text = value if equals else values[0] if values else None
        found.append((name, text, tuple(words[at : at + 1 + count])))
        at += 1 + len(values)
    return found, at


def _is_valued(word: str, valued: frozenset[str]) -> bool:
    return word.lstrip("-").partition("=")[0] in valued


def _take_letters(
    cluster: str, following: Sequence[str], valued: frozenset[str], letters: Mapping[str, str]
) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """Return the options of a word such as `-it`, `-eC`, `-v/data:/data` or `-itv`. All carry the word itself."""
    found: list[tuple[str, str | None, tuple[str, ...]]] = []
    for at, letter in enumerate(cluster):
        name = letters.get(letter, letter)
        if letter not in valued:
            found.append((name, None, ()))
            continue
        rest = cluster[at + 1 :].removeprefix("=")
        words = (f"-{cluster}",) if rest else (f"-{cluster}", *following)
        return [*found, (name, rest or (following[0] if following else None), words)]
    name, value, _ = found[-1]
    return [*found[:-1], (name, value, (f"-{cluster}",))]


def join_call(
    call: ContainerCall,
    *,
    added: Sequence[str] = (),
    options: Sequence[tuple[str, str | None, tuple[str, ...]]] | None = None,
    command: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return the words of the call, without its program, with `added` options after the user's."""
    given = call.options if options is None else options
    words = [word for _, _, own in given for word in own]
    words = [*call.head[1:], *words, *added]
    words += ["--"] if call.dashes[0] else []
    words += [call.image] if call.image else []
    words += ["--"] if call.dashes[1] else []
    return (*words, *(call.command if command is None else command))


def list_bound_paths(call: ContainerCall, cwd: str) -> tuple[BoundPath, ...]:
    """Return what the call's options bind, with absolute sources; named volumes are left out."""
    found: list[BoundPath] = []
    for name, value, words in call.options:
        if value is None:
            continue
        if call.runtime.kind == "bwrap":
            if name.removesuffix("-try") in ("bind", "dev-bind", "ro-bind") and len(words) == 3:
                found.append(BoundPath(source=words[1], target=words[2], read_only=name.startswith("ro")))
        elif name == "mount" and call.runtime.kind != "enroot":
            found += [bound for bound in (parse_mount(value),) if bound]
        elif name in ("bind", "volume", "mount", "home"):
            found += _parse_bindings(value, call.runtime.kind)
    return tuple(
        BoundPath(source=os.path.normpath(os.path.join(cwd, one.source)), target=one.target, read_only=one.read_only)
        for one in found
        if call.runtime.kind not in ("podman", "docker") or one.source.startswith(("/", "."))
    )


_BIND_VARIABLES = ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH")


def find_container_view(
    words: Sequence[str], cwd: str, variables: Mapping[str, str | None] | None = None
) -> tuple[tuple[BoundPath, ...], str]:
    """Return (what is bound, working directory inside or "") of the container that a command starts.

    `variables`: the command's environment; apptainer adds what APPTAINER_BIND names to what its options bind.
    """
    bound: list[BoundPath] = []
    workdir = ""
    for at, word in enumerate(words):
        name = os.path.basename(word)
        if name == "srun":
            call = parse_srun(words[at + 1 :])
            if call.in_container:
                bound += map(parse_pyxis_mount, split_bindings(call.value("container-mounts") or ""))
                workdir = call.value("container-workdir") or workdir
        elif name in RUNTIMES and (inside := parse_container_call(words[at:])):
            bound += list_bound_paths(inside, cwd)
            if inside.runtime.kind == "apptainer" and variables:
                named = (variables.get(name) or "" for name in _BIND_VARIABLES)
                parts = (one for value in named for one in _parse_bindings(value, "apptainer"))
                bound += [replace(one, source=os.path.normpath(os.path.join(cwd, one.source))) for one in parts]
            workdir = (inside.values("workdir", "pwd", "cwd", "cd", "chdir") or [workdir])[-1]
            if inside.runtime.kind == "apptainer" and inside.values("workdir"):
                workdir = (inside.values("pwd", "cwd") or [""])[-1]
            break
    return tuple(bound), workdir


def find_runtime(words: Sequence[str]) -> str:
    """Return the kind of the runtime that a command starts, through wrappers; "" if it starts none."""
    calls = (parse_container_call(words[at:]) for at, w in enumerate(words) if os.path.basename(w) in RUNTIMES)
    return next((call.runtime.kind for call in calls if call), "")


def parse_pyxis_mount(part: str) -> BoundPath:
    """Return what one part of srun's --container-mounts binds."""
    source, _, rest = part.partition(":")
    target, _, flags = rest.partition(":")
    return BoundPath(source=source, target=target or source, read_only="ro" in flags.split("+"))


def _parse_bindings(value: str, kind: str) -> list[BoundPath]:
    parts = split_bindings(value) if kind == "apptainer" else value.split(";") if kind == "shifter" else [value]
    found = []
    for part in parts:
        source, _, rest = part.partition(":")
        target, _, flags = rest.partition(":")
        if source:
            read_only = bool({"ro", "rro"} & set(re.split(r"[,+]", flags)))
            found.append(BoundPath(source=source, target=target or source, read_only=read_only))
    return found


def split_bindings(value: str) -> list[str]:
    r"""Split a list of `SRC[:DST[:FLAGS]]` at its commas; apptainer permits `\,` in a path, and flags after a comma."""
    parts: list[str] = []
    for part in re.split(r"(?<!\\),", value):
        if parts and part in ("ro", "rw") and parts[-1].count(":") >= 2:
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    return parts


_MOUNT_SOURCES, _MOUNT_TARGETS = ("source", "src"), ("target", "dst", "destination")


def parse_mount(value: str) -> BoundPath | None:
    """Return what `type=bind,source=...,target=...` binds; None for volumes, tmpfs and images."""
    fields = dict(part.partition("=")[::2] for part in value.split(","))
    source = next((fields[name] for name in _MOUNT_SOURCES if name in fields), "")
    target = next((fields[name] for name in _MOUNT_TARGETS if name in fields), "")
    if fields.get("type", "bind") != "bind" or not source or not target:
        return None
    return BoundPath(source=source, target=target, read_only=bool(_split_words("ro readonly") & fields.keys()))


def map_to_host(path: str, bound: Sequence[BoundPath]) -> str:
    """Return the host's path of a path inside the container, by the longest target; "" if nothing is bound there."""
    found = [one for one in bound if path == one.target or path.startswith(one.target.rstrip("/") + "/")]
    if not found:
        return ""
    longest = max(found, key=lambda one: len(one.target))
    return os.path.normpath(longest.source + "/" + path[len(longest.target.rstrip("/")) :])
