"""An Iceberg REST catalog on a loopback port: the calls of the specification that tables need.

PyIceberg's SQL catalog keeps the tables, and checks the requirements of commits.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, StaticTable

TOKEN = "secret-of-the-catalog"
STATUSES = {
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


@contextmanager
def rest_catalog(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Run a catalog; yields its URL, and the requests that it gets."""
    catalog = SqlCatalog("rest", uri=f"sqlite:///{directory}/rest.db", warehouse=directory.as_uri())
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            requests.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self.send(401, b'{"error":{"message":"no","type":"NotAuthorized","code":401}}')
                return
            try:
                self.send(200, reply(catalog, self.command, path, body))
            except tuple(STATUSES) as error:
                status = STATUSES[type(error)]
                error = {"message": str(error), "type": type(error).__name__, "code": status}
                self.send(status, msgspec.json.encode({"error": error}))

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def reply(catalog: SqlCatalog, method: str, path: str, body: bytes) -> bytes:
    match method, path.split("/")[2:]:
        case "GET", ["config"]:
            return b'{"defaults":{},"overrides":{}}'
        case "POST", ["namespaces"]:
            namespace = msgspec.json.decode(body)["namespace"]
            catalog.create_namespace(tuple(namespace))
            return msgspec.json.encode({"namespace": namespace, "properties": {}})
        case "POST", ["namespaces", namespace, "tables"]:
            wanted = CreateTableRequest.model_validate_json(body)
            assert wanted.stage_create
            if catalog.table_exists((namespace, wanted.name)):
                raise TableAlreadyExistsError(wanted.name)
            return table_json(
                catalog._create_staged_table(
                    (namespace, wanted.name),
                    wanted.table_schema,
                    wanted.location,
                    properties=wanted.properties,
                ),
                staged=True,
            )
        case "GET", ["namespaces", namespace, "tables", table]:
            return table_json(catalog.load_table((namespace, table)))
        case "POST", ["namespaces", namespace, "tables", table]:
            commit = CommitTableRequest.model_validate_json(body)
            named = StaticTable((namespace, table), None, "", None, catalog)
            done = catalog.commit_table(named, commit.requirements, commit.updates)
            return done.model_dump_json(by_alias=True).encode()
    raise AssertionError(f"{method} {path} is not a call that a table needs")


def table_json(table: Any, *, staged: bool = False) -> bytes:
    location = None if staged else table.metadata_location
    found = TableResponse(metadata=table.metadata, **{"metadata-location": location})
    return found.model_dump_json(by_alias=True).encode()
