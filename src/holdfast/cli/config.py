"""`holdfast config`, and flags made from declared options.

Settings and job options are declared once; their flags are generated from the declarations.
"""

import json as json_module
import os
from collections.abc import Iterable
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from holdfast.settings import Effective, Option, Settings, all_settings
from holdfast.settings import load_settings as _load_settings
from holdfast.settings import resolve_settings as _resolve_settings
from holdfast.settings.options import options_of

AsJson = Annotated[bool, Parameter(negative="", help="Print one JSON document.")]
ConfigFile = Annotated[
    Path | None,
    Parameter(help="Settings file: TOML with `version = 1`. Or set HOLDFAST_CONFIG."),
]
T = TypeVar("T")


def flag_of(option: Option, *, type: Any = None, **parameter: Any) -> Any:  # noqa: A002 (as Option.type)
    """The annotated type of a command's parameter for an option.

    `type` is what cyclopts converts the flag to, if not the option's own type; `parameter` is
    passed on to cyclopts.
    """
    # For other types cyclopts lists the choices.
    notes = [", ".join(option.choices)] if type == str | None else []
    if option.shown_default not in {"", "false"}:
        notes.append(f"default {option.shown_default}")
    # An option that is on by default needs a flag to turn it off.
    off = f"--no-{option.flag.removeprefix('--')}" if option.default is True else ""
    said = Parameter(
        name=option.flag,
        help=f"{option.help} ({'; '.join(filter(None, notes))})".removesuffix(" ()"),
        negative=off if type is None else "",
        **{"allow_leading_hyphen": option.hyphen} | parameter,
    )
    return Annotated[option.type if type is None else type, said]


def with_flags(declared: type[T]) -> type[T]:
    """Annotate the fields of a dataclass of options so that a command can take it as flags."""
    for option in options_of(declared):
        declared.__annotations__[option.attribute] = flag_of(option)
    return declared


def _flag_fields() -> list[tuple[str, Any, Any]]:
    """Take every flag as text: the settings convert and check it."""
    tables = dict.fromkeys(setting.table for setting in all_settings())
    groups = {table: Group(f"{table} settings", sort_key=rank) for rank, table in enumerate(tables)}
    return [
        (
            setting.name,
            flag_of(
                setting,
                type=str | None,
                metavar="SECONDS" if setting.in_seconds else "VALUE",
                group=groups[setting.table],
                # A negative number is a value; the settings then say what is wrong with it.
                allow_leading_hyphen=True,
            ),
            None,
        )
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
    """The settings from this process's file, environment and flags."""
    return _load_settings(file=config, env=os.environ, flags=asdict(flags))


def config(
    *,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
    json: Annotated[bool, Parameter(negative="", help="Print JSON instead of TOML.")] = False,
) -> None:
    """Print the settings that a server started with the same flags would use."""
    resolved = _resolve_settings(file=config, env=os.environ, flags=asdict(flags))
    print(as_json(resolved) if json else as_toml(resolved))


def as_toml(resolved: Iterable[Effective]) -> str:
    """A settings file with these values; comments name the source of each."""
    lines = ["version = 1"]
    table = None
    for each in resolved:
        if each.setting.table != table:
            table = each.setting.table
            lines += ["", f"[{table}]"]
        # TOML text, numbers and lists are written as in JSON; our files also need `$$` for `$`.
        value = json_module.dumps(each.shown, ensure_ascii=False).replace("$", "$$")
        lines.append(f"{each.setting.key} = {value}  # {each.source}")
    return "\n".join(lines)


def as_json(resolved: Iterable[Effective]) -> str:
    """`{table: {key: {"value", "source"}}}`."""
    tables: dict[str, dict[str, object]] = {}
    for each in resolved:
        entry = {"value": each.shown, "source": each.source}
        tables.setdefault(each.setting.table, {})[each.setting.key] = entry
    return json_module.dumps(tables, ensure_ascii=False)
