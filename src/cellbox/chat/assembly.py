"""Puts the pieces of a streamed chat completion together, and believes none of them.

Services that call themselves compatible differ: some number their tool calls, some send whole calls without a number,
some say nothing at the end. What can be understood in one way only is taken; the rest is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cellbox.chat.messages import Message, ToolCall
from cellbox.chat.model import Finish, Reply
from cellbox.errors import ModelError
from cellbox.protocol.values import Value

_MAX_STREAM_CHARACTERS = 8_000_000
_MAX_CALLS = 128
_FINISHES: dict[str, Finish] = {"length": "length", "content_filter": "filtered"}


class _FunctionPiece(Value):
    name: str | None = None
    arguments: str | None = None


class _CallPiece(Value):
    index: int | None = None
    id: str | None = None
    function: _FunctionPiece | None = None


class _Delta(Value):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(Value):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Failure(Value):
    message: str | None = None


class _Chunk(Value):
    choices: list[_Choice] = []
    error: _Failure | str | None = None


class _Call:
    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class Assembly:
    """One reply in the making."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._finish_reason: str | None = None
        self._size = 0
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether the service said that nothing follows."""
        return self._is_done

    def feed(self, data: str) -> str:
        """Take the data of one event in, and return the text that it adds to the answer.

        Raises:
            ModelError: It makes no sense, tells of a failure, or is more than anyone would read.
        """
        if data.strip() == "[DONE]":
            self._is_done = True
            return ""
        try:
            chunk = msgspec.json.decode(data.encode("utf-8", "replace"), type=_Chunk)
        except msgspec.DecodeError as error:
            raise ModelError(f"The model's service sent a piece of an answer that makes no sense: {error}") from None
        if chunk.error is not None:
            told = chunk.error if isinstance(chunk.error, str) else chunk.error.message
            raise ModelError(f"The model's service failed in the middle of its answer: {told or 'it did not say why'}")
        self._size += len(data)
        if self._size > _MAX_STREAM_CHARACTERS:
            raise ModelError("The model's answer has no end: it was given up")
        return "".join(self._take(choice) for choice in chunk.choices[:1])

    def reply(self) -> Reply:
        """The whole, once the stream has ended.

        Raises:
            ModelError: It ended too early, or a tool call lacks its name.
        """
        if not self._is_done and self._finish_reason is None:
            raise ModelError("The connection to the model broke off in the middle of its answer")
        calls: list[ToolCall] = []
        for call in self._calls:
            if not call.name:
                raise ModelError("The model asked for a tool without naming it")
            calls.append(
                ToolCall(id=_unused(call.id, calls), name=call.name, arguments="".join(call.arguments) or "{}")
            )
        message = Message(role="assistant", content="".join(self._text), tool_calls=calls)
        return Reply(message=message, finish=_FINISHES.get(self._finish_reason or "", "complete"))

    def _take(self, choice: _Choice) -> str:
        if choice.finish_reason:
            self._finish_reason = choice.finish_reason
        if choice.delta is None:
            return ""
        for piece in choice.delta.tool_calls or ():
            self._take_call(piece)
        text = (choice.delta.content or "") + (choice.delta.refusal or "")
        if text:
            self._text.append(text)
        return text

    def _take_call(self, piece: _CallPiece) -> None:
        call = self._find(piece)
        if piece.id and not call.id:
            call.id = piece.id
        if piece.function is not None:
            if piece.function.name and not call.name:
                call.name = piece.function.name
            if piece.function.arguments:
                call.arguments.append(piece.function.arguments)

    def _find(self, piece: _CallPiece) -> _Call:
        """The call that a piece belongs to: by number, else by id, else the one that is being written."""
        for call in reversed(self._calls):
            if piece.index is not None and call.index == piece.index and piece.id in (None, "", call.id):
                return call
            if piece.index is None and piece.id and call.id == piece.id:
                return call
        is_first = piece.function is not None and bool(piece.function.name)
        if piece.index is None and not piece.id and not is_first and self._calls:
            return self._calls[-1]
        if len(self._calls) >= _MAX_CALLS:
            raise ModelError(f"The model asked for more than {_MAX_CALLS} tools at once")
        self._calls.append(_Call(piece.index))
        return self._calls[-1]


def _unused(name: str, calls: Sequence[ToolCall]) -> str:
    """An id that no earlier call of the reply has: some services leave it out, or give all the same one."""
    taken = {call.id for call in calls}
    return name if name and name not in taken else f"call_{len(calls)}_{name}".rstrip("_")
