"""Compute profile keys, job variants and fingerprints: which profile and which passed pre-run belong to a job. Pure.

The key of `derive_key` is coarse on purpose: it stays the same when the program is edited, since the program's needs
mostly do. The fingerprint of `compute_fingerprint` is exact: it changes with one byte of script, code, argument or
option. The variant of `derive_variant` is between both: it changes with the batch size, the loader's workers and other
settings that change the cost of a step. So a profile can distinguish measurements of other jobs with the same key.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from slurmwrap.digest import sha256_hex
from slurmwrap.fast_dataclasses import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.sbatch.job_request import JobRequest

# Options that change how Slurm handles the job, but not what the program does on one GPU.
_OPTIONS_WITHOUT_EFFECT = frozenset(
    (
        *("begin", "comment", "deadline", "delay-boot", "dependency", "error", "exclude", "hold", "job-name"),
        *("kill-on-invalid-dep", "mail-type", "mail-user", "nice", "nodelist", "open-mode", "output", "parsable"),
        *("priority", "quiet", "requeue", "no-requeue", "switches", "test-only", "time-min", "verbose", "wait"),
    )
)
# Variables that determine which code runs. The rest of the environment changes with every login.
_CODE_VARIABLES = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

_SHELL_VARIABLE = rb"\$\{?([A-Za-z_][A-Za-z0-9_]*)"
_PYTHON_VARIABLE = rb"(?:environ(?:\.get|\.setdefault|\.pop)?|getenv)\s*[\[(]\s*[rb]?['\"]([A-Za-z_][A-Za-z0-9_]*)['\"]"
_PLUGIN_VARIABLE = "_SLURM_SPANK_OPTION_"

# Names of options and variables that change what one step needs, for example "per_device_train_batch_size" and "BS".
_SHAPING_NAME = re.compile(
    r"batch|worker|num-proc|precision|fp16|bf16|fp8|tf32|(?:^|-)amp(?:$|-)|dtype|quant|seq|length|max-len|block-size|context|accum"
    r"|image-size|img|resolution|crop|hidden|layer|depth|width|heads|model|arch|config|compile|checkpointing|shard|zero"
    r"|(?:^|-)(?:bs|tp|pp|size)$"
)
# Names of settings that only name runs, directories and seeds; they do not change the work.
_PLACE_NAME = re.compile(r"dir|output|log|save|port|resume|seed|timestamp")
# Short options that change what one step needs: -b 64 and -j 8 in torchvision's and timm's scripts.
_SHORT_SHAPING_OPTIONS = frozenset(("b", "j", "bs"))
_WORD = re.compile(r"""[^\s"'();&|]+""")
# Bytes of a script that are searched.
_SCRIPT_CAP = 1 << 18

# Names of settings that say how long a job trains: counts, for example "num_train_epochs" and "MAX_STEPS", and names of
# what it trains on. A count twice as large takes twice as long.
_COUNT_NAME = re.compile(
    r"epoch|(?:^|-)(?:n|num|max|total|train|training|min|optim|update|global)-(?:[a-z]+-)?(?:steps?|iters?|iterations?|updates?"
    r"|batches|samples|tokens|timesteps|examples|episodes|rounds|frames|generations)$"
    r"|^(?:steps?|iters?|iterations?|updates|niter|nepochs?|timesteps|episodes|rounds|frames|generations)$"
)
_CONTENT_NAME = re.compile(r"(?:^|-)(?:dataset|data|corpus|task|split|fold|config|recipe|experiment)(?:$|-)|dataset")
# Settings of the same words that do not change the amount of work, such as "save-steps" and "warmup-epochs".
_NOT_LENGTH_NAME = re.compile(
    r"save|log|eval|valid|test|print|report|display|warm|start|resume|initial|last|checkpoint|ckpt|interval|every|freq|decay"
    r"|patience|accum|cooldown|milestone|restart|worker|output|seed|port|collator|loader|parallel|type|per-node"
)
_CONFIG_FILE = re.compile(r"[^=]+\.(?:ya?ml|toml|json|cfg|ini|gin|hocon|jsonnet)")
# Lines without any of these words, in lower case, have no such setting.
_LENGTH_WORDS = tuple(
    b"epoch step iter update batches sample token example episode round frame generation data corpus task split fold"
    b" config recipe experiment .yaml .yml .toml .json .cfg .ini .gin .hocon".split()
)
_LENGTH_WORD = re.compile(r"[^\s();&|]+")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}$]*))?\})")
# Bounds of what is stored of them.
_MOST_LENGTHS, _LONGEST_NAME, _LONGEST_VALUE = 8, 40, 40


