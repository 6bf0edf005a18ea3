"""Advice in one sentence that names what the message names: the module, the option, the file, the port. Pure.

What a message names is the user's text: it is shortened and freed of control characters before it is put into a
sentence. A signature's own advice may contain the names of its regex groups in braces, such as "Install {module}.". If
such a group took no part in the match, the category's advice is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurmwrap.escape import marked

_CAP = 120
_PLACEHOLDER = re.compile(r"\{([a-z_]{1,30})\}")

# Each entry: categories to which it applies, expression over the line that decided, sentence.
_SENTENCES = (
    (
        ("import_error",),
        re.compile(r"No module named '?(?P<name>[\w.]+)"),
        "Install a package that provides '{name}' into the environment that the job activates.",
    ),
    (
        ("import_error",),
        re.compile(r"cannot import name '(?P<name>[^']+)' from (?:partially initialized module )?'(?P<module>[^']+)'"),
        "'{module}' has no '{name}' in the installed version: pin the version that has it, or change the import.",
    ),
    (
        ("cannot_load_libs",),
        re.compile(r"(?P<name>[\w+.-]+\.so[\w.]*): cannot open shared object file"),
        "{name} is not found by the loader: load the module or image that provides it, or set LD_LIBRARY_PATH.",
    ),
    (
        ("cannot_load_libs",),
        re.compile(r"version [`'](?P<name>(?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)' not found"),
        "This node's C/C++ library has no {name}: build on the node type that runs the job, or use a container image.",
    ),
    (
        ("cannot_load_libs",),
        re.compile(r"undefined symbol: (?P<name>\w+)"),
        "Rebuild the extension that lacks the symbol {name} against the libraries of this environment.",
    ),
    (
        ("syntax_error",),
        re.compile(r"(?:: |^)(?P<name>[\w./+-]+): (?:command )?not found|command not found: (?P<other>\S+)"),
        "'{name}' is not on the job's PATH: load the module or activate the environment that provides it.",
    ),
    (
        ("semantic_error",),
        re.compile(
            r"(?:unrecognized arguments?|no such option|unknown option|invalid option)s?:? (?:-- ')?(?P<name>--?[\w-]+)"
        ),
        "The program does not know the option '{name}': compare it with the program's --help in this version.",
    ),
    (
        ("semantic_error",),
        re.compile(r"the following arguments are required: (?P<name>[^\n]+)"),
        "Give the program the missing arguments: {name}.",
    ),
    (
        ("semantic_error",),
        re.compile(r"got an unexpected keyword argument '(?P<name>[^']+)'"),
        "The installed version does not take the argument '{name}': remove it, or pin the version that has it.",
    ),
    (
        ("semantic_error",),
        re.compile(r"module '(?P<module>[^']+)' has no attribute '(?P<name>[^']+)'"),
        "The installed '{module}' has no '{name}': pin the version that has it, or use its replacement.",
    ),
    (
        ("incorrect_inputs",),
        re.compile(r"No such file or directory: '(?P<name>[^']+)'"),
        "'{name}' does not exist on the node: check the path, and that the file system is mounted there.",
    ),
    (
        ("permission_error",),
        re.compile(r"Permission denied: '(?P<name>[^']+)'|(?::| ) ?'?(?P<other>[./][^':]*)'?: Permission denied"),
        "The job's user may not use '{name}': check its owner and mode (for a script: chmod +x).",
    ),
    (
        ("permission_error",),
        re.compile(r"(?P<code>401|403) Client Error.{0,80}for url: https?://(?P<name>[^/\s:]+)"),
        "{name} refused the access ({code}): log in with a token that may read it, or accept the model's terms there.",
    ),
    (
        ("gpu_oom",),
        re.compile(r"Tried to allocate (?P<name>[\d.]+ [KMGT]i?B)"),
        "Another {name} did not fit on the GPU: lower the batch size or sequence length, use activation checkpointing "
        "or sharding, or ask for larger GPUs.",
    ),
    (
        ("cpu_oom",),
        re.compile(r"Unable to allocate (?P<name>[\d.]+ [KMGTP]i?B)"),
        "An array of {name} did not fit into host memory: read the data in parts, or ask for more memory (--mem).",
    ),
    (
        ("address_in_use",),
        re.compile(r"(?:port:? `?|:)(?P<name>\d{4,5})\b"),
        "Port {name} was taken: derive MASTER_PORT from the job id, or let torchrun choose (--rdzv-endpoint=host:0).",
    ),
    (
        ("storage_full",),
        re.compile(r"(?:No space left on device|Disk quota exceeded):? '(?P<name>[^']+)'"),
        "Free space or raise the quota where '{name}' lies, then resubmit.",
    ),
    (
        ("network_error",),
        re.compile(r"host='(?P<name>[\w.-]+)'|resolve(?: host)?:? '?(?P<other>[\w-]+(?:\.[\w-]+)+)"),
        "{name} could not be reached from the node: fetch models and data before the job (HF_HUB_OFFLINE=1, "
        "WANDB_MODE=offline) if nodes have no way out.",
    ),
    (
        ("traceback_from_crash",),
        re.compile(r"^(?:\[rank\d+\]: )?KeyError: '(?P<name>[^']+)'"),
        "The key '{name}' does not exist: the traceback names the line that looked for it.",
    ),
    (
        ("traceback_from_crash",),
        re.compile(r"^(?:\[rank\d+\]: )?(?P<name>[A-Z]\w*(?:Error|Exception))\b"),
        "The program raised {name}: the traceback names the line.",
    ),
    (
        ("semantic_error",),
        re.compile(r"(?P<name>mat1 and mat2 shapes cannot be multiplied \([^)]{3,60}\))"),
        "Make the layer's in_features fit what is fed into it: {name}.",
    ),
    (
        ("cuda_version_mismatch",),
        re.compile(r"CUDA capability (?P<name>sm_\d+)"),
        "Install a build of the framework that was compiled for {name}.",
    ),
)


def find_specific_advice(category: str, text: str) -> str:
    """Return the sentence that fits the deciding line `text` of a `category`; "" if none does."""
    for categories, pattern, sentence in _SENTENCES:
        if category in categories and (found := pattern.search(text)):
            groups = found.groupdict()
            return fill_template(sentence, {**groups, "name": groups.get("name") or groups.get("other")})
    return ""


def fill_template(template: str, groups: Mapping[str, str | None]) -> str:
    """Return `template` with each {name} replaced from the message; "" if a placeholder has no value."""
    wanted = {name: make_printable(groups.get(name) or "") for name in list_places(template)}
    if not all(wanted.values()):
        return ""
    return _PLACEHOLDER.sub(lambda match: wanted[match[1]], template)


def list_places(template: str) -> tuple[str, ...]:
    """Return the names of the placeholders, which stand in braces."""
    return tuple(_PLACEHOLDER.findall(template))


def make_printable(text: str) -> str:
    """Return at most 120 characters of a user's text, without any that a terminal would act on."""
    kept = marked(text, "", 4 * _CAP).strip()
    return kept if len(kept) <= _CAP else kept[: _CAP - 1] + "\N{HORIZONTAL ELLIPSIS}"
