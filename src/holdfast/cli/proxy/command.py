"""The commands of `holdfast proxy`.

They are named by import path, so that the help of all of them loads none.
"""

from cyclopts import App, Parameter

__all__ = ["commands"]

commands = App(
    name="proxy",
    help="Call upstreams through the server, which records their responses.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
)
_COMMANDS = (
    ("request:request", "request", "Call an upstream, and print its response as it arrives."),
    ("sessions:connect", "connect", "Connect a session, and print its signed URL."),
    ("follow:follow", "follow", "Print a response while it is written, or go on with it."),
    ("sessions:abort", "abort", "Stop what upstreams are still sending."),
)
for _place, _name, _help in _COMMANDS:
    commands.command(f"holdfast.cli.proxy.{_place}", name=_name, help=_help)
