"""Which buckets a read covers: one, several, or those whose ids match a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from holdfast.errors import SettingsError
from holdfast.spark.connection import Options, SparkClient
from holdfast.spark.reading.source import ReadSource


@dataclass(frozen=True)
class BucketChoice:
    """Buckets by id, or by a pattern that their whole ids match."""

    ids: tuple[str, ...] = ()
    pattern: str = ""

    @classmethod
    def from_options(cls, options: Options) -> BucketChoice:
        pattern = options.text("bucketPattern").strip()
        ids = tuple(dict.fromkeys(options.words("bucket")))
        if pattern and ids:
            raise SettingsError("Give either 'bucket' or 'bucketPattern', not both.")
        if not pattern and not ids:
            options.required("bucket")
        try:
            re.compile(pattern)
        except re.error as error:
            raise SettingsError(
                f"The option 'bucketPattern' is no regular expression: {error}."
            ) from None
        return cls(ids, pattern)

    @property
    def is_one(self) -> bool:
        return len(self.ids) == 1

    def find(self, server: SparkClient) -> list[str]:
        """The ids of the buckets; with a pattern, of those that exist now."""
        if self.ids:
            return list(self.ids)
        matches = re.compile(self.pattern).fullmatch
        chosen = [each for each in server.bucket_ids() if matches(each)]
        if not chosen:
            raise SettingsError(f"No bucket of {server.url} matches {self.pattern!r}.")
        return chosen

    def sources(self, server: SparkClient, source: ReadSource) -> list[ReadSource]:
        """The source of each bucket."""
        return [replace(source, bucket=each) for each in self.find(server)]
