"""The options of jobs whose executors use the object store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import SettingsError
from holdfast.objects.place import StorePlace
from holdfast.spark.jobs.options import option

__all__ = ["StoreOptions"]


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Where the object store is and whose keys open it, as executors see it.

    What is not given is as the server says, and as the `AWS_*` variables have it where executors
    run. Keys are given by the names of environment variables, which the driver reads.
    """

    store: str = option(
        "Object store as executors see it, a path or a URL. (default as the server names it)", ""
    )
    store_endpoint: str = option("URL of an S3 service other than Amazon's.", "")
    store_region: str = option("Region of the S3 bucket.", "")
    store_addressing: Literal["auto", "path", "virtual"] = option(
        "Whether the S3 bucket's name is in the path or in the host. (default auto)", "auto"
    )
    store_access_key_id_env: str = option("Environment variable with the id of the S3 key.", "")
    store_secret_access_key_env: str = option("Environment variable with the S3 key's secret.", "")
    store_session_token_env: str = option("Environment variable with the S3 session's token.", "")

    def place(self, named: str, env: Mapping[str, str] = os.environ) -> StorePlace:
        """The store that is meant; `named` is what the server calls it."""
        return StorePlace(
            self.store.strip() or named,
            endpoint=self.store_endpoint.strip(),
            region=self.store_region.strip(),
            addressing=self.store_addressing,
            access_key_id=self._secret("store_access_key_id_env", env),
            secret_access_key=self._secret("store_secret_access_key_env", env),
            session_token=self._secret("store_session_token_env", env),
        )

    def _secret(self, option_name: str, env: Mapping[str, str]) -> str:
        variable = str(getattr(self, option_name)).strip()
        if not variable:
            return ""
        if not env.get(variable):
            raise SettingsError(
                f"{option_name!r} names the environment variable {variable}, which is not set."
            )
        return env[variable]