def derive_key(request: JobRequest, entry_program: str, gpu_type: str) -> str:
    """Return the profile key, such as "train-a100x8-3f2a91c04be7": program, GPU type, GPUs per node, and a digest.

    `entry_program` is the path of the program that the script starts; a relative path is relative to the job's working
    directory. If it equals the script's name, there is no such program, and the script itself is the program.
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
    """Return 12 hexadecimal digits over the settings for batch size, workers, precision, model etc.; "" if none.

    Settings are taken from the command line and the script: "--batch-size 64", "--batch-size=64", "data.batch_size=64"
    and "BATCH_SIZE=64" are the same setting. A program that contains its numbers has no variant.
    """
    text = request.script.content[:_SCRIPT_CAP].decode("utf-8", "replace")
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = [_substitute_arguments(word, request.args) for word in _WORD.findall(body)]
    found = set(_list_shaping_settings([*words, "--", *request.args]))
    return _digest(sorted(found))[:12] if found else ""


def derive_length(request: JobRequest, environ: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
    """Return the settings that say how long the job trains as sorted pairs of name and value: ("epochs", "90").

    They are taken from the command line and the script, as the settings of derive_variant(): numbers of epochs, steps
    or samples, names of data sets, configuration files ("config"). Variables are replaced by what the script assigns
    or, without that, by `environ`; a value that stays unknown is left out. A long value is replaced by its digest.
    """
    content = request.script.content[:_SCRIPT_CAP]
    known = {str(place): arg for place, arg in enumerate(request.args, 1)}

    def find_value(name: str) -> str | None:
        if name.isdecimal():
            return known.get(name)
        if name not in known:
            assigned = re.findall(rb"^[ \t]*(?:export[ \t]+)?%b=(\S*)" % name.encode(), content, re.MULTILINE)
            # Also ends the search if the value refers to itself: EPOCHS=${EPOCHS:-90}.
            known[name] = (environ or {}).get(name, "") or f"${name}"
            if assigned:
                given = _strip_quotes(assigned[-1].decode("utf-8", "replace"))
                known[name] = _replace_variables(given, find_value)
        return known[name] if not known[name].startswith("$") else None

    words = [
        word for line in _list_length_lines(content) for word in (*_LENGTH_WORD.findall(_strip_quotes(line)), "--")
    ]
    found = {
        (name[:_LONGEST_NAME], short)
        for name, value in _list_length_settings([*words, *request.args])
        if (short := _shorten_value(_replace_variables(value, find_value)))
    }
    return tuple(sorted(found)[:_MOST_LENGTHS])


def _list_length_lines(content: bytes) -> list[str]:
    """Return the lines of a script that may have a setting of derive_length(), in their order."""
    lower, starts = content.lower(), set[int]()
    for word in _LENGTH_WORDS:
        at = lower.find(word)
        while at >= 0:
            starts.add(lower.rfind(b"\n", 0, at) + 1)
            end = lower.find(b"\n", at)
            at = lower.find(word, end) if end >= 0 else -1
    lines = (content[start : end if (end := content.find(b"\n", start)) >= 0 else None] for start in sorted(starts))
    return [line.decode("utf-8", "replace") for line in lines if not line.lstrip().startswith(b"#")]


def _strip_quotes(text: str) -> str:
    return text.replace('"', "").replace("'", "")


def is_count_name(name: str) -> bool:
    """Return whether a name of derive_length() is that of a count, so that the run time grows with its value."""
    return bool(_COUNT_NAME.search(name))


def limit_length(claimed: object) -> tuple[tuple[str, str], ...]:
    """Return the length options that a user's record claims, within the bounds of derive_length(); () if malformed."""
    if not isinstance(claimed, list | tuple) or len(claimed) > _MOST_LENGTHS:
        return ()
    pairs = [tuple(one) for one in claimed if isinstance(one, list | tuple)]
    fits = all(
        len(p) == 2 and all(isinstance(t, str) and len(t) <= max(_LONGEST_NAME, _LONGEST_VALUE) for t in p)
        for p in pairs
    )
    return tuple(sorted((str(name), str(value)) for name, value in pairs)) if fits else ()


def _list_length_settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each setting in `words` that changes how long the job trains."""
    for word, following in zip(words, [*words[1:], "--"], strict=False):
        name, equals, value = word.partition("=")
        dashed = name.startswith("-")
        bare = name.lstrip("-+").rpartition(".")[2].replace("_", "-").lower()
        if dashed or equals:
            counts = _COUNT_NAME.search(bare) or _CONTENT_NAME.search(bare)
            if counts and not _NOT_LENGTH_NAME.search(bare):
                yield bare, value if equals else "" if following.startswith("-") else following
        elif _CONFIG_FILE.fullmatch(word):
            yield "config", word


def _replace_variables(value: str, find_value: Callable[[str], str | None]) -> str:
    """Return `value` with the variables that are known replaced: $N, ${N} and ${N:-default}."""
    if "$" not in value:
        return value

    def replace_one(match: re.Match[str]) -> str:
        found = find_value(match[1] or match[2])
        return (match[0] if match[3] is None else match[3]) if found is None else found

    return _REFERENCE.sub(replace_one, value)


def _shorten_value(value: str) -> str:
    """Return a value as it is stored; "" for an unknown one."""
    if "$" in value or "`" in value:
        return ""
    return value if len(value) <= _LONGEST_VALUE and value.isprintable() else f"#{_digest(value)[:12]}"


def _substitute_arguments(word: str, args: Sequence[str]) -> str:
    """Return `word` with $1 to $9 replaced by the script's arguments."""
    if "$" not in word:
        return word
    return re.sub(r"\$\{?([1-9])\}?", lambda m: args[int(m[1]) - 1] if len(args) >= int(m[1]) else m[0], word)


