"""What every key of the configuration means: the one place. Pure.

docs/configuration.md, `slurmwrap config template` and `slurmwrap config show` are made of it; defaults come from
config_sections.py's records, what is allowed from its bounds. A test holds both to the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from slurmwrap.config import NOUNS, make_variable_name
from slurmwrap.config.config_sections import BOUNDS, CHOICES, Config
from slurmwrap.config.key_docs import MEANINGS, SECTIONS
from slurmwrap.fast_dataclasses import dataclass


class KeyReader(Enum):
    """Whose programs read a key, and so what it does in a user's own file."""

    GSUB = "gsub"
    RECONCILE = "reconcile"
    SITE = "site"

    @property
    def in_a_users_file(self) -> str:
        """What the key does there, in two words: docs/configuration.md has the legend."""
        return _IN_A_USERS_FILE[self]

    @property
    def sentence(self) -> str:
        """The same for who has no legend."""
        return _SENTENCES[self]


_IN_A_USERS_FILE = {KeyReader.GSUB: "their jobs", KeyReader.RECONCILE: "their reconcile", KeyReader.SITE: "nothing"}
_SENTENCES = {
    KeyReader.GSUB: "In a user's own file it counts for their own submissions.",
    KeyReader.RECONCILE: "In a user's own file it counts where they run `slurmwrap reconcile` themselves.",
    KeyReader.SITE: "In a user's own file it does nothing: only the site's own processes act by it.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. `default` is a text, a number, a truth value or a tuple of texts."""

    name: str  # "prerun.grace_s"; "slurm_timeout_s" is in no section
    default: Any
    unit: str  # "seconds"; "" where there is none
    text: str  # one sentence, with its full stop
    reader: KeyReader

    @property
    def section(self) -> str:
        """ "" for a key that stands above all sections."""
        return self.name.rpartition(".")[0]

    @property
    def word(self) -> str:
        """The name within its section."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return make_variable_name(self.name)

    @property
    def allowed(self) -> str:
        """What it may be: `one of auto, off`, `a whole number from 1 to 60`, `text`."""
        if self.name in CHOICES:
            return f"one of {', '.join(CHOICES[self.name])}"
        noun = NOUNS.get(type(self.default), "text")
        if self.name not in BOUNDS:
            return noun
        least, most = BOUNDS[self.name]
        return f"{noun} from {_format_number(least)} to {_format_number(most)}"


def list_keys() -> tuple[Key, ...]:
    """All keys, in the order in which the page and the template show them."""
    return tuple(_make_key(section, name) for section, names in MEANINGS.items() for name in names)


def describe_section(section: str) -> str:
    """One or two sentences about a section; "" for none."""
    return SECTIONS.get(section, "")


def get_value(config: Config, name: str) -> Any:
    """What `config` has for a key."""
    section, _, word = name.rpartition(".")
    if section == "rules":
        return config.mode_of(word)
    return getattr(getattr(config, section) if section else config, word)


def format_toml(value: Any) -> str:
    """A value as it is written in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(format_toml(one) for one in value)}]"
    return _quote_toml(value) if isinstance(value, str) else _format_number(value)


def _make_key(section: str, name: str) -> Key:
    reader, unit, text = _parse_meaning(MEANINGS[section][name])
    full = f"{section}.{name}" if section else name
    return Key(name=full, default=get_value(Config(), full), unit=unit, text=text, reader=reader)


def _parse_meaning(words: tuple[str, str, str]) -> tuple[KeyReader, str, str]:
    return KeyReader(words[0]), words[1], " ".join(words[2].split())


def _quote_toml(text: str) -> str:
    """A basic string of TOML."""
    escaped = "".join(_ESCAPED.get(c) or (c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)
    return f'"{escaped}"'


_ESCAPED: Mapping[str, str] = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\n": "\\n"}


def _format_number(value: float) -> str:
    """Plain digits, never 1e+09: people read them, and TOML's whole numbers know no exponent."""
    return str(int(value)) if isinstance(value, int) or value >= 1e6 else repr(value)
