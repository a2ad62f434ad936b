"""The one place that turns what obstore raises into errors of ours.

obstore's messages are a line with the request's URL and the whole answer, then a dump of its
structures. Neither is fit for a log, and the first may carry a signature, so the reason is picked
from them: the store's own code and message, or the fault of the connection.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError, StoreError
from holdfast.objects.store import missing

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
# Answers that are not those of an S3 server.
_STRANGE: Final = re.compile(r"Got invalid list response|Unable to extract metadata from headers")
# Faults of the connection, as the dump spells them.
_FAULTS: Final = (
    (re.compile(r"dns error"), "its host name is not known"),
    (re.compile(r"InvalidCertificate"), "its TLS certificate is not accepted"),
    (re.compile(r"InvalidContentType"), "it does not speak TLS"),
    (re.compile(r"kind: Timeout|TimedOut"), "it does not answer in time"),
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
_REGION: Final = "Set s3_region to the region of the bucket."
_ADVICE: Final = {
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "PermanentRedirect": _REGION,
    "RequestTimeTooSkewed": "Set the clock of this machine.",
}
_PERMISSIONS: Final = "The credentials must allow to list, read, write and delete objects there."
_ENDPOINT: Final = "Does s3_endpoint name an S3 server, with the right http:// or https://?"


def explained(error: BaseException, url: str, name: str, *, reading: bool = False) -> HoldfastError:
    """The error to raise instead. Only for a read is a missing object what it seems."""
    # An answer can be anything, of any length, and these expressions are not made for that.
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
    """Which settings or variables hold the credentials of such a store."""
    return _CREDENTIALS.get(urlsplit(url).scheme, "")


def is_past_the_end(error: BaseException) -> bool:
    """Whether a range was asked for that starts at the object's end or past it."""
    line = str(error).partition("\n\nDebug source:")[0]
    return "status code: 416" in line or "Requested range was invalid" in line


def _reason(error: BaseException, code: str, line: str, dump: str) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
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
    """What to change, or nothing if the store may come back by itself."""
    status = _STATUS.search(line)
    number = int(status[1]) if status else 0
    if _METADATA.search(line) or _TOKENS.search(line) or code in _CREDENTIAL_CODES or number == 401:
        return credential_advice(url)
    if code in _BUCKET_CODES:
        return _BUCKET
    if "redirect without LOCATION" in line:
        return _REGION
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
