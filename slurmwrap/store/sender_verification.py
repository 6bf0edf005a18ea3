"""Turns an unsealed observation and MUNGE's word on its maker into "believed" or the reason why not.

Asks the resolver for the addresses of NodeAddr names; nothing else leaves this module.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from slurmwrap.model.observation import Context, Observation

if TYPE_CHECKING:
    from slurmwrap.host.munge import Decoded

_OF_NODES = (Context.PROLOG, Context.EPILOG)
_OF_USERS = (Context.SUBMIT, Context.PRERUN)


class Senders:
    """Who may say what, for the length of one collect: node hooks are root on that very node, users are users."""

    def __init__(self, node_addresses: Callable[[], Mapping[str, str]], trusted: Collection[int]) -> None:
        self._ask = node_addresses
        self._trusted = trusted
        self._by_node: Mapping[str, str] | None = None
        self._resolved: dict[str, frozenset[str]] = {}

    def refusal(self, found: Observation, sealed: Decoded) -> str:
        """Why `found` is not believed; "" when it is."""
        if found.context in _OF_USERS:
            return ""  # about their own job only, which reconcile checks against Slurm's record
        if found.context not in _OF_NODES:
            return f"context {found.context.value} does not arrive here"
        if sealed.uid not in self._trusted:
            return f"uid {sealed.uid} cannot speak for a node"
        return self._find_sender_fault(found.node, sealed.encode_host)

    def _find_sender_fault(self, node: str, host: str) -> str:
        if self._by_node is None:
            self._by_node = self._ask()
        address = self._by_node.get(node)
        if address is None:
            return "it is about a node that Slurm does not know"
        if host == address or host in self._resolve_addresses(address):
            return ""
        return f"it was sealed on {host}, and node {node} is {address} (munged --origin sets the former)"

    def _resolve_addresses(self, name: str) -> frozenset[str]:
        if name not in self._resolved:
            try:
                found = socket.getaddrinfo(name, None, socket.AF_INET)
            except OSError:
                found = []
            self._resolved[name] = frozenset(str(entry[4][0]) for entry in found)
        return self._resolved[name]
