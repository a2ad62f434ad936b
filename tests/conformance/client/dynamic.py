"""Headers and parameters whose value is made anew for every request."""

import time
from collections.abc import Callable

from tests.conformance.client.results import Command, NotSupportedError


class DynamicValues:
    """The values of one kind, by name, and what was last sent of each."""

    def __init__(self) -> None:
        self._values: dict[str, Callable[[], str]] = {}
        self.sent: dict[str, str] = {}

    def set(self, command: Command) -> None:
        """Have a value with every request from now on."""
        self._values[command["name"]] = _source(command)

    def clear(self) -> None:
        """Send none of them any more."""
        self._values.clear()

    def callables(self) -> dict[str, Callable[[], str]]:
        """What the client calls for each request, noting what it gets."""
        self.sent = {}
        return {name: self._noting(name) for name in self._values}

    def _noting(self, name: str) -> Callable[[], str]:
        def value() -> str:
            self.sent[name] = self._values[name]()
            return self.sent[name]

        return value


def _source(command: Command) -> Callable[[], str]:
    match command["valueType"]:
        case "counter":
            return _counter()
        case "timestamp":
            return lambda: str(time.time_ns() // 1_000_000)
        case "token":
            return lambda: command.get("initialValue") or ""
        case unknown:
            raise NotSupportedError(f"There is no kind of value called {unknown!r}.")


def _counter() -> Callable[[], str]:
    count = 0

    def value() -> str:
        nonlocal count
        count += 1
        return str(count)

    return value
