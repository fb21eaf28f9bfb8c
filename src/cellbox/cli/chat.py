"""`cellbox chat`: talk to a model that has a sandbox."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cellbox.cli.about import Dashable, Flag
from cellbox.cli.exits import Exit, UsageError
from cellbox.cli.output import say
from cellbox.cli.run import upload_pairs
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE

if TYPE_CHECKING:
    from cellbox.chat.history import Conversation, History
    from cellbox.chat.model import Model
    from cellbox.chat.talk import TalkOptions

_NEEDED = ("anyio", "httpx2", "prompt_toolkit", "rich")
_DEFAULT_MODEL = "gpt-5-mini"
_CHARACTERS_PER_TOKEN = 4
_INLINE_BYTES = 20_000


def chat(
    prompt: Dashable | None = None,
    /,
    *,
    model: str | None = None,
    base_url: str | None = None,
    template: str | None = None,
    workspace: str | None = None,
    resume: int | None = None,
    new: Flag = False,
    keep: Flag = False,
    demo: Flag = False,
    upload: Annotated[list[str] | None, Parameter(name="--file")] = None,
    save_charts: Path = Path("charts"),
    ttl: float = 1800,
    context_tokens: int = 100_000,
) -> int:
    """Talk to a model that has a sandbox: it runs code there, you see what it does.

    Without PROMPT, on a terminal, it goes on with your last conversation, in the same sandbox if that still lives. With
    PROMPT, or with standard input from a pipe, it answers once: the answer alone goes to standard output, and sandbox
    and conversation are gone afterwards, unless --keep.

    The key comes from OPENAI_API_KEY. Any service with OpenAI's chat completions will do.

    Args:
        prompt: What you want. What comes through a pipe is added to it.
        model: By default OPENAI_MODEL, or the only one that the service has.
        base_url: Address of the service, up to and with `/v1`; by default OPENAI_BASE_URL, then OpenAI's.
        template: What the sandbox is made from.
        workspace: Name of a workspace to have at /workspace: its files outlive every sandbox.
        resume: Number of the conversation to go on with.
        new: Begin a new conversation.
        keep: Keep sandbox and conversation of a PROMPT.
        demo: Let a scripted model show it. Needs no key.
        upload: LOCAL:REMOTE, a file to copy into the sandbox first; may be given several times.
        save_charts: Directory for charts.
        ttl: Seconds that the sandbox outlives its last use.
        context_tokens: About how much of the conversation the model is given.
    """
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise UsageError("This needs a few more packages: pip install 'cellbox[chat]'.")
    if resume is not None and new:
        raise UsageError("Give either --resume or --new.")
    from cellbox.chat.history import History
    from cellbox.chat.talk import TalkOptions

    uploads = upload_pairs(upload)
    is_talk = prompt is None and sys.stdin.isatty() and sys.stdout.isatty()
    question, attached = ("", b"") if is_talk else _question(prompt, is_demo=demo)
    is_kept = not demo and (is_talk or keep or resume is not None)
    with ExitStack() as stack:
        directory = _directory() if is_kept else Path(stack.enter_context(TemporaryDirectory(prefix="cellbox-chat-")))
        runner = stack.enter_context(asyncio.Runner())
        speaker = _model(runner, model, base_url, is_demo=demo)
        stack.callback(lambda: runner.run(speaker.aclose()))
        history = stack.enter_context(closing(History(directory)))
        options = TalkOptions(
            sandboxes=directory / "sandboxes.db",
            charts=save_charts,
            ttl_seconds=ttl,
            context_characters=context_tokens * _CHARACTERS_PER_TOKEN,
            is_kept=is_kept,
        )
        conversation = _conversation(history, speaker, template, workspace, resume=resume, new=new or not is_talk)
        if is_talk:
            from cellbox.cli.chat_dialogue import Dialogue

            dialogue = Dialogue(runner, history, speaker, options, inputs=directory / "inputs")
            return dialogue.run(conversation, uploads)
        return _answer_once(runner, history, speaker, options, conversation, question, attached, uploads)


def _answer_once(
    runner: asyncio.Runner,
    history: History,
    model: Model,
    options: TalkOptions,
    conversation: Conversation,
    question: str,
    attached: bytes,
    uploads: list[tuple[Path, str]],
) -> int:
    from cellbox.chat.talk import Talk
    from cellbox.cli.chat_screen import PlainScreen, TerminalScreen

    async def answer() -> bool:
        for local, remote in uploads:
            await talk.upload(local, remote)
        if attached:
            await talk.upload(attached, "/workspace/stdin")
        return await talk.answer(question)

    screen = TerminalScreen(options.charts) if sys.stdout.isatty() else PlainScreen(options.charts)
    talk = Talk(conversation, history, model, screen, options)
    try:
        talk.check()
        is_whole = runner.run(answer())
    finally:
        screen.close()
        runner.run(talk.aclose(keep=options.is_kept))
    if options.is_kept:
        say(f"conversation: {conversation.number}")
    if not is_whole:
        say("The model asked for tools without end and was stopped.")
    return Exit.OK if is_whole else Exit.FAILURE


def _question(prompt: str | None, *, is_demo: bool) -> tuple[str, bytes]:
    """What is asked, and standard input where it is too much, or too little of a text, to be asked."""
    data = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    try:
        piped = data.decode().strip()
    except UnicodeDecodeError:
        piped = None
    if prompt is None or prompt == "-":
        if piped is None:
            raise UsageError("Standard input is no UTF-8 text: say what to do with it, cellbox chat PROMPT.")
        if not piped and is_demo:
            from cellbox.chat.scripted_model import QUESTION

            return QUESTION, b""
        if not piped:
            raise UsageError("There is nothing to answer: give a PROMPT, or run it on a terminal.")
        return piped, b""
    if piped is None or len(data) > _INLINE_BYTES:
        return prompt, data
    return (f"{prompt}\n\n{piped}" if piped else prompt), b""


def _model(runner: asyncio.Runner, name: str | None, base_url: str | None, *, is_demo: bool) -> Model:
    if is_demo:
        from cellbox.chat.scripted_model import ScriptedModel

        return ScriptedModel()
    from cellbox.chat.openai_model import OPENAI_URL, OpenAIModel

    url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    key = os.environ.get("OPENAI_API_KEY", "")
    if url == OPENAI_URL and not key:
        raise UsageError("Set OPENAI_API_KEY, or --base-url for a service of your own, or look at --demo first.")
    default = _DEFAULT_MODEL if url == OPENAI_URL else ""
    model = OpenAIModel(name or os.environ.get("OPENAI_MODEL") or default, base_url=url, api_key=key)
    runner.run(model.find_name())
    return model


def _conversation(
    history: History, model: Model, template: str | None, workspace: str | None, *, resume: int | None, new: bool
) -> Conversation:
    """The conversation to go on with, or a new one."""
    if resume is not None:
        try:
            found = history.open(resume)
        except KeyError:
            raise UsageError(f"There is no conversation {resume}; /chats lists them.") from None
        if found is None:
            raise UsageError(f"Conversation {resume} is open in another program.")
        if template not in (None, found.template) or workspace not in (None, found.workspace):
            history.close_conversation(resume)
            mounted = f"workspace {found.workspace}" if found.workspace else "no workspace"
            raise UsageError(f"Conversation {resume} has the template {found.template} and {mounted}.")
        return found
    for known in [] if new else history.list():
        fits = template in (None, known.template) and workspace in (None, known.workspace)
        if fits and (found := history.open(known.number)):
            return found
    return history.begin(model=model.name, template=template or DEFAULT_TEMPLATE, workspace=workspace or "")


def _directory() -> Path:
    """Where conversations are kept."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "cellbox" / "chat"
