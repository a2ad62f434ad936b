"""How drivers and executors reach the server: options in, a client out.

Everything here can be pickled, since executors connect by themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from holdfast.client import Basic, Bearer, Client, Retry
from holdfast.client.auth import Auth
from holdfast.client.client import DEFAULT_URL, STREAMS_PATH
from holdfast.client.loop_thread import Items, LoopThread
from holdfast.client.retry import may_repeat, pause
from holdfast.client.tls import shared
from holdfast.client.urls import parse_base
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.spark.options import Options

CONNECTION_OPTIONS: Final = (
    "url",
    "token",
    "username",
    "password",
    "caFile",
    "streamsPath",
    "retries",
)
_RETRIES: Final = 8
T = TypeVar("T")


@dataclass(frozen=True)
class Connection:
    """Where the server is, and who asks."""

    url: str = DEFAULT_URL
    token: str = field(default="", repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    streams_path: str = STREAMS_PATH
    retries: int = _RETRIES

    def __post_init__(self) -> None:
        """Who asks may be in the URL: that is shown, and a password is not."""
        if "@" in self.url:
            address = parse_base(self.url)
            object.__setattr__(self, "url", address.base)
            if not (self.token or self.username):
                object.__setattr__(self, "username", address.username)
                object.__setattr__(self, "password", address.password)

    @classmethod
    def of(cls, options: Options) -> Connection:
        """The connection that the options of a source or sink describe."""
        found = cls(
            url=options.text("url", DEFAULT_URL).strip(),
            token=options.text("token"),
            username=options.text("username"),
            password=options.text("password"),
            ca_file=options.text("caFile"),
            streams_path=options.text("streamsPath", STREAMS_PATH),
            retries=_or(options.count("retries", least=0), _RETRIES),
        )
        if found.token and found.username:
            raise SettingsError("Give either 'token' or 'username' and 'password', not both.")
        return found

    def client(self) -> Client:
        """A client; use it as an async context manager."""
        return Client(
            self.url,
            auth=self._auth(),
            retry=self.retry(),
            tls=shared(self.ca_file),
            streams_path=self.streams_path,
        )

    def retry(self) -> Retry:
        """How often a request is repeated, and when."""
        return Retry(attempts=self.retries + 1)

    def options(self) -> dict[str, str]:
        """The same as options of the data source."""
        given = {
            "url": self.url,
            "token": self.token,
            "username": self.username,
            "password": self.password,
            "caFile": self.ca_file,
            "streamsPath": self.streams_path,
            "retries": str(self.retries),
        }
        return {name: value for name, value in given.items() if value}

    def _auth(self) -> Auth | None:
        if self.token:
            return Bearer(self.token)
        return Basic(self.username, self.password) if self.username else None


class Waiting:
    """A client for code that waits: its event loop is in a thread, so it works in a notebook too.

    Use it as a context manager.
    """

    def __init__(self, connection: Connection) -> None:
        client = connection.client()
        self.url = client.url
        self._client = client
        self._retry = connection.retry()
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive:
            self._thread.call(self._client.aclose())
            self._thread.stop()

    def ask(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Wait for what is done with the client."""
        return self._thread.call(work(self._client))

    def items(self, work: Callable[[Client], AsyncIterator[T]]) -> Items[T]:
        """Iterate over what is done with the client; threads take turns for each item."""
        return Items(self._thread, work(self._client))

    def collect(self, work: Callable[[Client], AsyncIterator[T]]) -> list[T]:
        """All items at once; from the first one again if the server goes away in between."""

        async def all_of_them(client: Client) -> list[T]:
            clock, failures = SystemClock(), 0
            while True:
                try:
                    return [each async for each in work(client)]
                except HoldfastError as error:
                    failures += 1
                    delay_s = self._retry.delay_s(failures, error, clock)
                    if delay_s is None or not may_repeat(error, repeatable=True):
                        raise
                await pause(clock, delay_s)

        return self.ask(all_of_them)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
