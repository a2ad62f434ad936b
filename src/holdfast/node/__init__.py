"""A node: storage, engine, subscriptions, HTTP and the proxy, put together and run.

`node.py` opens and closes them, `server.py` runs a node behind the native listener, and `asgi.py`
inside an ASGI host.
"""
