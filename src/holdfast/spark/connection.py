"""The options of the data source, and the client that drivers and executors make from them.

Everything but `SparkClient` can be pickled: executors connect by themselves.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from holdfast.client import Basic, Bearer, Client, Retry, SyncClient, Timeouts
from holdfast.client.auth import Auth, shared_tls
from holdfast.client.calls import may_repeat, pause
from holdfast.client.client import DEFAULT_URL, STREAMS_PATH
from holdfast.client.loop_thread import BlockingIterator
from holdfast.client.urls import parse_base
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError

T = TypeVar("T")
P = TypeVar("P")


class Appendable(Protocol):
    """A container that takes items one by one."""

    def append(self, item: Any, /) -> None: ...


C = TypeVar("C", bound=Appendable)

# Options that Spark adds itself, or that users set for Spark.
_SPARK_OPTIONS: Final = frozenset(
    {"path", "paths", "checkpointlocation", "queryname", "truncate", "numrows", "outputmode"}
)
_BOOLEANS: Final = {"true": True, "false": False}
_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)")
_DURATIONS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# Option names, and the attributes of SparkConnection that hold their values.
_CONNECTION_ATTRIBUTES: Final = {
    "url": "url",
    "token": "token",
    "username": "username",
    "password": "password",
    "caFile": "ca_file",
    "streamsPath": "streams_path",
    "retries": "retries",
    "timeout": "timeout_s",
}
CONNECTION_OPTIONS: Final = tuple(_CONNECTION_ATTRIBUTES)


class Options:
    """Options by name, ignoring case, since Spark hands them over in lower case.

    An unknown name is an error: a misspelt limit would otherwise be no limit at all.
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._given = {name.lower(): str(value) for name, value in given.items()}
        for name in self._given:
            if name not in names and name not in _SPARK_OPTIONS:
                raise SettingsError(_unknown_option(name, names))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default)

    def required(self, name: str) -> str:
        value = self.text(name).strip()
        if not value:
            raise SettingsError(f"The option {name!r} is required: .option({name!r}, …).")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name, str(default)).strip().lower()
        if text not in _BOOLEANS:
            raise SettingsError(f"The option {name!r} is true or false, not {text!r}.")
        return _BOOLEANS[text]

    def one_of(self, name: str, values: Iterable[str], default: str) -> str:
        text = self.text(name, default).strip()
        if text not in (values := list(values)):
            allowed = ", ".join(repr(each) for each in values)
            raise SettingsError(f"The option {name!r} is one of {allowed}, not {text!r}.")
        return text

    def count(self, name: str, *, least: int = 1) -> int | None:
        """A whole number, or None if the option is not given."""
        if name not in self:
            return None
        text = self.text(name).strip()
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise SettingsError(
                f"The option {name!r} is a number of at least {least}, not {text!r}."
            )
        return int(text)

    def size(self, name: str) -> int | None:
        """A number of bytes such as `64m`, or None if the option is not given."""
        return parse_size(self.text(name), f"The option {name!r}") if name in self else None

    def duration_ms(self, name: str) -> int | None:
        """A duration such as `10m` in milliseconds, or None if the option is not given."""
        if name not in self:
            return None
        found = _DURATION.fullmatch(self.text(name).strip().lower())
        if found is None or not int(found[1]):
            raise SettingsError(
                f"The option {name!r} is a duration such as 30s, 10m, 2h or 1d, not "
                f"{self.text(name)!r}."
            )
        return int(found[1]) * _DURATIONS_MS[found[2]]

    def words(self, name: str) -> list[str]:
        """A comma-separated list; empty if the option is not given."""
        return [each.strip() for each in self.text(name).split(",") if each.strip()]


def parse_size(text: str, what: str) -> int:
    """Parse a number of bytes such as `1048576`, `64m`, `64MiB` or `1GB` (all units are binary)."""
    word = text.strip().lower()
    number = word.rstrip("bikmgt")
    unit = word[len(number) :].removesuffix("b").removesuffix("i")
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS or not int(number):
        raise SettingsError(f"{what} is a number of bytes such as 64m, not {text!r}.")
    return int(number) * _UNITS[unit]


