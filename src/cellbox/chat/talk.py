"""An open conversation with all that belongs to it: what was said, its sandbox, its tools, its agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cellbox.chat.agent import DEFAULT_CONTEXT_CHARACTERS, Agent, Observer
from cellbox.chat.history import Conversation, History
from cellbox.chat.model import Model
from cellbox.client._async._sandbox import AsyncSandbox
from cellbox.integrations._async._sessions import AsyncSessions
from cellbox.integrations._async._tools import AsyncSandboxTools
from cellbox.integrations.artifacts import ArtifactStore
from cellbox.protocol.files import FileWritten
from cellbox.protocol.values import Value


class TalkOptions(Value):
    """What is the same in every conversation of a program."""

    sandboxes: Path
    """File that remembers which sandbox belongs to which conversation."""
    charts: Path
    """Directory for charts."""
    ttl_seconds: float = 1800
    """How long a sandbox outlives its last use."""
    context_characters: int = DEFAULT_CONTEXT_CHARACTERS
    is_kept: bool = True
    """Whether conversations are meant to outlive the program."""


class Talk:
    """A conversation that goes on. Its sandbox is made when it is first needed, found again if it lives, or replaced.

    Args:
        conversation: Open in this program.
        observer: Is told what happens.
    """

    def __init__(
        self, conversation: Conversation, history: History, model: Model, observer: Observer, options: TalkOptions
    ) -> None:
        self.conversation = conversation
        self._history = history
        artifacts = ArtifactStore(options.charts)
        self._sessions = AsyncSessions(
            options.sandboxes,
            template=conversation.template,
            ttl_seconds=options.ttl_seconds,
            workspace=conversation.workspace or None,
            artifacts=lambda _key, _compartment: artifacts,
        )
        self._session = self._sessions.session(conversation.key)
        self._tools = AsyncSandboxTools(self._session)
        self.agent = Agent(
            model,
            self._tools,
            observer,
            history.messages(conversation),
            keep=partial(history.add, conversation),
            context_characters=options.context_characters,
        )
        self._uploads: list[str] = []
        if conversation.model != model.name:
            history.note_model(conversation, model.name)

    def check(self) -> None:
        """Ask the daemon what the sandbox will hold, so that a fault of the set-up shows before the model is asked.

        Raises:
            TemplateNotFoundError: There is no such template.
            DaemonUnavailableError: No daemon answers.
        """
        self._tools.facts()

    async def answer(self, text: str) -> bool:
        """Let the model answer the user. It is told of what was uploaded since. As `Agent.answer`."""
        uploads, self._uploads = self._uploads, []
        return await self.agent.answer("\n\n".join([text, *(f"[Uploaded: {path}]" for path in uploads)]))

    async def sandbox(self) -> AsyncSandbox:
        """The sandbox, for the user's own use of it. Errors are those of creating one."""
        return await self._session.sandbox()

    async def upload(self, local: Path | bytes, remote: str) -> FileWritten:
        """Copy a local file, or its content, into the sandbox. Errors are those of `filesystem.upload`."""
        files = (await self.sandbox()).filesystem
        written = await (files.write(remote, local) if isinstance(local, bytes) else files.upload(local, remote))
        self._uploads.append(f"{written.path}, {written.bytes} bytes")
        return written

    def clear(self) -> None:
        """Forget what was said. The sandbox and its files stay."""
        self._history.clear(self.conversation)
        self.agent.messages.clear()

    async def aclose(self, *, keep: bool = True) -> None:
        """Let go of it. The conversation can be opened again, and its sandbox lives on for its TTL.

        Args:
            keep: False kills the sandbox and forgets the conversation, as happens to one in which nothing was said.
        """
        try:
            if keep and self.agent.messages:
                self._history.close_conversation(self.conversation.number)
            else:
                self._history.forget(self.conversation)
                await self._session.end()
        finally:
            await self._sessions.aclose()
