"""One setting as seen from outside: its names in each source, and how text becomes its value."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from holdfast.settings.groups import Settings

ENV_PREFIX = "HOLDFAST_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, with each of its external names."""

    table: str
    key: str
    """Its key in the TOML table."""
    name: str
    """The key with its group's prefix: unique among all settings."""
    attribute: str
    type: Any
    default: Any
    doc: str
    clean: Callable[[Any], Any] | None
    secret: bool

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def in_seconds(self) -> bool:
        """Whether the value is a duration."""
        return self.attribute.endswith("_s")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, where they are few."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def expects(self) -> str:
        """What a value has to be, in words."""
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        base, *metas = get_args(self.type) if get_origin(self.type) is Annotated else [self.type]
        word = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
        word[tuple] = "a list"
        bounds = [
            f"{sign} {limit:g}" if limit < 1e6 else f"{sign} {limit:.0f}"
            for meta in metas
            for sign, limit in ((">", meta.gt), ("≥", meta.ge), ("<", meta.lt), ("≤", meta.le))
            if limit is not None
        ]
        kind = word.get(get_origin(base) or base, "a path")
        return f"{kind} {' and '.join(bounds)}".rstrip()

    def convert(self, value: object, *, lax: bool) -> Any:
        """Return `value` as this setting's type, or raise ValueError. `lax` reads text."""
        if lax and isinstance(value, str) and get_origin(self.type) is tuple:
            value = [part.strip() for part in value.split(",") if part.strip()]
        try:
            typed = msgspec.convert(value, self.type, strict=not lax, dec_hook=_path_from_text)
        except (msgspec.ValidationError, ValueError, TypeError):
            raise ValueError(f"expected {self.expects}") from None
        return self.clean(typed) if self.clean else typed


def _path_from_text(kind: type, value: object) -> object:
    """Build the one type that msgspec does not know: a path, with `~` for the home directory."""
    if kind is Path and isinstance(value, str) and value:
        return Path(value).expanduser()
    raise ValueError


@cache
def all_settings() -> tuple[Setting, ...]:
    """Every setting, in the order of the classes above."""
    found = []
    for table, group in get_type_hints(Settings).items():
        types = get_type_hints(group, include_extras=True)
        for item in fields(group):
            key = item.name.removesuffix("_s")
            found.append(
                Setting(
                    table=table,
                    key=key,
                    name=group.prefix + key,
                    attribute=item.name,
                    type=types[item.name],
                    default=item.default,
                    **item.metadata,
                )
            )
    return tuple(found)
