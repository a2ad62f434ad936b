"""`holdfast config`: the settings in effect, each with where it came from."""

import json
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.flags import NO_FLAGS, ConfigFile, SettingFlags, resolve_settings
from holdfast.settings import Effective

__all__ = ["as_json", "as_toml", "config"]


def config(
    *,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
    json: Annotated[bool, Parameter(negative="", help="Print JSON instead of TOML.")] = False,
) -> None:
    """Print the settings in effect, as a server started the same way would have them."""
    resolved = resolve_settings(config, flags)
    print(as_json(resolved) if json else as_toml(resolved))


def as_toml(resolved: Iterable[Effective]) -> str:
    """Return a settings file that gives these values, with each source in a comment."""
    lines = ["version = 1"]
    table = None
    for each in resolved:
        if each.setting.table != table:
            table = each.setting.table
            lines += ["", f"[{table}]"]
        # TOML writes text, numbers and lists as JSON does; `$` alone means something more.
        value = json.dumps(each.shown, ensure_ascii=False).replace("$", "$$")
        lines.append(f"{each.setting.key} = {value}  # {each.source}")
    return "\n".join(lines)


def as_json(resolved: Iterable[Effective]) -> str:
    """Return `{table: {key: {"value", "source"}}}`."""
    tables: dict[str, dict[str, object]] = {}
    for each in resolved:
        entry = {"value": each.shown, "source": each.source}
        tables.setdefault(each.setting.table, {})[each.setting.key] = entry
    return json.dumps(tables, ensure_ascii=False)
