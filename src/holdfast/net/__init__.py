"""The one outbound HTTP transport: what may be called, and which address is connected to."""
