"""Where tokens and keys come from, and how they stay up to date while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from holdfast.errors import SettingsError
from holdfast.http.access.authentication import Authentication
from holdfast.http.access.fetched_keys import FetchedKeys
from holdfast.http.access.jwks import Keys, parse_jwks
from holdfast.http.access.jwts import JwtVerifier
from holdfast.http.access.tokens import Tokens, parse_token_settings, parse_tokens_file
from holdfast.http.access.watched_file import WatchedFile
from holdfast.net.outbound import Outbound
from holdfast.net.targets import TargetPolicy

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.settings import AccessSettings

_log = logging.getLogger(__name__)
POLL_S: Final = 1.0


class Sources:
    """Files, settings and a URL; what they hold is handed to `authentication`."""

    def __init__(self, access: AccessSettings, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        jwts = JwtVerifier(access, self._ask_for_keys) if access.takes_jwts else None
        self.authentication = Authentication(jwts)
        self._tokens_file: WatchedFile[Tokens] | None = None
        self._jwks_file: WatchedFile[Keys] | None = None
        self._fetched: FetchedKeys | None = None
        self._fetched_keys: Keys = ()
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
        """Fetch keys, if there is a URL for them, and watch the files."""
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
        """Watch and fetch no more."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self._fetched is not None:
            await self._fetched.stop()

    def take_changes(self, *, tokens: bool, keys: bool) -> None:
        """Use what the files hold now."""
        if tokens:
            self._use_tokens()
        if keys:
            self._use_keys()

    def poll(self) -> tuple[bool, bool]:
        """Look at the files; whether tokens and keys have changed. Blocks on disk."""
        tokens = self._tokens_file is not None and self._tokens_file.poll()
        keys = self._jwks_file is not None and self._jwks_file.poll()
        return tokens, keys

    async def _watch_files(self) -> None:
        while True:
            await self._pause(POLL_S)
            try:
                # A long file takes its time to parse, and a slow disk to answer.
                tokens, keys = await asyncio.to_thread(self.poll)
                self.take_changes(tokens=tokens, keys=keys)
            except Exception:  # noqa: BLE001 (a defect must not keep tokens from being revoked)
                _log.exception("the files of tokens and keys could not be looked at")

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

    def _on_fetched(self, keys: Keys) -> None:
        self._fetched_keys = keys
        self._use_keys()

    def _use_tokens(self) -> None:
        from_file = {} if self._tokens_file is None else self._tokens_file.value
        self.authentication.use_tokens(from_file | self._set_tokens)

    def _use_keys(self) -> None:
        from_file = () if self._jwks_file is None else self._jwks_file.value
        self.authentication.use_keys(from_file + self._fetched_keys)


def _pattern_of(url: str) -> str:
    """The pattern that names a URL's host: who sets it may well mean one inside."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