def _unknown_option(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"There is no option {name!r}; did you mean {known[near[0]]!r}?"
    return f"There is no option {name!r}; there are {', '.join(sorted(known.values()))}."


@dataclass(frozen=True)
class SparkConnection:
    """The server's address, and the credentials for it."""

    url: str = DEFAULT_URL
    token: str = field(default="", repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    streams_path: str = STREAMS_PATH
    retries: int = 8
    # How long a request may make no progress; servers are busy while jobs read them.
    timeout_s: int = 120

    def __post_init__(self) -> None:
        # The URL appears in messages, so credentials in it are taken out.
        if "@" in self.url:
            address = parse_base(self.url)
            object.__setattr__(self, "url", address.base)
            if not (self.token or self.username):
                object.__setattr__(self, "username", address.username)
                object.__setattr__(self, "password", address.password)

    @classmethod
    def from_options(cls, options: Options) -> SparkConnection:
        values: dict[str, Any] = {
            attribute: options.text(name)
            for name, attribute in _CONNECTION_ATTRIBUTES.items()
            if name in options
        }
        if values.get("token") and values.get("username"):
            raise SettingsError("Give either 'token' or 'username' and 'password', not both.")
        if "url" in values:
            values["url"] = values["url"].strip()
        if "retries" in values:
            values["retries"] = options.count("retries", least=0)
        if "timeout_s" in values:
            values["timeout_s"] = options.count("timeout")
        return cls(**values)

    def options(self) -> dict[str, str]:
        """The same connection as options of the data source."""
        values = {
            name: str(getattr(self, attribute))
            for name, attribute in _CONNECTION_ATTRIBUTES.items()
        }
        return {name: value for name, value in values.items() if value}

    def client(self) -> Client:
        return Client(self.url, **self.client_arguments())

    def client_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `Client` and `SyncClient`."""
        auth: Auth | None = Basic(self.username, self.password) if self.username else None
        return {
            "auth": Bearer(self.token) if self.token else auth,
            "retry": self.retry,
            "timeouts": Timeouts(
                request_s=self.timeout_s,
                silence_s=self.timeout_s,
                plan_s=max(self.timeout_s, Timeouts().plan_s),
            ),
            "tls": shared_tls(self.ca_file),
            "streams_path": self.streams_path,
        }

    @property
    def retry(self) -> Retry:
        return Retry(attempts=self.retries + 1)


class SparkClient(SyncClient):
    """A blocking client that can also run async functions of its own.

    Its event loop is in a thread, so it works in notebooks as well. Use it as a context manager.
    """

    def __init__(self, connection: SparkConnection) -> None:
        super().__init__(connection.url, **connection.client_arguments())
        self._retry = connection.retry

    @property
    def async_client(self) -> Client:
        """The client inside; its coroutines run in `call`."""
        return self._inner

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        return self._thread.call(work(self._inner))

    def iterate(self, work: Callable[[Client], AsyncIterator[T]]) -> BlockingIterator[T]:
        return BlockingIterator(self._thread, work(self._inner))

    def iterate_ahead(
        self, work: Callable[[Client], AsyncIterator[T]], count: int = 4096
    ) -> Iterator[T]:
        """Like `iterate`, with so many items in each switch between threads."""

        async def lists(client: Client) -> AsyncIterator[list[T]]:
            held: list[T] = []
            async for each in work(client):
                held.append(each)
                if len(held) >= count:
                    yield held
                    held = []
            yield held

        for items in self.iterate(lists):
            yield from items

    def resume(
        self, work: Callable[[Client, P], AsyncIterator[tuple[P, T]]], start: P
    ) -> BlockingIterator[tuple[P, T]]:
        """Items, each with where to go on after it if the server goes away in between."""

        async def resumed(client: Client) -> AsyncIterator[tuple[P, T]]:
            at, clock, failures = start, SystemClock(), 0
            while True:
                try:
                    async for place, item in work(client, at):
                        at, failures = place, 0
                        yield place, item
                except HoldfastError as error:
                    failures += 1
                    await self._pause(clock, failures, error)
                else:
                    return

        return self.iterate(resumed)

    async def _pause(self, clock: SystemClock, failures: int, error: HoldfastError) -> None:
        """Wait before the next attempt; raises the error if there is none."""
        delay_s = self._retry.delay_s(failures, error, clock)
        if delay_s is None or not may_repeat(error, repeatable=True):
            raise error
        await pause(clock, delay_s)

    def collect(self, work: Callable[[Client], AsyncIterator[T]]) -> list[T]:
        """All items of an async iterator; starts again if the server goes away in between."""
        return self.collect_into(list, work)

    def collect_into(
        self, container: Callable[[], C], work: Callable[[Client], AsyncIterator[Any]]
    ) -> C:
        """The same in a container of one's own; each attempt fills a new one."""

        async def attempt(client: Client) -> C:
            clock, failures = SystemClock(), 0
            while True:
                found = container()
                try:
                    async for each in work(client):
                        found.append(each)
                except HoldfastError as error:
                    failures += 1
                    await self._pause(clock, failures, error)
                else:
                    return found

        return self.run(attempt)
