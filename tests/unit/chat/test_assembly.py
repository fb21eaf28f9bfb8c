"""Pieces of an answer are put together in one way only, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellbox.chat.assembly import Assembly
from cellbox.chat.messages import ToolCall
from cellbox.errors import ModelError


def assemble(*deltas: dict[str, Any], finish: str | None = "stop") -> Assembly:
    assembly = Assembly()
    for delta in deltas:
        assembly.feed(json.dumps({"choices": [{"delta": delta}]}))
    if finish:
        assembly.feed(json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]}))
    return assembly


def piece(**fields: Any) -> dict[str, Any]:
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {"tool_calls": [{**fields, "function": function}]}


def call(name: str, tool: str, arguments: str) -> ToolCall:
    return ToolCall(id=name, name=tool, arguments=arguments)


def test_text_comes_out_piece_by_piece_and_whole() -> None:
    assembly = Assembly()
    pieces = [assembly.feed(json.dumps({"choices": [{"delta": {"content": text}}]})) for text in ("a", "", "ü")]
    assembly.feed("[DONE]")
    assert pieces == ["a", "", "ü"]
    assert assembly.reply().message.content == "aü"


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        (
            [
                piece(index=0, id="a", name="one", arguments='{"x'),
                piece(index=1, id="b", name="two", arguments="{"),
                piece(index=0, arguments='":1}'),
                piece(index=1, id="", arguments="}"),
            ],
            [call("a", "one", '{"x":1}'), call("b", "two", "{}")],
        ),
        (  # whole calls that all have the number 0
            [piece(index=0, id="a", name="one", arguments="{}"), piece(index=0, id="b", name="two", arguments="{}")],
            [call("a", "one", "{}"), call("b", "two", "{}")],
        ),
        (  # no number, no id
            [piece(name="one", arguments='{"x'), piece(arguments='":1}'), piece(name="two", arguments="")],
            [call("call_0", "one", '{"x":1}'), call("call_1", "two", "{}")],
        ),
        (  # the same id for all
            [piece(index=0, id="a", name="one", arguments="{}"), piece(index=1, id="a", name="two", arguments="{}")],
            [call("a", "one", "{}"), call("call_1_a", "two", "{}")],
        ),
    ],
)
def test_calls_are_assembled_however_a_service_cuts_them(
    deltas: list[dict[str, Any]], expected: list[ToolCall]
) -> None:
    assert assemble(*deltas, finish="tool_calls").reply().message.tool_calls == expected


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "complete"), ("length", "length"), ("content_filter", "filtered")]
)
def test_the_end_is_told(reason: str, finish: str) -> None:
    assert assemble({"content": "x"}, finish=reason).reply().finish == finish


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "null",
        '"x"',
        '{"choices": 1}',
        '{"choices": [{"delta": {"content": 1}}]}',
        '{"error": {"message": "full"}}',
    ],
)
def test_what_makes_no_sense_is_an_error(data: str) -> None:
    with pytest.raises(ModelError):
        Assembly().feed(data)


def test_an_answer_that_breaks_off_is_an_error() -> None:
    with pytest.raises(ModelError, match="broke off"):
        assemble({"content": "x"}, finish=None).reply()


def test_a_tool_without_a_name_is_an_error() -> None:
    with pytest.raises(ModelError, match="without naming it"):
        assemble(piece(index=0, id="a", arguments="{}")).reply()


def test_answers_and_calls_without_end_are_given_up() -> None:
    with pytest.raises(ModelError, match="no end"):
        assemble(*[{"content": "x" * 1_000_000}] * 9)
    with pytest.raises(ModelError, match="at once"):
        assemble(*[piece(index=at, name="one") for at in range(200)])
