"""What a conversation consists of, and how it is made fit to be sent to a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from cellbox.protocol.values import Value

LEFT_OUT = "[This was left out to save room.]"
UNANSWERED = "This call was interrupted: how far it came is unknown."


class ToolCall(Value):
    """A tool that the model asked for."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class Message(Value):
    """One contribution to a conversation."""

    role: Literal["user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""
    """Of the call that a `tool` message answers."""


def repaired(messages: Iterable[Message]) -> list[Message]:
    """The conversation with one answer for every call, right behind it: without that, no model takes it.

    Calls go unanswered when a program ends in their middle. Answers to calls that nobody made are left out, and
    contributions of the user that follow each other become one.
    """
    whole: list[Message] = []
    open_calls: list[ToolCall] = []

    def close_calls() -> None:
        whole.extend(Message(role="tool", content=UNANSWERED, tool_call_id=call.id) for call in open_calls)
        open_calls.clear()

    for message in messages:
        if message.role == "tool":
            call = next((call for call in open_calls if call.id == message.tool_call_id), None)
            if call is not None:
                open_calls.remove(call)
                whole.append(message)
            continue
        close_calls()
        if message.role == "user" and whole and whole[-1].role == "user":
            whole[-1] = msgspec.structs.replace(message, content=f"{whole[-1].content}\n\n{message.content}")
        else:
            whole.append(message)
        open_calls.extend(message.tool_calls)
    close_calls()
    return whole


def fitted(messages: Sequence[Message], limit: int) -> list[Message]:
    """A repaired conversation in at most `limit` characters, as far as its last turn allows.

    What tools answered in earlier turns goes first, oldest first; then whole turns, oldest first. The last turn stays.
    """
    kept = list(messages)
    excess = sum(map(_size, kept)) - limit
    last_turn = max((at for at, message in enumerate(kept) if message.role == "user"), default=0)
    for at, message in enumerate(kept[:last_turn]):
        if excess <= 0:
            break
        if message.role == "tool" and len(message.content) > len(LEFT_OUT):
            excess -= len(message.content) - len(LEFT_OUT)
            kept[at] = msgspec.structs.replace(message, content=LEFT_OUT)
    turns = [at for at, message in enumerate(kept) if message.role == "user"]
    begin = 0
    while excess > 0 and len(turns) > 1:
        excess -= sum(map(_size, kept[begin : turns[1]]))
        begin = turns[1]
        del turns[0]
    return kept[begin:]


def to_wire(message: Message) -> dict[str, Any]:
    """The message in the shape of the chat completions API."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if not message.tool_calls:
        return {"role": message.role, "content": message.content}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def _size(message: Message) -> int:
    return len(message.content) + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
