"""The options of the data source: what Spark hands over as text, checked and typed.

Spark gives option names in lower case; they are listed here as users write them. A name that is
not known is refused, since a misspelt limit would otherwise be no limit at all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.errors import SettingsError

# What Spark itself puts among the options, or users put there for it.
SPARKS_OWN: Final = frozenset(
    {"path", "paths", "checkpointlocation", "queryname", "truncate", "numrows", "outputmode"}
)
_TRUE: Final = {"true": True, "false": False}
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Options:
    """Options by name, whatever the case; every getter checks what it hands out."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._names = {name.lower(): name for name in known}
        self._given = {name.lower(): str(value) for name, value in given.items()}
        for name in self._given:
            if name not in self._names and name not in SPARKS_OWN:
                raise SettingsError(_unknown(name, self._names))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str = "") -> str:
        """The text of an option."""
        return self._given.get(name.lower(), default)

    def needed(self, name: str) -> str:
        """The text of an option that has no default."""
        found = self.text(name).strip()
        if not found:
            raise SettingsError(f"The option {name!r} is needed: .option({name!r}, …).")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        text = self.text(name, str(default)).strip().lower()
        if text not in _TRUE:
            raise SettingsError(f"The option {name!r} is true or false, not {text!r}.")
        return _TRUE[text]

    def one_of(self, name: str, values: Iterable[str], default: str) -> str:
        """One of a few words."""
        text = self.text(name, default).strip()
        if text not in (values := list(values)):
            allowed = ", ".join(repr(each) for each in values)
            raise SettingsError(f"The option {name!r} is one of {allowed}, not {text!r}.")
        return text

    def count(self, name: str, *, least: int = 1) -> int | None:
        """A whole number, None if it is not given."""
        if name not in self:
            return None
        text = self.text(name).strip()
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise SettingsError(f"The option {name!r} is a number from {least} on, not {text!r}.")
        return int(text)

    def size(self, name: str) -> int | None:
        """A number of bytes such as `64m`, None if it is not given."""
        return parse_size(self.text(name), f"The option {name!r}") if name in self else None

    def words(self, name: str) -> list[str]:
        """A list that is separated by commas; empty if it is not given."""
        return [each.strip() for each in self.text(name).split(",") if each.strip()]


def parse_size(text: str, what: str) -> int:
    """A number of bytes such as `1048576`, `64m`, `64MiB` or `1GB` (all units are binary)."""
    word = text.strip().lower()
    number = word.rstrip("bikmgt")
    unit = word[len(number) :].removesuffix("b").removesuffix("i")
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS or not int(number):
        raise SettingsError(f"{what} is a number of bytes such as 64m, not {text!r}.")
    return int(number) * _UNITS[unit]


def _unknown(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"There is no option {name!r}; did you mean {known[near[0]]!r}?"
    return f"There is no option {name!r}; there are {', '.join(sorted(known.values()))}."
