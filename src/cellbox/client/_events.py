"""Server-sent events, from bytes to protocol values. No I/O; time is linear in the bytes, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from cellbox.client._codec import decode_json
from cellbox.client._errors import decode_envelope, error_from_envelope, partial_event
from cellbox.errors import APIError
from cellbox.protocol.commands import CommandExited
from cellbox.protocol.contexts import CellEnded
from cellbox.protocol.files import WatchEnded
from cellbox.protocol.operations import Operation
from cellbox.protocol.shells import ShellCommandEnded
from cellbox.protocol.templates import BuildEnded

_TERMINAL = (CommandExited, ShellCommandEnded, CellEnded, BuildEnded, WatchEnded)


def is_terminal(event: object) -> bool:
    """Whether nothing may follow."""
    return isinstance(event, _TERMINAL)


def needs_terminal(operation: Operation[Any, Any]) -> bool:
    """Whether a stream of this operation that just ends was cut off. A followed log may simply be over."""
    return any(issubclass(shape, _TERMINAL) for shape in _shapes(operation.events).values())


class EventReader:
    """Turns chunks of a `text/event-stream` body into the events of one operation."""

    def __init__(self, operation: Operation[Any, Any]) -> None:
        self._operation = operation
        self._shapes = _shapes(operation.events)
        self._pending: list[bytes] = []
        self._event = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield every event that this chunk completes.

        Raises:
            APIError: The daemon reports that the operation failed, or an event makes no sense.
        """
        first, *rest = chunk.split(b"\n")
        self._pending.append(first)
        for piece in rest:
            line = b"".join(self._pending) if len(self._pending) > 1 else self._pending[0]
            self._pending = [piece]
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def _line(self, line: bytes) -> Any:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            self._event = line[6:].strip().decode("utf-8", "replace")
        elif not line:
            name, self._event = self._event, ""
            data, self._data = self._data, []
            if data:
                return self._decode(name, b"\n".join(data))
        return None

    def _decode(self, name: str, data: bytes) -> Any:
        if name == "error":
            envelope = decode_envelope(data)
            finished = partial_event(envelope)
            if finished is not None:
                return finished
            raise error_from_envelope(500, envelope, None)
        shape = self._shapes.get(name)
        if shape is None:
            return None  # a newer daemon's
        try:
            return decode_json(data, shape)
        except (ValueError, msgspec.DecodeError) as error:
            raise APIError(
                f"An event of {self._operation.name} is not what a Cellbox daemon sends", detail=str(error)
            ) from error


def _shapes(events: Any) -> dict[str, type[Any]]:
    """Name of the event → its type, from a union of tagged values."""
    members: tuple[Any, ...] = get_args(events) or (events,)
    return {str(member.__struct_config__.tag): member for member in members}
