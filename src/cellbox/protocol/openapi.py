"""The OpenAPI document, derived from the operations. Committed as `openapi.json`: its diff shows API changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from cellbox.protocol.account import ErrorBody
from cellbox.protocol.operations import Operation

_REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_REQUIRED_QUERY = {("read_file", "path"), ("write_file", "path"), ("remove_file", "path"), ("stat_file", "path")}
_NoneType = type(None)


def openapi_document(operations: Iterable[Operation[Any, Any]], *, version: str) -> dict[str, Any]:
    """Describe `operations`; paths are relative to `/v1`."""
    operations = list(operations)
    types = list(dict.fromkeys([ErrorBody, *(kind for operation in operations for kind in _types(operation))]))
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=lambda _kind: {"description": "Any JSON value."}, ref_template=_REFERENCE
    )
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cellbox", "version": version, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/v1"}],
        "security": [{"bearer": []}, {"header": []}],
        "paths": paths,
        "components": {
            "schemas": {name: components[name] for name in sorted(components)},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
            "responses": {"Error": {"description": "Anything else.", "content": _json(by_type[ErrorBody])}},
        },
    }


def _types(operation: Operation[Any, Any]) -> list[Any]:
    types = [kind for kind in (operation.body, operation.result) if kind not in (bytes, str, _NoneType)]
    return [*types, *_members(operation.events), *_members(operation.messages)]


def _members(union: Any) -> tuple[Any, ...]:
    """The JSON documents of a union; binary messages have no schema."""
    members = () if union is None else get_args(union) or (union,)
    return tuple(member for member in members if member is not bytes)


def _describe(operation: Operation[Any, Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
              for name in _PARAMETER.findall(operation.path)),
            *({"name": name, "in": "query", "required": (operation.name, name) in _REQUIRED_QUERY,
               "schema": {"type": "string"}} for name in operation.query),
        ],
        "responses": {
            "101" if operation.is_websocket else str(operation.status): _success(operation, schemas),
            "default": {"$ref": "#/components/responses/Error"},
        },
    }  # fmt: skip
    if operation.is_websocket:
        described["x-websocket"] = {
            "client": {"oneOf": [schemas[member] for member in _members(operation.messages)]},
            "server": {"oneOf": [schemas[member] for member in _members(operation.events)]},
            "binary": {"client": _has_binary(operation.messages), "server": _has_binary(operation.events)},
        }
    if operation.body is bytes:
        described["requestBody"] = {"required": True, "content": {"*/*": {}}}
    elif operation.body is not _NoneType:
        described["requestBody"] = {"content": _json(schemas[operation.body])}
    if operation.scope == "public":
        described["security"] = []
    elif operation.scope != "user":
        described["x-scope"] = operation.scope
    return described


def _has_binary(union: Any) -> bool:
    return bytes in (get_args(union) or (union,))


def _success(operation: Operation[Any, Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    if operation.is_websocket:
        return {"description": "Upgraded to a WebSocket, see `x-websocket`."}
    content: dict[str, Any] = {}
    if operation.result is bytes:
        content["application/octet-stream"] = {}
    elif operation.result is str:
        content["text/plain"] = {"schema": {"type": "string"}}
    elif operation.result is not _NoneType:
        content |= _json(schemas[operation.result])
    if events := _members(operation.events):
        content["text/event-stream"] = {"schema": {"oneOf": [schemas[event] for event in events]}}
    return {"description": "Success.", **({"content": content} if content else {})}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
