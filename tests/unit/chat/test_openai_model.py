"""What a service does wrong becomes a sentence, and what is only busy is asked again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellbox.chat.messages import Message
from cellbox.chat.model import Event, Reply, Waiting
from cellbox.chat.openai_model import OpenAIModel
from cellbox.errors import ConfigurationError, ModelError

from ...chat_service import ChatService, Refuse, Say, chat_service

HELLO = [Message(role="user", content="hello")]


@pytest.fixture(scope="module")
def running() -> Iterator[ChatService]:
    with chat_service() as service:
        yield service


@pytest.fixture
def service(running: ChatService) -> ChatService:
    running.script, running.requests, running.keys, running.models = [], [], [], ["a-model"]
    return running


async def ask(url: str, name: str = "m") -> list[Event]:
    model = OpenAIModel(name, base_url=url, api_key="secret")
    try:
        return [event async for event in model.reply("be kind", HELLO, [])]
    finally:
        await model.aclose()


async def test_an_answer_is_streamed(service: ChatService) -> None:
    service.script = [Say(["he", "llo"])]
    assert await ask(service.url) == ["he", "llo", Reply(message=Message(role="assistant", content="hello"))]
    assert service.requests[0]["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
    ]
    assert service.keys == ["Bearer secret"]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_service_is_asked_again_when_it_says(service: ChatService, status: int) -> None:
    service.script = [Refuse(status, "too many", {"Retry-After": "0"}), Say(["yes"])]
    waiting, *rest = await ask(service.url)
    assert isinstance(waiting, Waiting)
    assert waiting.seconds == 0
    assert "too many" in waiting.reason
    assert rest[0] == "yes"


@pytest.mark.parametrize(
    ("acts", "told"),
    [
        ([Refuse(401, "bad key")], "OPENAI_API_KEY"),
        ([Refuse(404, "no such model")], "no model 'm'"),
        ([Refuse(400, "too long")], "answered with 400: too long"),
        ([Refuse(429, "slow", {"Retry-After": "3600"})], "wait for 3600 s"),
        ([Refuse(503, "down", {"Retry-After": "0"})] * 4, "asked 4 times"),
        ([Say(["half"], finish=None)], "broke off"),
    ],
)
async def test_failures_are_sentences(service: ChatService, acts: list[Say | Refuse], told: str) -> None:
    service.script = list(acts)
    with pytest.raises(ModelError, match=told):
        await ask(service.url)
    assert not service.script


async def test_a_service_that_is_not_there(service: ChatService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellbox.chat.openai_model._TRIES", 1)
    with pytest.raises(ModelError, match="can't be reached"):
        await ask("http://127.0.0.1:9/v1")


async def test_the_only_model_needs_no_name(service: ChatService) -> None:
    model = OpenAIModel("", base_url=service.url)
    await model.find_name()
    assert model.name == "a-model"
    model.name, service.models = "", ["one", "two"]
    with pytest.raises(ConfigurationError, match="--model: it has one, two"):
        await model.find_name()
    await model.aclose()


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://host/v1", "http://host:port/v1", "https://"])
def test_an_address_that_makes_no_sense(url: str) -> None:
    with pytest.raises(ConfigurationError, match="makes no sense"):
        OpenAIModel("m", base_url=url)
