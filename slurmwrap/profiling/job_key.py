"""Names what a profile and a passed pre-run belong to. Pure.

`derive_key` is coarse on purpose: it survives edits of the program, since its needs mostly do. `fingerprint` is exact:
one changed byte of script, code, argument or option makes another. `derive_variant` lies between: it changes
with the batch size, the loader's workers and whatever else shifts what a step costs, so that a profile knows how much
of what it holds was measured on another job of the same key.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.digest import sha256_hex
from slurmwrap.fast_dataclasses import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.sbatch.job_request import JobRequest

# Options that change what Slurm does with the job, not what the program does on one GPU.
_WITHOUT_EFFECT = frozenset(
    (
        *("begin", "comment", "deadline", "delay-boot", "dependency", "error", "exclude", "hold", "job-name"),
        *("kill-on-invalid-dep", "mail-type", "mail-user", "nice", "nodelist", "open-mode", "output", "parsable"),
        *("priority", "quiet", "requeue", "no-requeue", "switches", "test-only", "time-min", "verbose", "wait"),
    )
)
# Variables that decide which code runs; the rest of the environment changes with every login.
_CODE_VARIABLES = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

_SHELL_VARIABLE = rb"\$\{?([A-Za-z_][A-Za-z0-9_]*)"
_PYTHON_VARIABLE = rb"(?:environ(?:\.get|\.setdefault|\.pop)?|getenv)\s*[\[(]\s*[rb]?['\"]([A-Za-z_][A-Za-z0-9_]*)['\"]"
_PLUGIN_VARIABLE = "_SLURM_SPANK_OPTION_"

# Names of options and variables that shift what one step needs; matched in "per_device_train_batch_size", "BS", "-b".
_SHAPING = re.compile(
    r"batch|worker|num-proc|precision|fp16|bf16|fp8|tf32|(?:^|-)amp(?:$|-)|dtype|quant|seq|length|max-len|block-size|context|accum"
    r"|image-size|img|resolution|crop|hidden|layer|depth|width|heads|model|arch|config|compile|checkpointing|shard|zero"
    r"|(?:^|-)(?:bs|tp|pp|size)$"
)
# They name runs and places, not work.
_PLACES = re.compile(r"dir|output|log|save|port|resume|seed|timestamp")
# -b 64 and -j 8, as torchvision's and timm's scripts spell them
_SHORT = frozenset(("b", "j", "bs"))
_WORD = re.compile(r"""[^\s"'();&|]+""")
# Characters of a script that are looked at.
_TEXT_CAP = 1 << 18


def derive_key(request: JobRequest, entry_program: str, gpu_type: str) -> str:
    """Such as "train-a100x8-3f2a91c04be7": entry program (else the script itself), GPU type, GPUs per node.

    `entry_program` is a path, relative ones from where the job runs; the script's own name means that there is none.
    """
    shape, script = request.shape, request.script
    gpus = shape.gpus_per_node or shape.gpus
    if entry_program and entry_program != script.name:
        program = posixpath.normpath(posixpath.join(request.chdir, entry_program))
    else:
        entry_program, program = script.name, sha256_hex(script.content)
    readable = re.sub(r"[^a-z0-9]+", "-", posixpath.basename(entry_program).rpartition(".")[0].lower()).strip("-")
    name = readable or re.sub(r"[^a-z0-9]+", "-", entry_program.lower()).strip("-") or "job"
    kind = re.sub(r"[^a-z0-9]+", "-", gpu_type.lower()).strip("-") or "gpu"
    return f"{name[:40]}-{kind[:20]}x{gpus}-{_digest([program, script.name, gpu_type, gpus])[:12]}"


def derive_variant(request: JobRequest) -> str:
    """12 hexadecimal digits over the settings that look like batch size, workers, precision or model; "" for none.

    From the command line and the script: "--batch-size 64", "--batch-size=64", "-b 64", "data.batch_size=64" and
    "BATCH_SIZE=64" are one and the same setting. A program that has its numbers inside shows no variant.
    """
    text = request.script.content[:_TEXT_CAP].decode("utf-8", "replace")
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = [_substitute_arguments(word, request.args) for word in _WORD.findall(body)]
    found = set(_list_shaping_words([*words, "--", *request.args]))
    return _digest(sorted(found))[:12] if found else ""


def _substitute_arguments(word: str, args: Sequence[str]) -> str:
    """`word` with the script's own arguments in place of $1 to $9."""
    if "$" not in word:
        return word
    return re.sub(r"\$\{?([1-9])\}?", lambda m: args[int(m[1]) - 1] if len(args) >= int(m[1]) else m[0], word)


