"""A chat service: each user has a sandbox that no other user can reach, and finds it again after a restart.

    pip install 'cellbox[pydantic-ai]' fastapi uvicorn
    uvicorn --factory examples.chat_service:create_app

Pydantic AI and FastAPI. `USERS` stands in for your own sign-in.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel
from pydantic_ai import Agent

from cellbox.integrations import AsyncSession, AsyncSessions
from cellbox.integrations.pydantic_ai import code_toolset

USERS = {"token-of-alice": "alice", "token-of-bob": "bob"}
INSTRUCTIONS = "Answer with code that you run. Variables and files of the conversation are still there."


class Question(BaseModel):
    text: str


class Answer(BaseModel):
    text: str
    charts: list[str]


def create_app(model: Any = "openai:gpt-5.2", database: Path = Path("sessions.sqlite")) -> FastAPI:
    """The application. Sandboxes outlive it: the database remembers whose is which."""
    sessions = AsyncSessions(database, ttl_seconds=1800)
    agent = Agent(model, deps_type=AsyncSession, instructions=INSTRUCTIONS, toolsets=[code_toolset()])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with sessions:
            yield

    app = FastAPI(lifespan=lifespan)

    def session_of(authorization: Annotated[str, Header()] = "") -> AsyncSession:
        """The key comes from who signed in, never from what the request says."""
        user = USERS.get(authorization.removeprefix("Bearer "))
        if user is None:
            raise HTTPException(401)
        return sessions.session(user)

    Session = Annotated[AsyncSession, Depends(session_of)]  # noqa: N806

    @app.post("/chat")
    async def chat(question: Question, session: Session) -> Answer:
        before = len(session.artifacts.list())
        result = await agent.run(question.text, deps=session)
        return Answer(text=result.output, charts=[chart.id for chart in session.artifacts.list()[before:]])

    @app.get("/charts/{chart_id}")
    async def chart(chart_id: str, session: Session) -> Response:
        found = session.artifacts.get(chart_id)
        if found is None or not found[0].is_viewable:
            raise HTTPException(404)
        return Response(found[1], media_type=found[0].mime_type, headers={"X-Content-Type-Options": "nosniff"})

    @app.delete("/chat", status_code=204)
    async def end(session: Session) -> None:
        await session.end()

    return app
