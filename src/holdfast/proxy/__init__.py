"""The proxy: responses of other servers, recorded in streams while they arrive."""
