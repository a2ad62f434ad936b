"""The commands that talk to a server, on top of `holdfast.client`."""
