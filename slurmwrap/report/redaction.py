"""Remove from a JSON document what identifies people and hosts, and what looks like a secret. Pure.

What is named in the document's own fields (user, account, job name, nodes, directories) is replaced wherever it occurs,
also inside log lines, by the same placeholder each time, so that the text still makes sense. Secrets are recognized by
their form. What is named in a log alone, for instance a colleague, is not recognized.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from slurmwrap.model.hostlist import expand

# Fields whose text is replaced, and by what; a number follows where a document has several of them.
_NAMED = {
    "user": "user",
    "account": "account",
    "cluster": "cluster",
    "name": "job-name",
    "job_name": "job-name",
    "node": "node",
    "partition": "partition",
}
_NODE_LISTS = ("nodes", "req_nodes", "exc_nodes", "node_list")
_UIDS = ("uid", "gid")
# Names of fewer characters occur within other words too often.
_SHORTEST = 2
_SECRET_NAME = r"(?:api[_-]?key|token|passwd|password|secret(?:[_-][a-z_-]{1,20})?)"
# What precedes a secret, if anything, is kept: it is the first group.
_SECRETS = (
    # NAME=value, NAME: value, "NAME": "value"
    re.compile(rf"(?i)({_SECRET_NAME}[\"']?[ \t]{{0,3}}[=:][ \t]{{0,3}}[\"']?)[^\s\"']+"),
    re.compile(rf"(?i)(--(?:[a-z]+-){{0,3}}{_SECRET_NAME}[ ][\"']?)[^\s\"'-][^\s\"']*"),
    re.compile(r"(?i)(\bbearer[ ])[\w.~+/-]{8,}=*"),
    re.compile(r"()\b(?:hf|ghp|gho|ghs|glpat|xox[bap])[_-][A-Za-z0-9_-]{16,}"),
    re.compile(r"()\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"()\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    re.compile(r"()(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
)
_ADDRESSES = (
    # The first condition lets a search begin once in a word, not at each of its characters.
    (re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), "<mail>"),
    (re.compile(r"\b(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}\b"), "<address>"),
)
_HOME = re.compile(r"/(?:home|users?|u|data/home|gpfs/home|lustre/home)/[^/\s:'\"]+")


def redact_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without names of users, accounts, jobs, hosts and home directories, uids, and secrets."""
    names = _collect_names(document)
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    pattern = (
        re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w])" for name in longest_first)) if names else None
    )

    def clean(text: str) -> str:
        for secret in _SECRETS:
            text = secret.sub(r"\1<secret>", text)
        for address, placeholder in _ADDRESSES:
            text = address.sub(placeholder, text)
        text = _HOME.sub("/home/user1", text)
        return text if pattern is None else pattern.sub(lambda found: names[found[0]], text)

    return {key: _redact(key, value, clean) for key, value in document.items()}


def _redact(key: str, value: Any, clean: Callable[[str], str]) -> Any:
    if key in _NODE_LISTS and isinstance(value, str):
        return ",".join(map(clean, _expand_nodes(value)))
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(name)): _redact(str(name), one, clean) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(key, one, clean) for one in value]
    return -1 if key in _UIDS and isinstance(value, int) and not isinstance(value, bool) else value


def _collect_names(document: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> placeholder for what the document's fields name."""
    found: dict[str, str] = {}
    counts: dict[str, int] = {}
    for kind, name in _list_names(document):
        if len(name) >= _SHORTEST and name not in found:
            counts[kind] = counts.get(kind, 0) + 1
            found[name] = f"{kind}{counts[kind]}"
    return found


def _list_names(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            if isinstance(one, str) and key in _NAMED:
                yield from ((_NAMED[key], one),) if one else ()
            elif key in _NODE_LISTS:
                yield from (("node", name) for name in _expand_nodes(one))
            else:
                yield from _list_names(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _list_names(one)


def _expand_nodes(value: Any) -> Iterable[str]:
    texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    for text in texts:
        if isinstance(text, str) and text:
            try:
                yield from expand(text)
            except ValueError:
                yield text
