"""The proxy: responses of other servers, recorded in streams while they arrive."""

from pathlib import Path
from typing import Final

# The proxy's part of the OpenAPI document.
OPENAPI: Final = Path(__file__).with_name("openapi.yaml")
