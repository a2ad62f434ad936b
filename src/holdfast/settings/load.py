"""Find each setting's value: the flag, else the environment, else the TOML file, else the default.

Whatever is wrong with a value, the error names the place it came from.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from holdfast.errors import SettingsError
from holdfast.settings.groups import Settings
from holdfast.settings.setting import ENV_PREFIX, Setting, all_settings

# Variables that share the prefix without being settings: which server a client command talks to and
# as whom, the settings file itself, and the failpoints of crash tests.
ENV_RESERVED = frozenset(
    {
        "HOLDFAST_CONFIG",
        "HOLDFAST_CONTEXT",
        "HOLDFAST_CONTEXTS",
        "HOLDFAST_FAILPOINTS",
        "HOLDFAST_TOKEN",
        "HOLDFAST_URL",
    }
)
FILE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting's value, and where it came from: `default`, a file, a variable or a flag."""

    setting: Setting
    value: Any
    source: str

    @property
    def shown(self) -> str | int | float | bool | list[Any]:
        """The value as TOML and JSON write it; secrets are masked."""
        if self.setting.secret and self.value:
            return "********"
        if isinstance(self.value, tuple):
            return list(self.value)
        return str(self.value) if isinstance(self.value, Path) else self.value


def load_settings(
    *, file: Path | None, env: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """Return the settings in effect. Flags are by `Setting.name`; None is a flag not given.

    Without `file`, the variable `HOLDFAST_CONFIG` may name one.
    """
    return _assemble(resolve_settings(file=file, env=env, flags=flags))


def resolve_settings(
    *, file: Path | None, env: Mapping[str, str], flags: Mapping[str, object]
) -> list[Effective]:
    """Return every setting with its value and source, checked alone and with its group."""
    if file is None and env.get("HOLDFAST_CONFIG"):
        file = Path(env["HOLDFAST_CONFIG"])
    tables = _read_file(file) if file else {}
    _refuse_unknown_variables(env)
    known = {item.name for item in all_settings()}
    for name in flags.keys() - known:
        raise SettingsError(f"unknown flag {name!r}{_did_you_mean(name, known)}")
    resolved = [_resolve(item, tables, file, env, flags) for item in all_settings()]
    _assemble(resolved)
    return resolved


def _resolve(
    item: Setting,
    tables: Mapping[str, Mapping[str, Any]],
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
) -> Effective:
    if flags.get(item.name) is not None:
        return _effective(item, flags[item.name], item.flag, item.flag, lax=True)
    if item.env in env:
        return _effective(item, env[item.env], item.env, item.env, lax=True)
    if item.key in tables.get(item.table, {}):
        where = f"{file}: {item.table}.{item.key}"
        raw = tables[item.table][item.key]
        value = _expand(raw, where, env)
        # What came out of a variable is text, whatever type the setting has.
        return _effective(item, value, str(file), where, lax=value != raw)
    return Effective(item, item.default, "default")


def _effective(item: Setting, value: object, source: str, where: str, *, lax: bool) -> Effective:
    try:
        return Effective(item, item.convert(value, lax=lax), source)
    except ValueError as error:
        shown = "" if item.secret else f", got {value!r}"
        raise SettingsError(f"{where}: {error}{shown}") from None


def _assemble(resolved: list[Effective]) -> Settings:
    """Build the settings, checking each group as a whole."""
    groups = {}
    for table, group in get_type_hints(Settings).items():
        mine = [each for each in resolved if each.setting.table == table]
        groups[table] = group(**{each.setting.attribute: each.value for each in mine})
        if hasattr(group, "check"):
            try:
                groups[table].check()
            except ValueError as error:
                sources = {each.source for each in mine} - {"default"}
                raise SettingsError(f"{', '.join(sorted(sources))}: {error}") from None
    return Settings(**groups)


def _read_file(file: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file whose version and names are known."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise SettingsError(f"{file} is not valid TOML: {error}") from None
    version = document.pop("version", None)
    if version != FILE_VERSION or isinstance(version, bool):
        found = "is missing" if version is None else f"is {version!r}"
        raise SettingsError(
            f"{file}: version {found}; the file must start with `version = {FILE_VERSION}`"
        )
    for table, values in document.items():
        _refuse_unknown_keys(file, table, values)
    return document


def _refuse_unknown_keys(file: Path, table: str, values: object) -> None:
    keys: dict[str, set[str]] = {}
    for item in all_settings():
        keys.setdefault(item.table, set()).add(item.key)
    homes = {key: name for name, names in keys.items() for key in names}
    if not isinstance(values, dict):
        hint = f"; it belongs in [{homes[table]}]" if table in homes else ""
        raise SettingsError(f"{file}: {table} is not in a table{hint}")
    if table not in keys:
        raise SettingsError(f"{file}: unknown table [{table}]{_did_you_mean(table, keys)}")
    for key in values.keys() - keys[table]:
        hint = _did_you_mean(key, keys[table])
        if key in homes:
            hint = f"; it belongs in [{homes[key]}]"
        raise SettingsError(f"{file}: unknown key {table}.{key}{hint}")


def _refuse_unknown_variables(env: Mapping[str, str]) -> None:
    known = {item.env for item in all_settings()} | ENV_RESERVED
    for name in env:
        if name.startswith(ENV_PREFIX) and name not in known:
            raise SettingsError(f"unknown environment variable {name}{_did_you_mean(name, known)}")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _expand(value: Any, where: str, env: Mapping[str, str]) -> Any:
    """Replace `$VAR` and `${VAR}` in text; `$$` stands for a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1] or match[2]
        if name not in env:
            raise SettingsError(f"{where}: environment variable {name} is not set")
        return env[name]

    if isinstance(value, list):
        return [_expand(each, where, env) for each in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$\$|\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}", replace, value)
