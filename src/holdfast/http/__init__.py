"""HTTP: routes, one handler file per resource, a native server and an ASGI app around them."""
