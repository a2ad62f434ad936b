"""Errors about settings and about what is on disk or in the object store."""

from __future__ import annotations

from holdfast.errors.root import HoldfastError


class SettingsError(HoldfastError):
    """A setting is missing, unknown or out of range; the server does not start."""

    code = "invalid_settings"


class DataDirectoryLockedError(HoldfastError):
    """Another process has the data directory open."""

    code = "data_directory_locked"


class UnknownFormatError(HoldfastError):
    """The data on disk was written by a version this one does not know."""

    code = "unknown_format"


class LogCorruptError(HoldfastError):
    """The log is damaged somewhere other than at its torn end."""

    code = "log_corrupt"


class CatalogError(HoldfastError):
    """The catalog is damaged, or does not belong to this log and object store."""

    code = "catalog_damaged"


class ObjectMissingError(HoldfastError):
    """An object that is referred to is not in the object store; the message names it."""

    code = "object_missing"


class PackCorruptError(HoldfastError):
    """A pack is damaged; the message names it and says what is wrong."""

    code = "pack_corrupt"
