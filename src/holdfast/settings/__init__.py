"""The settings of a server: what they are, and how their values are found."""

from holdfast.settings.access_groups import AccessSettings, LimitSettings
from holdfast.settings.groups import (
    HttpSettings,
    LogSettings,
    ReadSettings,
    ServerSettings,
    Settings,
    StorageSettings,
    TlsSettings,
    WalSettings,
    parse_listen,
)
from holdfast.settings.load import Effective, load_settings, resolve_settings
from holdfast.settings.proxy_groups import ProxySettings
from holdfast.settings.setting import Setting, all_settings
from holdfast.settings.webhook_groups import WebhookSettings

__all__ = [
    "AccessSettings",
    "Effective",
    "HttpSettings",
    "LimitSettings",
    "LogSettings",
    "ProxySettings",
    "ReadSettings",
    "ServerSettings",
    "Setting",
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
