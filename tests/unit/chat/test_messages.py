"""Whatever happened to a conversation, a model can be asked to go on with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellbox.chat.messages import LEFT_OUT, UNANSWERED, Message, ToolCall, fitted, repaired, to_wire


def user(text: str) -> Message:
    return Message(role="user", content=text)


def asks(*ids: str) -> Message:
    calls = [ToolCall(id=name, name="run_python", arguments="{}") for name in ids]
    return Message(role="assistant", tool_calls=calls)


def answers(name: str, text: str = "done") -> Message:
    return Message(role="tool", content=text, tool_call_id=name)


def test_a_call_without_an_answer_gets_one_in_its_place() -> None:
    whole = repaired([user("go"), asks("a", "b"), answers("a"), user("and now?")])
    assert whole == [user("go"), asks("a", "b"), answers("a"), answers("b", UNANSWERED), user("and now?")]


def test_an_answer_that_nobody_waits_for_is_left_out() -> None:
    assert repaired([user("go"), answers("a"), asks("b"), answers("b"), answers("b")]) == [
        user("go"),
        asks("b"),
        answers("b"),
    ]


def test_contributions_that_follow_each_other_become_one() -> None:
    assert repaired([user("one"), user("two")]) == [user("one\n\ntwo")]


@given(
    st.lists(
        st.one_of(
            st.builds(user, st.text(max_size=5)),
            st.builds(lambda ids: asks(*ids), st.lists(st.sampled_from("abc"), unique=True, max_size=3)),
            st.builds(answers, st.sampled_from("abcd")),
        ),
        max_size=12,
    ),
    st.integers(0, 60),
)
def test_every_conversation_becomes_one_that_a_model_takes(messages: list[Message], limit: int) -> None:
    open_calls: set[str] = set()
    for message in fitted(repaired(messages), limit):
        if message.role == "tool":
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id)
        else:
            assert not open_calls
            open_calls = {call.id for call in message.tool_calls}
    assert not open_calls


def test_what_tools_printed_long_ago_goes_first_then_whole_turns() -> None:
    messages = [user("one"), asks("a"), answers("a", "x" * 1000), user("two"), asks("b"), answers("b", "y" * 100)]
    assert fitted(messages, 10_000) == messages
    assert fitted(messages, 400) == [*messages[:2], answers("a", LEFT_OUT), *messages[3:]]
    assert fitted(messages, 120) == messages[3:]
    assert fitted(messages, 0) == messages[3:]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (user("hi"), {"role": "user", "content": "hi"}),
        (answers("a", "1"), {"role": "tool", "tool_call_id": "a", "content": "1"}),
        (
            asks("a"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "run_python", "arguments": "{}"}},
                ],
            },
        ),
    ],
)
def test_the_wire_has_the_shape_that_services_expect(message: Message, expected: object) -> None:
    assert to_wire(message) == expected
