"""Where tokens and keys come from, and how they stay up to date while the server runs.

Tokens come from settings and a file, keys of JWTs from a file and a URL. Files are read again when
they change, so that tokens can be revoked without a restart. Keys are fetched at start, at an
interval, and when a token names an unknown one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError, OutboundError, SettingsError
from holdfast.http.access.jwts import JwtVerifier, PublicKeys, parse_jwks
from holdfast.http.access.tokens import (
    Authenticator,
    Tokens,
    parse_token_settings,
    parse_tokens_file,
)
from holdfast.net.outbound import Outbound
from holdfast.net.targets import TargetPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.net.outbound import Outbound
    from holdfast.settings import AccessSettings

_log = logging.getLogger(__name__)
FILE_BYTES_MAX: Final = 33_554_432
T = TypeVar("T")
# Identifies a version of a file; None if there is no file.
_Stamp = tuple[int, int, int] | None
FETCH_TIMEOUT_S: Final = 5.0
JWKS_BYTES_MAX: Final = 1_048_576
# The shortest time between two fetches: bad tokens must not cause more of them.
PAUSE_S: Final = 10.0
POLL_S: Final = 1.0


class WatchedFile(Generic[T]):
    """The parsed content of a file; if it breaks or disappears, the last good content stays."""

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        self._path = path
        self._parse = parse
        self._stamp = self._look()
        try:
            self.value = self._read()
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} cannot be used: {_reason(error)}") from None

    def poll(self) -> bool:
        """Read the file again if it has changed; returns whether it was. Blocks on disk."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        # Set before reading, so that the next poll notices a change during the read.
        self._stamp = stamp
        try:
            self.value = self._read()
        except (OSError, ValueError) as error:
            _log.error(
                "%s has changed and cannot be used; its previous content stays in force: %s",
                self._path,
                _reason(error),
            )
            return False
        _log.info("%s has changed and was read again", self._path)
        return True

    def _look(self) -> _Stamp:
        try:
            found = os.stat(self._path)  # noqa: PTH116 (as good, and one call less)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        with self._path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
        return self._parse(content)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


class FetchedKeys:
    """The keys behind a URL; after a failed fetch the previous keys stay."""

    def __init__(
        self,
        url: str,
        outbound: Outbound,
        clock: Clock,
        *,
        refresh_s: float,
        on_change: Callable[[PublicKeys], None],
    ) -> None:
        self._url = url
        self._outbound = outbound
        self._clock = clock
        self._refresh_s = refresh_s
        self._on_change = on_change
        self._keys: PublicKeys = ()
        self._fetched_s = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fetch once, then keep fetching in the background."""
        await self._fetch()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._outbound.aclose()

    def ask(self) -> None:
        """Fetch soon, because a token names an unknown key."""
        if self._clock.monotonic_s() - self._fetched_s >= PAUSE_S:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            # A failed fetch is repeated sooner.
            pause_s = self._refresh_s if self._keys else min(self._refresh_s, PAUSE_S)
            timer = self._clock.call_later(pause_s, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            await self._fetch()

    async def _fetch(self) -> None:
        self._fetched_s = self._clock.monotonic_s()
        try:
            keys = await self._get()
        except (HoldfastError, ValueError) as error:
            _log.error(
                "the keys of access.jwks_url could not be fetched, %s: %s",
                "the previous ones stay in force"
                if self._keys
                else "so JWTs signed by them are refused",
                error,
            )
            return
        except Exception:  # noqa: BLE001 (a defect must not end the renewal of keys)
            _log.exception("the keys of access.jwks_url could not be fetched")
            return
        if keys != self._keys:
            self._keys = keys
            self._on_change(keys)

    async def _get(self) -> PublicKeys:
        response = await self._outbound.request(
            "GET",
            self._url,
            {"Accept": "application/jwk-set+json, application/json"},
            timeout_s=FETCH_TIMEOUT_S,
            bytes_max=JWKS_BYTES_MAX,
        )
        if response.status != 200:
            raise OutboundError(f"The response has status {response.status}.")
        return parse_jwks(response.body)


class CredentialSources:
    """Files, settings and a URL; their tokens and keys go to `authentication`."""

    def __init__(self, access: AccessSettings, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        jwts = JwtVerifier(access, self._ask_for_keys) if access.takes_jwts else None
        self.authentication = Authenticator(jwts)
        self._tokens_file: WatchedFile[Tokens] | None = None
        self._jwks_file: WatchedFile[PublicKeys] | None = None
        self._fetched: FetchedKeys | None = None
        self._fetched_keys: PublicKeys = ()
        self._watch: asyncio.Task[None] | None = None
        try:
            self._set_tokens = parse_token_settings(access.tokens)
        except ValueError as error:
            raise SettingsError(f"access.tokens: {error}") from None
        if access.tokens_file:
            self._tokens_file = WatchedFile(Path(access.tokens_file), parse_tokens_file)
        if access.jwks_file:
            self._jwks_file = WatchedFile(Path(access.jwks_file), parse_jwks)
        self._use_tokens()
        if jwts is not None:
            self._use_keys()

    async def start(self) -> None:
        """Fetch keys if there is a URL for them, and watch the files."""
        if self._access.jwks_url:
            self._fetched = FetchedKeys(
                self._access.jwks_url,
                Outbound(TargetPolicy([_pattern_of(self._access.jwks_url)])),
                self._clock,
                refresh_s=self._access.jwks_refresh_s,
                on_change=self._on_fetched,
            )
            await self._fetched.start()
        if self._tokens_file is not None or self._jwks_file is not None:
            self._watch = asyncio.create_task(self._watch_files())

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self._fetched is not None:
            await self._fetched.stop()

    def take_changes(self, *, tokens: bool, keys: bool) -> None:
        """Use the current content of the files."""
        if tokens:
            self._use_tokens()
        if keys:
            self._use_keys()

    def poll(self) -> tuple[bool, bool]:
        """Check the files; returns whether tokens and keys have changed. Blocks on disk."""
        tokens = self._tokens_file is not None and self._tokens_file.poll()
        keys = self._jwks_file is not None and self._jwks_file.poll()
        return tokens, keys

    async def _watch_files(self) -> None:
        while True:
            await self._pause(POLL_S)
            try:
                # Parsing a long file and reading from a slow disk take time.
                tokens, keys = await asyncio.to_thread(self.poll)
                self.take_changes(tokens=tokens, keys=keys)
            except Exception:  # noqa: BLE001 (a defect must not keep tokens from being revoked)
                _log.exception("the files with tokens and keys could not be checked")

    async def _pause(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self._clock.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def _ask_for_keys(self) -> None:
        if self._fetched is not None:
            self._fetched.ask()

    def _on_fetched(self, keys: PublicKeys) -> None:
        self._fetched_keys = keys
        self._use_keys()

    def _use_tokens(self) -> None:
        from_file = {} if self._tokens_file is None else self._tokens_file.value
        self.authentication.use_tokens(from_file | self._set_tokens)

    def _use_keys(self) -> None:
        from_file = () if self._jwks_file is None else self._jwks_file.value
        self.authentication.use_keys(from_file + self._fetched_keys)


def _pattern_of(url: str) -> str:
    """The target pattern that allows a URL's host, which may be a private one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
