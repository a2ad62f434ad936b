"""How an option is declared: once, as a field of a dataclass.

    @dataclass(frozen=True, kw_only=True)
    class Archive:
        bucket: str = option("Bucket to copy.")
        to: str = option("Table to write to.", path=True)
        format: Literal["parquet", "delta"] = option("Format of the table.", "parquet")
        timeout_s: Seconds = option("Time for one request.", 10.0)

The settings of the server, the options of the Spark jobs and the flags of `holdfast bench` are all
declared this way. Flags, environment variables, TOML keys and the tables in `docs/settings.md` and
`docs/jobs.md` are derived from the declarations.

Durations are in seconds. Their attributes end in `_s`; their external names do not.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from holdfast.errors import SettingsError

__all__ = [
    "Count",
    "CountOrNone",
    "Option",
    "Seconds",
    "build",
    "check_flags",
    "did_you_mean",
    "option",
    "options_of",
]

# The upper bound of one year keeps `inf` and `nan` out of the timers.
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]
"""A limit where 0 means no limit."""

ENV_PREFIX: Final = "HOLDFAST_"
T = TypeVar("T")
_TYPE_NAMES: Final = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
    list: "a list",
    dict: "a table",
    Path: "a path",
}


def option(
    help: str,  # noqa: A002 (the usual name for it in command line libraries)
    default: object = MISSING,
    *,
    clean: Callable[[Any], Any] | None = None,
    secret: bool = False,
    path: bool = False,
    flag: str = "",
    hyphen: bool = False,
) -> Any:
    """Declare an option. One without a default is required.

    `clean` returns the value to use or raises ValueError. `secret` values are never shown. A `path`
    may be a URL; in a job file, relative paths are relative to the file. `flag` is the name of the
    flag where it differs from the field's: a list `tables` has the flag `--table`. With `hyphen` a
    flag's value may start with one, such as `-` for stdout.
    """
    metadata = {"help": help, "clean": clean, "secret": secret, "path": path, "flag_name": flag}
    metadata["hyphen"] = hyphen
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option with all of its external names."""

    attribute: str
    type: Any
    default: Any
    """MISSING if the option is required."""
    table: str = ""
    """The TOML table of a setting."""
    prefix: str = ""
    """What the names of flags and variables start with, so that they are unique."""
    help: str = ""
    clean: Callable[[Any], Any] | None = None
    secret: bool = False
    path: bool = False
    flag_name: str = ""
    hyphen: bool = False

    @property
    def key(self) -> str:
        """The key in a TOML file."""
        return self.attribute.removesuffix("_s")

    @property
    def name(self) -> str:
        """The key with the prefix: unique among all settings."""
        return self.prefix + self.key

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + (self.flag_name or self.name.replace("_", "-"))

    @property
    def in_seconds(self) -> bool:
        return self.attribute.endswith("_s")

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def kind(self) -> Any:
        """The type without None, parameters and bounds: `list` for `list[str] | None`."""
        bare, _ = _unwrapped(self.type)
        return get_origin(bare) or bare

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that a Literal allows."""
        return get_args(_unwrapped(self.type)[0]) if self.kind is Literal else ()

    @property
    def expects(self) -> str:
        """What a value has to be, in words."""
        if self.choices:
            *others, last = (f'"{choice}"' for choice in self.choices)
            return f"{', '.join(others)} or {last}" if others else last
        if self.path:
            return "a list of paths or URLs" if self.kind in {list, tuple} else "a path or URL"
        bounds = " and ".join(
            f"{sign} {limit:g}" if limit < 1e6 else f"{sign} {limit:.0f}"
            for meta in _unwrapped(self.type)[1]
            for sign, limit in ((">", meta.gt), ("≥", meta.ge), ("<", meta.lt), ("≤", meta.le))
            if limit is not None
        )
        return f"{_TYPE_NAMES.get(self.kind, 'text')} {bounds}".rstrip()

    @property
    def shown_default(self) -> str:
        """The default as TOML writes it; empty if there is none worth showing."""
        if self.secret or self.required or self.default in (None, "", (), [], {}):
            return ""
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    def convert(self, value: object, *, lax: bool = False) -> Any:
        """Return `value` as this option's type, or raise ValueError. `lax` also parses text."""
        if lax and isinstance(value, str) and self.kind is tuple:
            value = [part.strip() for part in value.split(",") if part.strip()]
        declared = str if self.type is Any else self.type
        try:
            typed = msgspec.convert(value, declared, strict=not lax, dec_hook=_path_from_text)
        except (msgspec.ValidationError, ValueError, TypeError):
            got = "" if self.secret else f", got {value!r}"
            raise ValueError(f"expected {self.expects}{got}") from None
        try:
            return self.clean(typed) if self.clean else typed
        except ValueError as error:
            raise ValueError(f"{error}" if self.secret else f"{error}, got {value!r}") from None


def options_of(declared: type[Any], table: str = "", prefix: str = "") -> list[Option]:
    """Return the options that a dataclass declares, in order."""
    types = get_type_hints(declared, include_extras=True)
    return [
        Option(
            attribute=each.name,
            type=types[each.name],
            default=each.default_factory() if callable(each.default_factory) else each.default,
            table=table,
            prefix=prefix,
            **each.metadata,
        )
        for each in fields(declared)
    ]


def build(declared: type[T], values: Mapping[str, object]) -> T:
    """Make an instance from values by key, as a file or a command line gives them.

    A value that already is an instance of the declared class of its field is taken as it is.
    """
    known = {each.key: each for each in options_of(declared)}
    for name in values.keys() - known:
        raise SettingsError(f"unknown option {name!r}{did_you_mean(name, known)}")
    for each in known.values():
        if each.required and each.key not in values:
            raise SettingsError(f"{each.key!r} is required: {each.help}")
    return declared(
        **{known[key].attribute: _converted(known[key], value) for key, value in values.items()}
    )


def check_flags(flags: object) -> None:
    """Check the values of a dataclass of options that came from flags."""
    for each in options_of(type(flags)):
        value = getattr(flags, each.attribute)
        if value is not None and not isinstance(value, Path):
            try:
                each.convert(value)
            except ValueError as error:
                raise SettingsError(f"{each.flag}: {error}") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; expected one of {', '.join(known)}"


def _converted(each: Option, value: object) -> Any:
    if is_dataclass(each.type) and isinstance(value, cast("type", each.type)):
        return value
    try:
        return each.convert(value)
    except ValueError as error:
        raise SettingsError(f"{each.key!r}: {error}") from None


def _unwrapped(declared: Any) -> tuple[Any, list[Meta]]:
    """Return a type without None and annotations, and its bounds."""
    if get_origin(declared) is Annotated:
        inner, *notes = get_args(declared)
        bare, bounds = _unwrapped(inner)
        return bare, [*bounds, *(note for note in notes if isinstance(note, Meta))]
    if get_origin(declared) in {Union, UnionType}:
        return _unwrapped(next(each for each in get_args(declared) if each is not NoneType))
    return declared, []


def _path_from_text(kind: type, value: object) -> object:
    """Build the one type that msgspec does not know: a path, with `~` for the home directory."""
    if kind is Path and isinstance(value, str) and value:
        return Path(value).expanduser()
    raise ValueError
