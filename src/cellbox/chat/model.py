"""What the agent needs of a language model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

from cellbox.chat.messages import Message
from cellbox.integrations.tool_specs import ToolSpec
from cellbox.protocol.values import Value

Finish = Literal["complete", "length", "filtered"]


class Waiting(Value):
    """The service asked for patience; it is asked again after `seconds`."""

    seconds: float
    reason: str


class Reply(Value):
    """The whole of what the model said, with the tools it asked for. The last event of a reply."""

    message: Message
    finish: Finish = "complete"
    """`length`: it was cut at the model's own limit. `filtered`: the service withheld the rest."""


Event = str | Waiting | Reply
"""A piece of text, a wait before it begins, or the end."""


class Model(Protocol):
    """A language model that can be given tools."""

    @property
    def name(self) -> str:
        """As its service calls it."""
        ...

    def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> AsyncGenerator[Event, None]:
        """Ask for the next contribution; ends with exactly one `Reply`.

        Raises:
            ModelError: The service refused, failed, or broke off. What came before is then not to be kept.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...
