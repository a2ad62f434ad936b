"""Buckets in clouds: a place and the environment, as obstore takes them.

What the place gives is passed on explicitly, and completely. obstore would otherwise fill gaps
from the environment and mix, say, an access key of the place with a session token of the
environment. It also panics on an address that is none, so those are checked here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.errors import SettingsError
from holdfast.protocol.names import clean_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obstore.store import ClientConfig, S3Config, S3Credential, S3CredentialProvider

    from holdfast.objects.obstore_objects import Bucket, Patience
    from holdfast.objects.place import StorePlace

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION: Final = "us-east-1"
# A name with a dot in it fits no wildcard certificate, and one with capitals no host name.
_HOST_LABEL: Final = re.compile(r"[a-z0-9-]{3,63}")


def bucket_connection(place: StorePlace, env: Mapping[str, str]) -> Callable[[Patience], Bucket]:
    """How to connect to the bucket that `place.url` names."""
    scheme, _, path = place.url.partition("://")
    bucket, _, inside = path.partition("/")
    prefix = inside or None
    match scheme:
        case "s3":
            return _s3(place, bucket, prefix, env)
        case "gs":
            return lambda patience: GCSStore(
                bucket,
                prefix=prefix,
                client_options=patience.client_options(),
                retry_config=patience.retry_config(),
            )
        case _:
            return lambda patience: AzureStore(
                bucket,
                prefix=prefix,
                client_options=patience.client_options(),
                retry_config=patience.retry_config(),
            )


def _s3(
    place: StorePlace, bucket: str, prefix: str | None, env: Mapping[str, str]
) -> Callable[[Patience], Bucket]:
    config = _s3_config(place, bucket, env)
    allow_http = config.get("endpoint", "").startswith("http://")

    def connect(patience: Patience) -> Bucket:
        options: ClientConfig = {**patience.client_options()}
        if allow_http:
            options["allow_http"] = True
        return S3Store(
            bucket,
            prefix=prefix,
            config=config,
            client_options=options,
            retry_config=patience.retry_config(),
            credential_provider=_credentials(place),
        )

    return connect


def _s3_config(place: StorePlace, bucket: str, env: Mapping[str, str]) -> S3Config:
    endpoint = place.endpoint or _endpoint_of_environment(env)
    virtual = place.addressing == "virtual" or (
        place.addressing == "auto" and not endpoint and _HOST_LABEL.fullmatch(bucket)
    )
    regions = (env.get(name) for name in _REGION_VARIABLES)
    config: S3Config = {
        "region": place.region or next(filter(None, regions), _REGION),
        "virtual_hosted_style_request": bool(virtual),
        # Not every S3 server knows the bulk request, and one object is deleted at a time.
        "disable_bulk_delete": True,
    }
    if endpoint:
        if virtual:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{bucket}.{host}"
        # Both, since the one for S3 in the environment would win over the general one in here.
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


def _credentials(place: StorePlace) -> S3CredentialProvider | None:
    """The keys of the place; without them obstore looks in the environment."""
    if not place.access_key_id:
        return None
    credential: S3Credential = {
        "access_key_id": place.access_key_id,
        "secret_access_key": place.secret_access_key,
        "token": place.session_token or None,
        "expires_at": None,
    }
    return lambda: credential
