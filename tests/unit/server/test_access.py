"""Who gets in: every route against every kind of key, browsers, other tenants, and the private socket."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import msgspec
import pytest

from cellbox.protocol import operations
from cellbox.server.routes import all_routes
from cellbox.server.routing import Route

ROUTES = {
    f"{route.operation.method} {prefix}{route.operation.path}": route
    for route in all_routes()
    for prefix in route.prefixes
}
BODIES: dict[str, Any] = {
    "create_token": {"label": "x"},
    "update_metadata": {"metadata": {}},
    "run_command": {"cmd": "echo"},
    "stream_command": {"cmd": "echo"},
    "run_in_shell": {"cmd": "echo"},
    "stream_in_shell": {"cmd": "echo"},
    "run_code": {"code": ""},
    "stream_code": {"code": ""},
    "run_once": {"code": ""},
    "make_directory": {"path": "/x"},
    "resize_pool": {"sizes": {}},
    "move_file": {"source": "/x", "target": "/y"},
    "set_file_mode": {"path": "/x", "mode": 0o644},
}
SANDKASTEN = "sandkasten_"
"""Begins the names of the operations of that wire, whose errors have a shape of their own."""
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
PUBLIC = {"get_health", "get_version", "get_metrics"}
ADMIN = {"delete_template", "build_template", "list_builds", "get_build", "get_build_logs", "get_pool", "resize_pool"}


def ask(client: httpx2.Client, route: Route, sandbox_id: str = "nope", **options: Any) -> httpx2.Response:
    operation = route.operation
    path = route.prefixes[-1] + operation.path.format(
        sandbox_id=sandbox_id,
        snapshot_id="s",
        context_id="k1",
        shell_id="s1",
        name="base",
        build_id="b",
        prefix="pds_00000000",
        session_id=sandbox_id,
        workspace_id="w",
    )
    query = {"path": "/x"} if "path" in operation.query else {}
    if operation.is_websocket:
        options["headers"] = [*HANDSHAKE.items(), *(options.get("headers") or [])]
    json = BODIES.get(operation.name) if route.decoder is not None else None
    return client.request(operation.method, path, params=query, json=json, **options)


def test_every_operation_has_a_route_and_a_scope_that_was_thought_about() -> None:
    routed = {route.operation.name: route.operation.scope for route in all_routes()}
    assert set(operations.OPERATIONS) | PUBLIC == {name for name in routed if not name.startswith(SANDKASTEN)}
    assert {name for name, scope in routed.items() if scope == "public"} == PUBLIC
    assert {name for name, scope in routed.items() if scope == "admin"} == ADMIN


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("none", "missing bearer token"),
        ("empty", "missing bearer token"),
        ("basic", "missing bearer token"),
        ("malformed", "invalid api token"),
        ("wrong", "invalid api token"),
        ("almost", "invalid api token"),
        ("revoked", "invalid api token"),
        ("expired", "the api token has expired"),
    ],
)
def test_no_route_but_the_public_ones_opens_to_a_bad_key(server: Any, kind: str, detail: str) -> None:
    good = server.new_key("ada")
    revoked = server.new_key("ada")
    server.call(lambda: server.control.keys.revoke(revoked[:12]))
    expired = server.new_key("ada", expires_in_days=1e-9)
    time.sleep(0.001)
    header = {
        "none": None,
        "empty": "Bearer",
        "basic": f"Basic {good}",
        "malformed": "Bearer \xff\x00é".replace("\x00", ""),
        "wrong": "Bearer pds_" + "0" * 40,
        "almost": f"Bearer {good[:-1]}{'0' if good[-1] != '0' else '1'}",
        "revoked": f"Bearer {revoked}",
        "expired": f"Bearer {expired}",
    }[kind]
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    with server.client(key=None) as client:
        for name, route in ROUTES.items():
            answer = ask(client, route, headers=headers)
            if route.operation.name in PUBLIC:
                assert answer.status_code == 200, name
                continue
            body = answer.json()
            if route.operation.name.startswith(SANDKASTEN):
                assert (answer.status_code, body["error_code"]) == (401, "UNAUTHORIZED"), name
                continue
            assert (answer.status_code, body["error"], body["detail"]) == (401, "unauthorized", detail), name
            assert body["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"


def test_admin_routes_refuse_other_keys(server: Any) -> None:
    with server.client(server.new_key("ada")) as client:
        for route in ROUTES.values():
            if route.operation.scope == "admin":
                assert ask(client, route).status_code == 403, route.operation.name


def test_foreign_and_unknown_sandboxes_look_the_same(server: Any) -> None:
    with server.client(server.new_key("ada")) as ada, server.client(server.new_key("eve")) as eve:
        sandbox_id = ada.post("/v1/sandboxes", json={}).json()["id"]
        unknown = "00000000-0000-4000-8000-000000000000"
        assert eve.get("/v1/sandboxes").json() == []
        for name, route in ROUTES.items():
            if "{sandbox_id}" not in name:
                continue
            foreign, missing = ask(eve, route, sandbox_id), ask(eve, route, unknown)
            assert foreign.status_code == missing.status_code == 404, name
            assert {**foreign.json(), "request_id": ""} == {**missing.json(), "request_id": ""}, name
        assert ada.get(f"/v1/sandboxes/{sandbox_id}").status_code == 200


def test_a_key_may_come_in_three_ways(server: Any) -> None:
    key = server.new_key("ada")
    with server.client(key=None) as client:
        for options in (
            {"headers": {"authorization": f"bearer {key}"}},
            {"headers": {"x-api-key": key}},
            {"params": {"access_token": key}},
        ):
            assert client.get("/v1/me", **options).json()["user_id"] == "ada"


def test_only_admins_make_keys_for_others(server: Any) -> None:
    with server.client(server.new_key("ada")) as ada, server.client() as admin:
        assert ada.post("/v1/me/tokens", json={"label": "x", "owner": "eve"}).status_code == 403
        assert ada.post("/v1/me/tokens", json={"label": "x", "is_admin": True}).status_code == 403
        assert ada.post("/v1/me/tokens", json={"label": "x", "owner": "ada"}).status_code == 200
        eves = admin.post("/v1/me/tokens", json={"label": "x", "owner": "eve"}).json()
        assert eves["token"].startswith(eves["prefix"])
        assert ada.delete(f"/v1/me/tokens/{eves['prefix']}").status_code == 404
        assert {item["owner"] for item in ada.get("/v1/me/tokens").json()["items"]} == {"ada"}
        assert {item["owner"] for item in admin.get("/v1/me/tokens").json()["items"]} == {"admin", "ada", "eve"}
        assert admin.delete(f"/v1/me/tokens/{eves['prefix']}").status_code == 204


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "localhost.evil.test",
        "127.0.0.1.nip.io",
        "0.0.0.0:80",
        "2130706433",
        "127.1",
        "",
        "[::ffff:127.0.0.1]",
    ],
)
def test_a_rebound_host_name_is_refused(server: Any, host: str) -> None:
    with server.client() as client:
        answer = client.get("/v1/me", headers={"host": host})
        assert answer.status_code in (400, 403)
        assert answer.status_code == 403 or not host


def test_the_names_of_loopback_are_good_with_any_port(server: Any) -> None:
    with server.client() as client:
        for host in ("localhost", "127.0.0.1:1234", "LOCALHOST:80", "[::1]:8080"):
            assert client.get("/v1/me", headers={"host": host}).status_code == 200, host


def test_configured_hosts_replace_the_defaults(start_server: Any) -> None:
    with start_server(allowed_hosts=("cellbox.example", "other.example:8080")).client() as client:
        statuses = {
            host: client.get("/healthz", headers={"host": host}).status_code
            for host in ("cellbox.example", "cellbox.example:99", "other.example:8080", "other.example", "localhost")
        }
    assert list(statuses.values()) == [200, 200, 200, 403, 403]


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.test", "https://good.example.evil.test", "http://good.example", ""]
)
def test_pages_of_other_origins_are_refused(start_server: Any, origin: str) -> None:
    with start_server(allowed_origins=("https://good.example",)).client() as client:
        for method in ("GET", "POST", "OPTIONS"):
            answer = client.request(method, "/v1/sandboxes", headers={"origin": origin})
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_an_allowed_origin_may_call(start_server: Any) -> None:
    with start_server(allowed_origins=("https://good.example",)).client() as client:
        preflight = client.options("/v1/sandboxes", headers={"origin": "https://good.example"})
        assert preflight.status_code == 204
        answer = client.post("/v1/sandboxes", json={}, headers={"origin": "https://good.example"})
        assert answer.status_code == 201
        assert answer.headers["access-control-allow-origin"] == "https://good.example"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_json_that_a_form_could_send_is_refused(server: Any, content_type: str) -> None:
    with server.client() as client:
        answer = client.post("/v1/sandboxes", content=b'{"ttl_seconds":5}', headers={"content-type": content_type})
        assert answer.status_code == 415
        assert client.get("/v1/sandboxes").json() == []


def test_the_private_socket_needs_no_key(start_server: Any, tmp_path: Any) -> None:
    path = tmp_path / "run" / "cellbox.sock"
    start_server(listen=f"unix:{path}")
    assert path.stat().st_mode & 0o777 == 0o600
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), base_url="http://cellbox") as client:
        assert client.get("/v1/me").json()["is_admin"] is True
        assert client.get("/v1/me").json()["auth_method"] == "socket"
        assert client.post("/v1/sandboxes", json={}).status_code == 201
        assert client.get("/v1/me", headers={"authorization": "Bearer pds_0"}).status_code == 401


def test_a_client_of_another_user_needs_a_key_on_the_socket(
    start_server: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellbox.server.peer._peer_uid", lambda _socket: 12345)
    start_server(listen=f"unix:{tmp_path}/cellbox.sock")
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=f"{tmp_path}/cellbox.sock"), base_url="http://x") as client:
        assert client.get("/v1/me").status_code == 401


def test_keys_appear_in_no_answer_and_no_log(server: Any, capfd: pytest.CaptureFixture[str]) -> None:
    key = server.new_key("ada")
    with server.client(key=None) as client:
        client.get("/v1/me", params={"access_token": key})
        client.get("/v1/nope", params={"access_token": key})
        client.get("/v1/me", headers={"authorization": f"Bearer {key}x"})
    captured = capfd.readouterr()
    assert key[12:] not in captured.out + captured.err
    rows = msgspec.json.encode(server.call(lambda: server.control.keys.list()))
    assert key.encode() not in rows
