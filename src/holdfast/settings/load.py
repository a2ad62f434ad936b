"""Find each setting's value: the flag, else the environment, else the TOML file, else the default.

Errors name the source of the offending value. The readers of TOML files at the end are shared with
the job files of `holdfast pipeline run`.
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from holdfast.errors import SettingsError
from holdfast.settings.groups import Settings, all_settings
from holdfast.settings.options import ENV_PREFIX, Option, did_you_mean

# Variables that share the prefix but are not settings: the server and token of client commands, the
# settings file itself, and the failpoints of crash tests.
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
_VARIABLE = re.compile(r"\$\$|\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}")
# In job files a `$` alone is a character like any other: regular expressions end in it.
_VARIABLE_IN_BRACES = re.compile(r"\$\$(?=\{\w+\})|\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting's value, and where it came from: `default`, a file, a variable or a flag."""

    setting: Option
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
    """Return the settings in effect. Flags are by `Option.name`; None is a flag not given.

    Without `file`, the variable `HOLDFAST_CONFIG` may name one.
    """
    return _assemble(resolve_settings(file=file, env=env, flags=flags))


def resolve_settings(
    *, file: Path | None, env: Mapping[str, str], flags: Mapping[str, object]
) -> list[Effective]:
    """Return every setting with its value and source, checked alone and with its group."""
    if file is None and env.get("HOLDFAST_CONFIG"):
        file = Path(env["HOLDFAST_CONFIG"])
    tables = _read_settings_file(file) if file else {}
    variables = [name for name in env if name.startswith(ENV_PREFIX)]
    known_variables = {each.env for each in all_settings()} | ENV_RESERVED
    refuse_unknown("", "environment variable", variables, known_variables)
    refuse_unknown("", "flag", flags, [each.name for each in all_settings()])
    resolved = [_resolve(each, tables, file, env, flags) for each in all_settings()]
    _assemble(resolved)
    return resolved


def _resolve(
    setting: Option,
    tables: Mapping[str, Mapping[str, Any]],
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
) -> Effective:
    if flags.get(setting.name) is not None:
        source = where = setting.flag
        value, lax = flags[setting.name], True
    elif setting.env in env:
        source = where = setting.env
        value, lax = env[setting.env], True
    elif setting.key in tables.get(setting.table, {}):
        source, where = str(file), f"{file}: {setting.table}.{setting.key}"
        raw = tables[setting.table][setting.key]
        try:
            value = expand_variables(raw, env)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error.message}") from None
        # A variable's value is text, whatever the setting's type.
        lax = value != raw
    else:
        return Effective(setting, setting.default, "default")
    try:
        return Effective(setting, setting.convert(value, lax=lax), source)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None


def _assemble(resolved: list[Effective]) -> Settings:
    """Build the settings, checking each group as a whole."""
    groups = {}
    for table, group in get_type_hints(Settings).items():
        members = [each for each in resolved if each.setting.table == table]
        groups[table] = group(**{each.setting.attribute: each.value for each in members})
        if hasattr(group, "check"):
            try:
                groups[table].check()
            except ValueError as error:
                sources = {each.source for each in members} - {"default"}
                raise SettingsError(f"{', '.join(sorted(sources))}: {error}") from None
    return Settings(**groups)


def _read_settings_file(file: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a settings file whose version and names are known."""
    document = read_toml(file)
    version = document.pop("version", None)
    if version != FILE_VERSION or isinstance(version, bool):
        found = "is missing" if version is None else f"is {version!r}"
        raise SettingsError(
            f"{file}: version {found}; the file must start with `version = {FILE_VERSION}`"
        )
    tables: dict[str, set[str]] = {}
    for each in all_settings():
        tables.setdefault(each.table, set()).add(each.key)
    home = {key: table for table, keys in tables.items() for key in keys}
    for table, values in document.items():
        if not isinstance(values, dict):
            hint = f"; it belongs in [{home[table]}]" if table in home else ""
            raise SettingsError(f"{file}: {table} is not in a table{hint}")
        refuse_unknown(f"{file}: ", "table", [table], tables)
        for key in (values.keys() - tables[table]) & home.keys():
            raise SettingsError(f"{file}: [{table}]: {key} belongs in [{home[key]}]")
        refuse_unknown(f"{file}: [{table}]: ", "key", values, tables[table])
    return document


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise SettingsError(f"{file} is not valid TOML: {error}") from None


def refuse_unknown(where: str, what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise for the first name that is not known, with a suggestion."""
    for name in names:
        if name not in known:
            raise SettingsError(f"{where}unknown {what} {name}{did_you_mean(name, known)}")


def expand_variables(value: Any, env: Mapping[str, str], *, braces_only: bool = False) -> Any:
    """Replace `$VAR` and `${VAR}` in all text of a TOML value; `$$` stands for a dollar sign.

    With `braces_only`, only `${VAR}` is replaced, and `$${VAR}` stands for `${VAR}`.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[match.lastindex or 0]
        if name == "$$":
            return "$"
        if name not in env:
            raise SettingsError(f"environment variable {name} is not set")
        return env[name]

    def expand(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: expand(each) for key, each in value.items()}
        if isinstance(value, list):
            return [expand(each) for each in value]
        return pattern.sub(replace, value) if isinstance(value, str) else value

    pattern = _VARIABLE_IN_BRACES if braces_only else _VARIABLE
    return expand(value)