def _list_shaping_settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each setting in `words` that changes the cost of a step."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        dashed = name.startswith("-")
        bare = name.lstrip("-+").rpartition(".")[2].replace("_", "-").lower()
        if not (dashed or equals) or _PLACE_NAME.search(bare):
            continue
        if not (_SHAPING_NAME.search(bare) or (dashed and bare in _SHORT_SHAPING_OPTIONS)):
            continue
        yield bare, value if equals else "" if following.startswith("-") else following


# Variables that describe the login session: they differ between two terminals and do not matter to a program.
_LOGIN_VARIABLES = frozenset(
    (
        *("_", "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "LINES", "OLDPWD", "PWD", "SHLVL", "WINDOWID"),
        *("STY", "TMUX", "TMUX_PANE", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "LS_COLORS", "HISTFILE"),
    )
)
_LOGIN_PREFIXES = ("SSH_", "TERM", "VTE_", "GSUB_", "VSCODE_", "KRB5")


def compute_fingerprint(
    request: JobRequest, files: Mapping[str, bytes], environ: Mapping[str, str] | None = None
) -> str:
    """Return the fingerprint: 64 hexadecimal digits over script, arguments, options, code environment and `files`.

    `files`: contents by path of the programs that the script starts and of the modules that they import. `environ`: the
    job's environment; without it the few variables that the request itself keeps.
    """
    known = request.environ if environ is None else environ
    in_force = {setting.option: setting.value for setting in request.settings}
    # What gsub chose for --partition=auto depends on the queue.
    in_force.update((change.option, change.old) for change in request.chosen)
    parts = [
        sha256_hex(request.script.content),
        list(request.args),
        request.chdir,
        sorted((option, value or "") for option, value in in_force.items() if option not in _OPTIONS_WITHOUT_EFFECT),
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
    """Return the caller's variables that the script (`$LR`) or its programs (`os.environ["LR"]`) read by name."""
    named = {name.decode("ascii") for name in re.findall(_SHELL_VARIABLE, request.script.content[:_SCRIPT_CAP])}
    for content in files.values():
        named.update(name.decode("ascii") for name in re.findall(_PYTHON_VARIABLE, content))
    return sorted((name, known[name]) for name in named if name in known and not _is_irrelevant_variable(name))


def _is_irrelevant_variable(name: str) -> bool:
    return name in _LOGIN_VARIABLES or name in _CODE_VARIABLES or name.startswith((*_LOGIN_PREFIXES, "SLURM"))


def _list_plugin_settings(request: JobRequest, environ: Mapping[str, str]) -> list[str]:
    """Return the options and variables of site plugins (SPANK). They may select the container of the whole job."""
    options = [f"--{s.option}={s.value}" for s in request.settings if s.option in request.plugin_options]
    return options + sorted(f"{name}={value}" for name, value in environ.items() if _PLUGIN_VARIABLE in name)


def compute_sweep_group(request: JobRequest, code: Mapping[str, bytes], environ: Mapping[str, str]) -> str:
    """Return a digest of what the jobs of a sweep share: the fingerprint without arguments, and the environment.

    The caller's whole environment counts, because one pre-run for several jobs runs in the environment of the first
    job. `code`: as `files` of `compute_fingerprint`, but without files that only contain settings.
    """
    variables = sorted(
        (name, value)
        for name, value in environ.items()
        if name not in _LOGIN_VARIABLES and not name.startswith(_LOGIN_PREFIXES)
    )
    steps: list[object] = [] if request.own.prerun_steps is None else [request.own.prerun_steps]
    steps += [] if request.own.rehearse == "on" else [request.own.rehearse]
    steps += [request.own.resume_args] if request.own.resume_args else []
    return _digest([compute_fingerprint(replace(request, args=()), code, environ), variables, *steps])


def derive_site_key(uid: int, key: str) -> str:
    """Return the key of a profile in the site's database. It contains the uid, so users only name keys of their own."""
    return f"{uid}:{key}"


def derive_published_key(site_key: str) -> str:
    """Return the key of a profile in the published file: a digest of the site's key.

    Only a reader who knows the owner and the key's name can find the profile.
    """
    return sha256_hex(site_key.encode("utf-8", "surrogateescape"))


def _digest(parts: object) -> str:
    # ASCII, because arguments may contain lone surrogates from bytes that are not UTF-8.
    return sha256_hex(json.dumps(parts, ensure_ascii=True).encode("ascii"))
