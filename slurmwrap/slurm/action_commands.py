"""The command of an intended change, and which changes are never made. Pure. Apart from commands.py: gsub makes few."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slurmwrap.errors import SlurmError
from slurmwrap.model.action import DRAIN_PREFIX, GATE_PREFIX, SlurmAction, Verb

if TYPE_CHECKING:
    from slurmwrap.model.node import Node

JOB_ADDRESS = re.compile(r"\d+(_\d+|_\[[\d,:-]+\])?(\+\d+)?", re.ASCII)
_NODE_NAME = re.compile(r"(?!all$)[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# What Switches=0 means: 24.11.5 and 26.05.5 take that and clear the field, but a job that waits for a switch waits on.
_NO_SWITCH_WAIT = "1@0"  # runs within one pass of the scheduler, in 22.05.8 too


def argv_of(action: SlurmAction) -> list[str]:
    """The command of one action. SlurmError for a target, key or value that could mean more than it says."""
    node = action.verb in (Verb.DRAIN, Verb.RESUME)
    if not (_NODE_NAME if node else JOB_ADDRESS).fullmatch(action.target):
        raise SlurmError(f"'{action.target}' is not a {'node name' if node else 'job id or array task address'}")
    if action.verb is Verb.CANCEL:
        return ["scancel", action.target]
    if action.verb is Verb.UPDATE_JOB:
        if not _KEY.fullmatch(action.key):
            raise SlurmError(f"'{action.key}' is not a key of scontrol update")
        value = _NO_SWITCH_WAIT if (action.key, action.value) == ("Switches", "0") else action.value
        return ["scontrol", "update", f"JobId={action.target}", f"{action.key}={_CONTROL.sub(' ', value)}"]
    if action.verb is Verb.DRAIN:
        if not action.value.startswith(DRAIN_PREFIX):
            raise SlurmError(f"a drain's Reason must start with '{DRAIN_PREFIX}', not '{action.value}'")
        reason = _CONTROL.sub(" ", action.value)
        return ["scontrol", "update", f"NodeName={action.target}", "State=DRAIN", f"Reason={reason}"]
    if action.verb is Verb.RESUME:
        return ["scontrol", "update", f"NodeName={action.target}", "State=RESUME"]
    return ["scontrol", action.verb.value, action.target]


def keep_hands_off(action: SlurmAction, node: Node) -> None:
    """A drain has an owner: what a person or another tool set stays as it is. SlurmError says so."""
    ours, out = node.reason.startswith(DRAIN_PREFIX), bool(node.flags & {"DRAIN", "FAIL"})
    if action.value.startswith(GATE_PREFIX) and node.prolog_failed:
        return
    if action.verb is Verb.DRAIN and node.reason and not ours and (out or node.state == "DOWN"):
        raise SlurmError(f"node {node.name} is out already: {node.reason}", hint="We touch only our own drains.")
    if action.verb is Verb.RESUME and not (ours and out):
        raise SlurmError(
            f"node {node.name} is not drained by us: {node.state}, reason '{node.reason}'",
            hint="We touch only our own drains.",
        )
