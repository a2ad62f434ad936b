"""Settings of a server: declarations, and where their values come from."""

from holdfast.settings.groups import (
    AccessSettings,
    HttpSettings,
    LimitSettings,
    LogSettings,
    ProxySettings,
    ReadSettings,
    ServerSettings,
    Settings,
    StorageSettings,
    TlsSettings,
    WalSettings,
    WebhookSettings,
    all_settings,
    parse_listen,
)
from holdfast.settings.load import Effective, load_settings, resolve_settings
from holdfast.settings.options import Option

__all__ = [
    "AccessSettings",
    "Effective",
    "HttpSettings",
    "LimitSettings",
    "LogSettings",
    "Option",
    "ProxySettings",
    "ReadSettings",
    "ServerSettings",
    "Settings",
    "StorageSettings",
    "TlsSettings",
    "WalSettings",
    "WebhookSettings",
    "all_settings",
    "load_settings",
    "parse_listen",
    "resolve_settings",
]
