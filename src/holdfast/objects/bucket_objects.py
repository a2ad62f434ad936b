"""Objects in a cloud bucket, through obstore.

Each use has its own timeouts: uploading a large pack may take a minute, but a client that waits for
a read should get a 503 soon. obstore retries within these limits; nothing here retries again.

The location's values are passed to obstore explicitly and completely. Otherwise obstore fills gaps
from the environment and could combine, say, the location's access key with a session token of the
environment. It also panics on a malformed endpoint, so endpoints are checked here.

obstore's error messages contain the request's URL, which may carry a signature, and then a dump of
its structures. So the reason is extracted from them: the store's own code and message, or the fault
of the connection.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.errors import HoldfastError, ObjectMissingError, SettingsError, StoreError
from holdfast.objects.request_counts import count_request
from holdfast.objects.store import FutureRanges, ObjectInfo, cut_short, missing
from holdfast.protocol.names import clean_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from obstore.store import (
        ClientConfig,
        RetryConfig,
        S3Config,
        S3Credential,
        S3CredentialProvider,
    )

    from holdfast.objects.locations import StoreLocation

    Bucket = S3Store | GCSStore | AzureStore

_PART_BYTES: Final = 32 << 20
# One part is sent while the next is collected; more would only take more memory.
_PARTS_AT_ONCE: Final = 2
_LIST_CHUNK: Final = 1000
# Fetching a gap of this size is cheaper than another request.
_GAP_BYTES_MAX: Final = 1 << 20
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_DEFAULT_REGION: Final = "us-east-1"
# A bucket name with a dot matches no wildcard certificate; capitals are not valid in a host name.
_HOST_LABEL: Final = re.compile(r"[a-z0-9-]{3,63}")
_REASON_LENGTH_MAX: Final = 200
_TEXT_LENGTH_MAX: Final = 10_000
_CODE: Final = re.compile(r"<Code>\s*(.*?)\s*</Code>", re.DOTALL)
_MESSAGE: Final = re.compile(r"<Message>\s*(.*?)\s*</Message>", re.DOTALL)
_STATUS: Final = re.compile(r"status code: (\d{3})([A-Za-z -]*)")
_GENERIC: Final = re.compile(r"^Generic \w+ error: ")
_URL: Final = re.compile(r"\b[a-z]+://\S+")
# Requests for credentials: to the metadata services of AWS, Google and Azure, and to others.
_METADATA: Final = re.compile(r"/latest/(api/token|meta-data)|computeMetadata|/metadata/identity")
_TOKENS: Final = re.compile(r"performing \w+ \S*(oauth2|//sts[.])")
# Responses that do not come from an S3 server.
_STRANGE: Final = re.compile(r"Got invalid list response|Unable to extract metadata from headers")
# Connection faults as they appear in the dump.
_FAULTS: Final = (
    (re.compile(r"dns error"), "its host name is not known"),
    (re.compile(r"InvalidCertificate"), "its TLS certificate is not accepted"),
    (re.compile(r"InvalidContentType"), "it does not speak TLS"),
    (re.compile(r"kind: Timeout|TimedOut"), "it does not respond in time"),
    (re.compile(r"ConnectionRefused"), "the connection is refused"),
    (re.compile(r"kind: Connect"), "no connection can be made"),
)
_CREDENTIALS: Final = {
    "s3": "Set s3_access_key_id and s3_secret_access_key, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY in the environment (profiles in ~/.aws are not read).",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to the path of a service account's key file.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY.",
}
_CREDENTIAL_CODES: Final = frozenset(
    {
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
    }
)
_BUCKET_CODES: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_BUCKET: Final = "Create it, or name another one in the setting `store`."
_REGION_ADVICE: Final = "Set s3_region to the region of the bucket."
_ADVICE: Final = {
    "AuthorizationHeaderMalformed": _REGION_ADVICE,
    "IllegalLocationConstraintException": _REGION_ADVICE,
    "PermanentRedirect": _REGION_ADVICE,
    "RequestTimeTooSkewed": "Set the clock of this machine.",
}
_PERMISSIONS: Final = "The credentials must allow to list, read, write and delete objects there."
_ENDPOINT: Final = "Does s3_endpoint name an S3 server, with the right http:// or https://?"


class StoreTimeouts(NamedTuple):
    """How long to wait for a store; after `whole_s` no further attempt is made."""

    connect_s: float
    attempt_s: float
    whole_s: float

    def client_options(self) -> ClientConfig:
        """The limits of one attempt."""
        return {
            "connect_timeout": timedelta(seconds=self.connect_s),
            "timeout": timedelta(seconds=self.attempt_s),
        }

    def retry_config(self) -> RetryConfig:
        """The limits of all attempts together."""
        return {
            "max_retries": 100,  # the time is the limit
            "retry_timeout": timedelta(seconds=self.whole_s),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        }


# Packs are large, so one attempt may take long. Flushes are repeated and logged by their caller.
UPLOADS: Final = StoreTimeouts(connect_s=5, attempt_s=60, whole_s=10)
READS: Final = StoreTimeouts(connect_s=2, attempt_s=5, whole_s=8)
# How much longer the last attempt of a read may take.
_LAST_ATTEMPT_S: Final = 2.0
PROBING: Final = StoreTimeouts(connect_s=2, attempt_s=3, whole_s=3)


class ObstoreObjects:
    """An object store in a bucket; `connect` opens it with the given timeouts."""

    def __init__(
        self,
        url: str,
        connect: Callable[[StoreTimeouts], Bucket],
        timeouts: StoreTimeouts = UPLOADS,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self.url = url
        self._connect = connect
        self._bucket = connect(timeouts)
        self._part_bytes = part_bytes

    def with_timeouts(self, timeouts: StoreTimeouts) -> ObstoreObjects:
        return ObstoreObjects(self.url, self._connect, timeouts, self._part_bytes)

    def with_parts(self, part_bytes: int) -> ObstoreObjects:
        """The same store, with smaller parts so that uploads hold less in memory."""
        return ObstoreObjects(self.url, self._connect, UPLOADS, part_bytes)

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        count_request("put", size_bytes=len(data))
        with self._explained(name):
            obstore.put(self._bucket, name, data, use_multipart=False)

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Send a multipart upload, which obstore aborts if `parts` raises."""
        with self._explained(name):
            obstore.put(
                self._bucket,
                name,
                _produced_in_thread(_counted_parts(parts, self._part_bytes)),
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def create(self, name: str, data: bytes) -> bool:
        count_request("put", size_bytes=len(data))
        with self._explained(name):
            try:
                obstore.put(self._bucket, name, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        with self._explained(name, reading=True):
            if size == 0:
                count_request("head")
                obstore.head(self._bucket, name)
                return b""
            try:
                data = self._fetch(name, at, size)
            except BaseError as error:
                count_request("get")
                if is_past_the_end(error):
                    return b""
                raise
            count_request("get", size_bytes=len(data))
            return data

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        if not ranges:
            return []
        fetches = _fetches(ranges)
        starts, ends = zip(*fetches, strict=True)
        with self._explained(name, reading=True):
            try:
                found = obstore.get_ranges(self._bucket, name, starts=starts, ends=ends, coalesce=0)
            except BaseError as error:
                if is_past_the_end(error):
                    raise cut_short(self.url, name) from None
                raise
        # Nothing is copied, so keeping a part keeps the whole fetch in memory.
        data = [memoryview(each) for each in found]
        count_request("get", len(fetches), size_bytes=sum(map(len, data)))
        if any(len(each) != end - start for each, (start, end) in zip(data, fetches, strict=True)):
            raise cut_short(self.url, name)
        return list(_parts(ranges, fetches, data))

    def _fetch(self, name: str, at: int, size: int | None) -> bytes:
        if size is not None:
            return obstore.get_range(self._bucket, name, start=at, length=size).to_bytes()
        if at == 0:
            return obstore.get(self._bucket, name).bytes().to_bytes()
        found = obstore.get(self._bucket, name, options={"range": {"offset": at}})
        return found.bytes().to_bytes()

    def size(self, name: str) -> int:
        count_request("head")
        with self._explained(name, reading=True):
            return obstore.head(self._bucket, name)["size"]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._explained(prefix):
            for page in obstore.list(self._bucket, prefix or None, chunk_size=_LIST_CHUNK):
                count_request("list")
                for each in page:
                    modified_ms = int(each["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(each["path"], each["size"], modified_ms)

    def remove(self, name: str) -> None:
        count_request("delete")
        with suppress(ObjectMissingError), self._explained(name, reading=True):
            obstore.delete(self._bucket, name)

    def remove_unfinished(self, before_ms: int) -> int:
        """Does nothing: the bucket's lifecycle rule aborts interrupted uploads."""
        return 0

    @contextmanager
    def _explained(self, name: str, *, reading: bool = False) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise explained(error, self.url, name, reading=reading) from None


def _fetches(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (start, end) of each request: ranges that are close together share one.

    obstore can do this too, but it panics if an object ends before the last of the joined ranges.
    """
    fetches: list[tuple[int, int]] = []
    for at, size in ranges:
        if fetches and at <= fetches[-1][1] + _GAP_BYTES_MAX:
            start, end = fetches[-1]
            fetches[-1] = (start, max(end, at + size))
        else:
            fetches.append((at, at + size))
    return fetches


def _parts(
    ranges: Iterable[tuple[int, int]], fetches: list[tuple[int, int]], data: list[memoryview]
) -> Iterator[memoryview]:
    """Each range, sliced from the fetch that covers it."""
    index = 0
    for at, size in ranges:
        while at >= fetches[index][1]:
            index += 1
        inside = at - fetches[index][0]
        yield data[index][inside : inside + size]


def _counted_parts(parts: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The same parts; counts the requests of their upload: one each, to begin it and to end it."""
    total = 0
    for each in parts:
        total += len(each)
        yield each
    count_request("put", -(-total // part_bytes) + 2, size_bytes=total)


def _produced_in_thread(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same parts, produced in their own thread.

    obstore iterates inside its runtime, where no other call to obstore is possible; but a merge
    reads from the store that it writes to.
    """
    remaining = iter(parts)
    with ThreadPoolExecutor(1, "upload") as thread:
        while (part := thread.submit(next, remaining, None).result()) is not None:
            yield part


class AsyncRanges(FutureRanges):
    """A range reader over a bucket: one task per read, with a deadline."""

    def __init__(
        self, url: str, connect: Callable[[StoreTimeouts], Bucket], timeouts: StoreTimeouts = READS
    ) -> None:
        super().__init__(url)
        self._bucket = connect(timeouts)
        self._timeout_s = timeouts.whole_s + _LAST_ATTEMPT_S

    def _start(self, name: str, at: int, size: int) -> asyncio.Future[bytes]:
        return asyncio.get_running_loop().create_task(self._fetch(name, at, size))

    async def _fetch(self, name: str, at: int, size: int) -> bytes:
        async with asyncio.timeout(self._timeout_s):
            if size == 0:
                await obstore.head_async(self._bucket, name)
                return b""
            try:
                found = await obstore.get_range_async(self._bucket, name, start=at, length=size)
            except BaseError as error:
                if is_past_the_end(error):
                    return b""
                raise
            return found.to_bytes()

    def _explain(self, name: str, error: BaseException) -> HoldfastError:
        if isinstance(error, (BaseError, OSError)):
            return explained(error, self._url, name, reading=True)
        return super()._explain(name, error)


def bucket_connection(
    location: StoreLocation, env: Mapping[str, str]
) -> Callable[[StoreTimeouts], Bucket]:
    """A function that connects to the bucket in `location.url`."""
    scheme, _, path = location.url.partition("://")
    bucket, _, inside = path.partition("/")
    prefix = inside or None
    if scheme == "s3":
        return _s3(location, bucket, prefix, env)
    store = GCSStore if scheme == "gs" else AzureStore
    return lambda timeouts: store(
        bucket,
        prefix=prefix,
        client_options=timeouts.client_options(),
        retry_config=timeouts.retry_config(),
    )


def _s3(
    location: StoreLocation, bucket: str, prefix: str | None, env: Mapping[str, str]
) -> Callable[[StoreTimeouts], Bucket]:
    config = _s3_config(location, bucket, env)
    allow_http = config.get("endpoint", "").startswith("http://")

    def connect(timeouts: StoreTimeouts) -> Bucket:
        options: ClientConfig = {**timeouts.client_options()}
        if allow_http:
            options["allow_http"] = True
        return S3Store(
            bucket,
            prefix=prefix,
            config=config,
            client_options=options,
            retry_config=timeouts.retry_config(),
            credential_provider=_credentials(location),
        )

    return connect


def _s3_config(location: StoreLocation, bucket: str, env: Mapping[str, str]) -> S3Config:
    endpoint = location.endpoint or _endpoint_of_environment(env)
    virtual = location.addressing == "virtual" or (
        location.addressing == "auto" and not endpoint and _HOST_LABEL.fullmatch(bucket)
    )
    regions = (env.get(name) for name in _REGION_VARIABLES)
    config: S3Config = {
        "region": location.region or next(filter(None, regions), _DEFAULT_REGION),
        "virtual_hosted_style_request": bool(virtual),
        # Not every S3 server supports bulk deletes, and objects are deleted one at a time.
        "disable_bulk_delete": True,
    }
    if endpoint:
        if virtual:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{bucket}.{host}"
        # Both: the variable for S3 in the environment would win over the general option.
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
    return config


def _endpoint_of_environment(env: Mapping[str, str]) -> str:
    for name in _ENDPOINT_VARIABLES:
        if env.get(name):
            try:
                return clean_endpoint(env[name])
            except ValueError as error:
                raise SettingsError(f"{name}: {error}, got {env[name]!r}") from None
    return ""


def _credentials(location: StoreLocation) -> S3CredentialProvider | None:
    """The location's keys; without them obstore uses the environment."""
    if not location.access_key_id:
        return None
    credential: S3Credential = {
        "access_key_id": location.access_key_id,
        "secret_access_key": location.secret_access_key,
        "token": location.session_token or None,
        "expires_at": None,
    }
    return lambda: credential


def explained(error: BaseException, url: str, name: str, *, reading: bool = False) -> HoldfastError:
    """The error to raise instead; a missing object is an ObjectMissingError only when `reading`."""
    # A response can be of any length, and these expressions are not made for that.
    line, _, dump = str(error)[:_TEXT_LENGTH_MAX].partition("\n\nDebug source:")
    found = _CODE.search(line)
    code = found[1] if found else ""
    if reading and isinstance(error, FileNotFoundError) and code not in _BUCKET_CODES:
        return missing(url, name)
    at = f" at {name!r}" if name else ""
    return StoreError(
        f"The object store {url} fails{at}: {_reason(error, code, line, dump)}.",
        _advice(url, code, line, dump),
    )


def credential_advice(url: str) -> str:
    """Which settings or variables hold the credentials for this kind of store."""
    return _CREDENTIALS.get(urlsplit(url).scheme, "")


def is_past_the_end(error: BaseException) -> bool:
    """Whether the requested range starts at or after the object's end."""
    line = str(error).partition("\n\nDebug source:")[0]
    return "status code: 416" in line or "Requested range was invalid" in line


def _reason(error: BaseException, code: str, line: str, dump: str) -> str:
    if isinstance(error, TimeoutError):
        return "it does not respond in time"
    if _METADATA.search(line):
        return "there are no credentials, and no metadata service that gives some"
    if code:
        message = _MESSAGE.search(line)
        return _one_line(f"{code}: {message[1]}" if message else code)
    for pattern, words in _FAULTS:
        if pattern.search(dump):
            return words
    status = _STATUS.search(line)
    if status is not None:
        return f"HTTP status {status[1]}{status[2].rstrip()}"
    return _one_line(_GENERIC.sub("", line.rpartition(" - ")[2]))


def _advice(url: str, code: str, line: str, dump: str) -> str:
    """What the operator should change; empty if the store may recover by itself."""
    status = _STATUS.search(line)
    number = int(status[1]) if status else 0
    if _METADATA.search(line) or _TOKENS.search(line) or code in _CREDENTIAL_CODES or number == 401:
        return credential_advice(url)
    if code in _BUCKET_CODES:
        return _BUCKET
    if "redirect without LOCATION" in line:
        return _REGION_ADVICE
    if code in _ADVICE:
        return _ADVICE[code]
    if number == 403:
        return _PERMISSIONS
    strange = _STRANGE.search(line) or "InvalidContentType" in dump
    if url.startswith("s3:") and (strange or (number in {400, 404, 405} and not code)):
        return _ENDPOINT
    return ""


def _one_line(text: str) -> str:
    words = " ".join(_URL.sub("…", text).split()).rstrip(".")
    if len(words) > _REASON_LENGTH_MAX:
        return words[:_REASON_LENGTH_MAX] + "…"
    return words
