"""One flag per setting, made from the settings classes rather than restated."""

import os
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from holdfast.settings import Effective, Setting, Settings, all_settings
from holdfast.settings import load_settings as _load_settings
from holdfast.settings import resolve_settings as _resolve_settings

__all__ = ["NO_FLAGS", "ConfigFile", "SettingFlags", "load_settings", "resolve_settings"]

ConfigFile = Annotated[
    Path | None,
    Parameter(help="Settings file, TOML with `version = 1`. Also by HOLDFAST_CONFIG."),
]


def _parameter(setting: Setting, group: Group) -> Parameter:
    notes = [", ".join(setting.choices)]
    if setting.default != "" and not setting.secret:
        notes.append(f"default {setting.default}")
    return Parameter(
        name=setting.flag,
        help=f"{setting.doc} ({'; '.join(filter(None, notes))})".removesuffix(" ()"),
        metavar="SECONDS" if setting.in_seconds else "VALUE",
        group=group,
        negative="",
        # A negative number is a value; the settings then say what is wrong with it.
        allow_leading_hyphen=True,
    )


def _flag_fields() -> list[tuple[str, Any, Any]]:
    """Take every flag as text: converting and checking it is the settings' business."""
    tables = dict.fromkeys(setting.table for setting in all_settings())
    groups = {table: Group(f"{table} settings", sort_key=rank) for rank, table in enumerate(tables)}
    return [
        (setting.name, Annotated[str | None, _parameter(setting, groups[setting.table])], None)
        for setting in all_settings()
    ]


if TYPE_CHECKING:
    SettingFlags = Any  # a class made at run time is no type to mypy
    NO_FLAGS: SettingFlags
else:
    # Without a module the class would pass for a built-in one, which cyclopts does not look into.
    _Flags = make_dataclass(
        "_Flags", _flag_fields(), frozen=True, namespace={"__module__": __name__}
    )
    SettingFlags = Annotated[_Flags, Parameter(name="*")]
    # The default of a command's flags; None would not pass where pydantic checks it.
    NO_FLAGS = _Flags()


def load_settings(config: Path | None, flags: SettingFlags) -> Settings:
    """Return the settings of this process's file, environment and flags."""
    return _load_settings(file=config, env=os.environ, flags=asdict(flags))


def resolve_settings(config: Path | None, flags: SettingFlags) -> list[Effective]:
    """Return the same settings one by one, each with its source."""
    return _resolve_settings(file=config, env=os.environ, flags=asdict(flags))