def _list_shaping_words(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of each word that sets what a step costs."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        dashed = name.startswith("-")
        bare = name.lstrip("-+").rpartition(".")[2].replace("_", "-").lower()
        if not (dashed or equals) or _PLACES.search(bare):
            continue
        if not (_SHAPING.search(bare) or (dashed and bare in _SHORT)):
            continue
        yield bare, value if equals else "" if following.startswith("-") else following


# Variables that say where and when someone logged in: they differ between two windows and mean nothing to a program.
_OF_THE_LOGIN = frozenset(
    (
        *("_", "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "LINES", "OLDPWD", "PWD", "SHLVL", "WINDOWID"),
        *("STY", "TMUX", "TMUX_PANE", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "LS_COLORS", "HISTFILE"),
    )
)
_OF_THE_LOGINS = ("SSH_", "TERM", "VTE_", "GSUB_", "VSCODE_", "KRB5")


def compute_fingerprint(
    request: JobRequest, files: Mapping[str, bytes], environ: Mapping[str, str] | None = None
) -> str:
    """64 hexadecimal digits over script, arguments, options that matter, environment of the code, and `files`.

    `files`: contents by path of the programs that the script starts and of the modules that they import. `environ`:
    what the job will find; without it the few variables that the request itself keeps.
    """
    known = request.environ if environ is None else environ
    in_force = {setting.option: setting.value for setting in request.settings}
    parts = [
        sha256_hex(request.script.content),
        list(request.args),
        request.chdir,
        sorted((option, value or "") for option, value in in_force.items() if option not in _WITHOUT_EFFECT),
        [(name, known.get(name, "")) for name in _CODE_VARIABLES],
        *([named] if (named := _list_named_variables(request, files, known)) else []),
        sorted((path, sha256_hex(content)) for path, content in files.items()),
        [
            request.own.prerun_command,
            request.own.prerun_gpus,
            *request.components,
            *_list_plugin_settings(request, known),
        ],
    ]
    return _digest(parts)


def _list_named_variables(
    request: JobRequest, files: Mapping[str, bytes], known: Mapping[str, str]
) -> list[tuple[str, str]]:
    """The caller's variables that the script (`$LR`) or its programs (`os.environ["LR"]`) read by name."""
    named = {name.decode("ascii") for name in re.findall(_SHELL_VARIABLE, request.script.content[:_TEXT_CAP])}
    for content in files.values():
        named.update(name.decode("ascii") for name in re.findall(_PYTHON_VARIABLE, content))
    return sorted((name, known[name]) for name in named if name in known and not _is_of_no_matter(name))


def _is_of_no_matter(name: str) -> bool:
    return name in _OF_THE_LOGIN or name in _CODE_VARIABLES or name.startswith((*_OF_THE_LOGINS, "SLURM"))


def _list_plugin_settings(request: JobRequest, environ: Mapping[str, str]) -> list[str]:
    """What site plugins get, which may be the container that all runs in: all of it, and its variables."""
    words = [f"--{s.option}={s.value}" for s in request.settings if s.option in request.plugin_options]
    return words + sorted(f"{name}={value}" for name, value in environ.items() if _PLUGIN_VARIABLE in name)


def compute_sweep_group(request: JobRequest, code: Mapping[str, bytes], environ: Mapping[str, str]) -> str:
    """What the jobs of a sweep share: all of `fingerprint` but the arguments, and the whole environment of the caller,
    since one pre-run that speaks for several jobs runs in the environment of the first. `code`: without files that
    only hold settings."""
    whole = sorted(
        (name, value)
        for name, value in environ.items()
        if name not in _OF_THE_LOGIN and not name.startswith(_OF_THE_LOGINS)
    )
    steps = [] if request.own.prerun_steps is None else [request.own.prerun_steps]
    return _digest([compute_fingerprint(replace(request, args=()), code, environ), whole, *steps])


def profile_key_of(uid: int, key: str) -> str:
    """The key of a profile in the site's database: anyone who names a key, names their own."""
    return f"{uid}:{key}"


def published_key_of(site_key: str) -> str:
    """How everyone sees the key of a site's profile: only who knows whose it is, and its name, can ask for it."""
    return sha256_hex(site_key.encode("utf-8", "surrogateescape"))


def _digest(parts: object) -> str:
    # ASCII: arguments may hold lone surrogates, from bytes that are no UTF-8
    return sha256_hex(json.dumps(parts, ensure_ascii=True).encode("ascii"))
