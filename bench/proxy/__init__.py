"""What the proxy adds to an upstream, and how many of them one server carries."""
