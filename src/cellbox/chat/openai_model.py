"""A model behind any service that speaks OpenAI's chat completions API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import httpx2
import msgspec
from httpx2 import EventSource

from cellbox._version import __version__
from cellbox.chat.assembly import Assembly
from cellbox.chat.messages import Message, to_wire
from cellbox.chat.model import Event, Waiting
from cellbox.client._errors import retry_after_seconds
from cellbox.errors import ConfigurationError, ModelError
from cellbox.integrations.tool_specs import ToolSpec
from cellbox.protocol.values import Value

OPENAI_URL = "https://api.openai.com/v1"
_TRIES = 4
_MAX_WAIT_SECONDS = 60.0
_MAX_ERROR_BYTES = 64 * 1024
_TIMEOUT = httpx2.Timeout(30.0, read=300.0)  # a model may think for minutes before its first word
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class OpenAIModel:
    """A model of a compatible service.

    Args:
        name: As the service calls it. Empty: the only one that it has.
        base_url: Up to and with `/v1`.
        api_key: Sent as a bearer token; empty for services that want none.

    Raises:
        ConfigurationError: The address makes no sense.
    """

    def __init__(self, name: str, *, base_url: str = OPENAI_URL, api_key: str = "") -> None:
        self.name = name
        self._base_url = base_url.rstrip("/")
        headers = {"User-Agent": f"cellbox-chat/{__version__}"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key.strip()}"
        try:
            url = httpx2.URL(self._base_url)
            self._http = httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT)
        except (httpx2.InvalidURL, UnicodeError, ValueError) as error:
            raise ConfigurationError(f"The model's address or key makes no sense: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigurationError(
                f"The model's address {base_url!r} makes no sense: write http://HOST:PORT/v1 or https://…"
            )

    async def find_name(self) -> None:
        """Take the only model that the service has, if none is named.

        Raises:
            ConfigurationError: It has none or several; the message names them.
            ModelError: It can't be asked.
        """
        if self.name:
            return
        try:
            response = await self._http.get(f"{self._base_url}/models")
        except httpx2.HTTPError as error:
            raise ModelError(self._unreachable(error)) from error
        if response.status_code != 200:
            raise ModelError(self._refusal(response.status_code, response.content))
        try:
            names = [model.id for model in msgspec.json.decode(response.content, type=_Models).data]
        except msgspec.DecodeError:
            names = []
        if len(names) != 1:
            offered = f"it has {', '.join(sorted(names)[:20])}" if names else "it lists none"
            raise ConfigurationError(f"Name a model of {self._base_url} with --model: {offered}.")
        self.name = names[0]

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> AsyncGenerator[Event, None]:
        """Ask for the next contribution. What is only busy is asked again, before its first word.

        Raises:
            ModelError: The service refused, failed, or broke off.
        """
        body = msgspec.json.encode(self._body(instructions, messages, tools))
        for trial in range(_TRIES):
            request = self._http.build_request(
                "POST",
                f"{self._base_url}/chat/completions",
                content=body,
                headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
            )
            try:
                response = await self._http.send(request, stream=True)
            except httpx2.HTTPError as error:
                if trial + 1 == _TRIES or not isinstance(error, httpx2.NetworkError | httpx2.ConnectTimeout):
                    raise ModelError(self._unreachable(error)) from error
                wait = Waiting(seconds=2.0**trial / 2, reason="The model's service can't be reached")
            else:
                try:
                    if response.status_code == 200:
                        async with aclosing(self._events(response)) as events:
                            async for event in events:
                                yield event
                        return
                    wait = await self._wait_or_raise(response, trial)
                finally:
                    await response.aclose()
            yield wait
            await asyncio.sleep(wait.seconds)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[Event, None]:
        assembly = Assembly()
        try:
            async for event in EventSource(response):
                if event.data and (text := assembly.feed(event.data)):
                    yield text
                if assembly.is_done:
                    break
        except httpx2.HTTPError as error:
            raise ModelError(
                f"The connection to the model broke off in the middle of its answer: {_told(error)}"
            ) from error
        yield assembly.reply()

    async def _wait_or_raise(self, response: httpx2.Response, trial: int) -> Waiting:
        status = response.status_code
        try:
            content = await _beginning(response)
        except httpx2.HTTPError:
            content = b""
        asked = retry_after_seconds(response.headers.get("retry-after", ""))
        refusal = self._refusal(status, content)
        if status not in _PASSING or _failure_code(content) == "insufficient_quota":
            raise ModelError(refusal)
        if asked is not None and asked > _MAX_WAIT_SECONDS:
            raise ModelError(f"{refusal}. It asks to wait for {asked:.0f} s: try again then")
        if trial + 1 == _TRIES:
            raise ModelError(f"{refusal}. It was asked {_TRIES} times: try again later")
        return Waiting(seconds=asked if asked is not None else 2.0**trial / 2, reason=refusal)

    def _body(self, instructions: str, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [{"role": "system", "content": instructions}, *map(to_wire, messages)],
            "stream": True,
        }
        if tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in tools
            ]
        return body

    def _refusal(self, status: int, content: bytes) -> str:
        told = _failure_text(content)
        because = f": {told}" if told else ""
        if status in (401, 403):
            key = f"Set OPENAI_API_KEY to a key of {self._base_url}"
            return f"The model's service refused the key ({status}){because}. {key}"
        if status == 404:
            return f"There is no model {self.name!r} at {self._base_url}, or the address is wrong (404){because}"
        if status == 429:
            return f"The model's service takes no more requests now (429){because}"
        return f"The model's service answered with {status}{because}"

    def _unreachable(self, error: Exception) -> str:
        return f"The model's service at {self._base_url} can't be reached: {_told(error)}"


class _Named(Value):
    id: str


class _Models(Value):
    data: list[_Named]


class _Failure(Value):
    message: str = ""
    code: str | int | None = None


class _FailureBody(Value):
    error: _Failure | str = ""
    detail: str = ""
    message: str = ""


async def _beginning(response: httpx2.Response) -> bytes:
    """What an error says, without trusting its length."""
    content = b""
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _MAX_ERROR_BYTES:
            break
    return content[:_MAX_ERROR_BYTES]


def _failure(content: bytes) -> _FailureBody | None:
    try:
        return msgspec.json.decode(content, type=_FailureBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _failure_text(content: bytes) -> str:
    body = _failure(content)
    if body is None:
        return ""
    told = body.error if isinstance(body.error, str) else body.error.message
    return " ".join((told or body.message or body.detail).split())[:500].rstrip(".")


def _failure_code(content: bytes) -> str | int | None:
    body = _failure(content)
    return body.error.code if body is not None and isinstance(body.error, _Failure) else None


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
