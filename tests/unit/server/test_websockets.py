"""WebSockets: who gets in, what is bounded, how they end; and commands multiplexed over one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import cellbox
from cellbox import errors
from cellbox.protocol import operations
from cellbox.protocol.sandboxes import CreateSandbox
from cellbox.server.upgraded import MAX_MESSAGE_BYTES

from .conftest import ADMIN_KEY

Open = Callable[..., ClientConnection]


@pytest.fixture
def sandbox_id(server: Any) -> str:
    return server.call(lambda: server.control.sandboxes.create("admin", CreateSandbox())).id


@pytest.fixture
def open_socket(server: Any, sandbox_id: str) -> Iterator[Open]:
    opened = contextlib.ExitStack()

    def start(path: str = "", key: str = ADMIN_KEY, headers: dict[str, str] | None = None) -> ClientConnection:
        sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        target = path or f"/v1/sandboxes/{sandbox_id}/exec/ws"
        url = server.url.replace("http", "ws", 1) + target
        return opened.enter_context(connect(url, additional_headers=sent, proxy=None, compression=None))

    with opened:
        yield start


def ask(socket: ClientConnection, **message: object) -> None:
    socket.send(json.dumps(message))


def answer(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(timeout=5))


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"key": ""}, 401),
        ({"key": "pds_" + "0" * 40}, 401),
        ({"headers": {"Origin": "https://evil.example"}}, 403),
        ({"headers": {"Host": "rebound.example"}}, 403),
        ({"path": "/v1/sandboxes/nope/exec/ws"}, 404),
        ({"path": "/v1/sandboxes/nope/exec/ws?x=1"}, 400),
        ({"path": "/v1/nowhere"}, 404),
        ({"path": "/v1/sandboxes"}, 405),
    ],
)
def test_a_refused_handshake_is_answered_like_any_request(open_socket: Open, options: Any, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_socket(**options)
    response = refused.value.response
    assert response.status_code == status
    body = json.loads(response.body or b"")
    assert body["error"]
    assert response.headers["x-request-id"] == body["request_id"]


def test_a_plain_get_is_told_to_upgrade(server: Any, sandbox_id: str) -> None:
    with server.client() as client:
        response = client.get(f"/v1/sandboxes/{sandbox_id}/exec/ws")
        assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")


def test_a_key_in_the_query_opens_too(server: Any, sandbox_id: str, open_socket: Open) -> None:
    socket = open_socket(f"/v1/sandboxes/{sandbox_id}/exec/ws?access_token={ADMIN_KEY}", key="")
    ask(socket, id=1, cmd="true")
    assert answer(socket)["exit"] == 0


def test_another_owner_sees_nothing(server: Any, open_socket: Open) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_socket(key=server.new_key("eve"))
    assert refused.value.response.status_code == 404


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no json", 4400),
        ('{"id": 1, "cmd": "echo", "colour": "red"}', 4400),
        ('{"cmd": "echo"}', 4400),
        (b"\x00\x01", 4400),
        ("x" * (MAX_MESSAGE_BYTES + 1), 1009),
    ],
    ids=["text", "unknown field", "no id", "binary", "too large"],
)
def test_a_malformed_message_ends_the_connection_with_a_code(open_socket: Open, message: Any, code: int) -> None:
    socket = open_socket()
    socket.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=5)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code


def test_a_revoked_key_ends_its_connections(server: Any, open_socket: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellbox.server.api.REVOCATION_SECONDS", 0.05)
    key = server.new_key("admin")
    socket = open_socket(key=key)
    server.call(lambda: server.control.keys.revoke(key[:12]))
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=5)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4401
    assert closed.value.rcvd.reason.startswith("unauthorized: ")


# ------------------------------------------------------------------------------------------------ commands, multiplexed


def test_commands_run_side_by_side_under_the_clients_ids(open_socket: Open) -> None:
    socket = open_socket()
    ask(socket, id="slow", cmd="sleep 30")
    ask(socket, id=7, cmd="echo a")
    assert answer(socket) == {"id": 7, "stream": "stdout", "data": "a"}
    assert answer(socket) == {"id": 7, "exit": 0, "duration_ms": 0.0, "reason": "exited", "survivors": 0}
    ask(socket, id=7, cmd="false")
    assert answer(socket)["exit"] == 1, "an id is free again once its end was told"
    ask(socket, id="slow", cmd="echo")
    assert answer(socket)["code"] == "conflict"
    ask(socket, id="slow", cancel=True)
    assert answer(socket) == {"id": "slow", "error": "the command was cancelled", "code": "cancelled"}


def test_what_goes_wrong_with_one_command_leaves_the_others_alone(open_socket: Open) -> None:
    socket = open_socket()
    ask(socket, id=1, cmd="sleep 30", timeout_seconds=0.05)
    assert answer(socket) == {"id": 1, "error": "command timeout after 0.05s", "code": "command_timeout"}
    ask(socket, id=2, cmd="fail")
    assert answer(socket)["code"] == "sandbox_not_running"
    ask(socket, id=3, cmd="")
    assert answer(socket)["code"] == "invalid_request"
    for number in range(64):
        ask(socket, id=f"n{number}", cmd="sleep 30")
    ask(socket, id=4, cmd="true")
    assert answer(socket)["code"] == "quota_exceeded"


def test_commands_end_with_their_connection(server: Any, sandbox_id: str, open_socket: Open) -> None:
    socket = open_socket()
    ask(socket, id=1, cmd="sleep 30")
    ask(socket, id=2, cmd="true")
    answer(socket)
    commands = server.call(lambda: server.control.sandboxes.find("admin", sandbox_id)).commands
    socket.close()
    server.wait_for(commands.cancelled)


def test_the_sdk_meets_the_same_errors_over_a_websocket(server: Any, sandbox_id: str) -> None:
    with cellbox.Client(api_url=server.url, api_key=ADMIN_KEY) as client:
        connection = client._connection
        with connection.websocket(operations.run_commands, ids={"sandbox_id": sandbox_id}) as socket:
            socket.send_json({"id": 1, "cmd": "true"})
            assert json.loads(socket.receive() or "")["exit"] == 0
            with pytest.raises(TimeoutError):
                socket.receive(timeout_seconds=0.01)
            socket.send("no json")
            with pytest.raises(errors.InvalidRequestError, match="JSON"):
                socket.receive()
        with (
            pytest.raises(errors.SandboxNotFoundError),
            connection.websocket(operations.run_commands, ids={"sandbox_id": "nope"}),
        ):
            pass
    with (
        cellbox.Client(api_url="http://127.0.0.1:1", api_key="x") as client,
        pytest.raises(errors.DaemonUnavailableError),
        client._connection.websocket(operations.run_commands, ids={"sandbox_id": "x"}),
    ):
        pass
