"""A model that plays a part, for `cellbox chat --demo`: no key, no network, and real tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

from cellbox.chat.messages import Message, ToolCall
from cellbox.chat.model import Event, Reply
from cellbox.integrations.tool_specs import ToolSpec

QUESTION = "How likely is it that two people of a room share a birthday? Simulate it and draw the curve."
_END = (
    "My script ends here: I am no model, only a demonstration. Set `OPENAI_API_KEY`, or `--base-url` for a service of "
    "your own, and run `cellbox chat` without `--demo`."
)
_SECONDS_BETWEEN_WORDS = 0.008
_SIMULATE = """\
import numpy as np

rng = np.random.default_rng(7)
sizes = range(5, 61, 5)


def shares_a_birthday(people, trials=20_000):
    days = np.sort(rng.integers(0, 365, (trials, people)), axis=1)
    return (np.diff(days, axis=1) == 0).any(axis=1).mean()


simulated = {people: shares_a_birthday(people) for people in sizes}
for people, share in simulated.items():
    print(f"{people:3} people: {share:6.1%}")
"""
_DRAW = """\
import matplotlib.pyplot as plt

exact = {n: 1 - np.prod(1 - np.arange(n) / 365) for n in range(1, 61)}
plt.figure(figsize=(7, 4))
plt.plot(exact.keys(), exact.values(), label="exact")
plt.plot(simulated.keys(), simulated.values(), "o", label="simulated, 20,000 rooms each")
plt.axhline(0.5, color="grey", linewidth=0.8)
plt.xlabel("people in the room")
plt.ylabel("chance that two share a birthday")
plt.legend()
plt.show()
min(n for n, chance in exact.items() if chance > 0.5)
"""


class ScriptedModel:
    """Answers every question with the same small investigation, and reports what its code really found."""

    name = "demo"

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> AsyncGenerator[Event, None]:
        """Say the next part of the script: which one is next follows from the conversation."""
        del instructions, tools
        answers: list[str] = []
        turns = 0
        for message in messages:
            if message.role == "user":
                answers, turns = [], turns + 1
            elif message.role == "tool":
                answers.append(message.content)
        text, code = _part(turns, answers)
        for word in text.split(" "):
            yield f"{word} "
            await asyncio.sleep(_SECONDS_BETWEEN_WORDS)
        calls = (
            [ToolCall(id=f"demo-{len(answers)}", name="run_python", arguments=json.dumps({"code": code}))]
            if code
            else []
        )
        yield Reply(message=Message(role="assistant", content=text, tool_calls=calls))

    async def aclose(self) -> None:
        """There is nothing to close."""


def _part(turns: int, answers: Sequence[str]) -> tuple[str, str]:
    """What to say, and what to run then."""
    if turns > 1:
        return _END, ""
    if not answers:
        return "I will fill rooms of several sizes with random birthdays and count.", _SIMULATE
    if len(answers) == 1:
        return "Now the exact curve beside it. The variables of the first cell are still there.", _DRAW
    return _report(answers), ""


def _report(answers: Sequence[str]) -> str:
    smallest = next((line.strip() for line in answers[1].splitlines() if line.strip().isdecimal()), "")
    rows = [line.split(" people:") for line in answers[0].splitlines() if " people:" in line]
    if not smallest or not rows:
        return f"That did not work out:\n\n```\n{answers[-1][:2000]}\n```"
    table = "\n".join(f"| {people.strip()} | {share.strip()} |" for people, share in rows[::2])
    return (
        f"**From {smallest} people on it is more likely than not.** The simulation agrees with the exact curve:\n\n"
        f"| people | simulated |\n|---:|---:|\n{table}\n\nThe chart shows both."
    )
