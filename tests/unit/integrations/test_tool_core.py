"""What needs no sandbox: answers, artifacts, descriptions, records of sessions."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import pytest

from cellbox import Execution
from cellbox.integrations import Artifact, ArtifactStore, Facts, Limits, SessionRecord, SqliteSessionStore, ToolAnswer
from cellbox.integrations.answers import clip, from_command, from_execution
from cellbox.integrations.tool_specs import ARGUMENTS, DEFAULT_TOOLS, tool_specs
from cellbox.protocol import contexts
from cellbox.protocol.commands import CommandResult

PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big")


def test_long_text_loses_its_middle_and_says_how_much() -> None:
    text = clip("a" * 600 + "b" * 400, 100)
    assert text.startswith("a" * 67) and text.endswith("b" * 33)
    assert "900 of 1000 characters were left out here" in text and "print a summary" in text
    assert "after 5 bytes that the sandbox had dropped" in clip("a" * 200, 100, dropped_bytes=5)
    assert clip("short", 100) == "short"


def test_images_become_references_and_never_text() -> None:
    shown: list[tuple[Artifact, bytes]] = []
    store = ArtifactStore(on_artifact=lambda artifact, content: shown.append((artifact, content)))
    value = contexts.Execution(
        results=[
            {"image/png": base64.b64encode(PNG).decode(), "text/plain": "<Figure>"},
            {"text/plain": "41", "text/html": "<b>41</b>"},
        ],
        result_info=[contexts.ResultInfo(), contexts.ResultInfo(is_main=True)],
    )
    answer = from_execution(Execution(value), Limits(), store)
    assert answer.result == "41"
    assert answer.text == "41\n[chart-1.png (image/png, 640 × 480 pixels) was shown to the user, not to you.]"
    assert shown == [(answer.artifacts[0], PNG)]
    assert store.get("chart-1.png") == store.get("chart-1") == shown[0]


def test_a_store_keeps_to_its_limit_and_writes_files(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "charts", limit_bytes=100)
    for _ in range(3):
        store.put("image/svg+xml", b"x" * 60)
    assert [artifact.id for artifact in store.list()] == ["chart-3"] and store.get("chart-1") is None
    assert sorted(path.name for path in (tmp_path / "charts").iterdir()) == [
        "chart-1.svg",
        "chart-2.svg",
        "chart-3.svg",
    ]


def test_lost_state_timeouts_and_dropped_results_are_told() -> None:
    value = contexts.Execution(
        error="cell timeout after 2s", outcome="killed", reason="timeout", state_kept=False, dropped_results=3
    )
    answer = from_execution(Execution(value), Limits(), ArtifactStore())
    assert answer.is_error and "endless loop" in answer.hint
    assert "variables and imports are gone" in answer.text and "3 results were dropped" in answer.text
    command = from_command(CommandResult(stdout="half", stderr="", exit_code=137, reason="timeout"), Limits(), 5)
    assert command.stdout == "half" and command.error.startswith("The command exceeded its limit of 5 seconds")


def test_a_failing_command_is_no_error_of_the_tool() -> None:
    answer = from_command(CommandResult(stdout="", stderr="no such file", exit_code=2), Limits(), 5)
    assert not answer.is_error and answer.text == "stderr:\nno such file\n[exit code 2]"


def test_an_answer_is_never_empty_and_its_data_holds_what_is_there() -> None:
    assert ToolAnswer().text == "(done; it printed nothing)"
    assert ToolAnswer(stdout="x", exit_code=0).structured() == {"stdout": "x"}


def test_descriptions_say_what_the_sandbox_really_is() -> None:
    facts = Facts(installed=["pandas", "deno"], memory_mb=512, cpu=2)
    described = {spec.name: spec.description for spec in tool_specs(facts, Limits(stdout=1234))}
    assert set(described) == set(DEFAULT_TOOLS) - {"install_packages"}  # there is no network to install from
    text = described["run_python"]
    for part in (
        "pandas, deno",
        "512 MB",
        "no network",
        "/workspace",
        "State persists",
        "1234 characters",
        "traceback",
    ):
        assert part in text
    assert "install_packages" in {spec.name for spec in tool_specs(Facts(has_network=True))}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_parameters_are_one_closed_object_without_references(name: str) -> None:
    (spec,) = tool_specs(Facts(has_network=True), only=[name])
    assert spec.parameters["type"] == "object" and spec.parameters["additionalProperties"] is False
    assert "$ref" not in str(spec.parameters)
    assert all(one.get("description") for one in spec.parameters["properties"].values())


def test_an_unknown_tool_is_named() -> None:
    with pytest.raises(ValueError, match="No tool 'fly'; there are run_python"):
        tool_specs(Facts(), only=["fly"])


def record(sandbox: str, key: str = "a", compartment: str = "", used_at: float = 1.0) -> SessionRecord:
    return SessionRecord(key=key, compartment=compartment, sandbox_id=sandbox, used_at=used_at)


def test_of_many_claims_one_stands_and_all_learn_which(tmp_path: Path) -> None:
    stores = [SqliteSessionStore(tmp_path / "sessions.sqlite") for _ in range(8)]
    stands: list[str] = []
    threads = [
        threading.Thread(
            target=lambda at=at, store=store: stands.append(store.claim(record(f"s{at}"), instead_of=None).sandbox_id)
        )
        for at, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stands) == 8 and len(set(stands)) == 1
    assert stores[0].claim(record("late"), instead_of="not-this-one").sandbox_id == stands[0]
    assert stores[0].claim(record("next"), instead_of=stands[0]).sandbox_id == "next"
    for store in stores:
        store.close()


def test_records_end_by_key_compartment_and_age(tmp_path: Path) -> None:
    store = SqliteSessionStore(tmp_path / "sessions.sqlite")
    for sandbox, key, compartment, used_at in (("1", "a", "", 1.0), ("2", "a", "x", 5.0), ("3", "b", "", 5.0)):
        store.claim(record(sandbox, key, compartment, used_at), instead_of=None)
    assert [one.sandbox_id for one in store.remove("a", "x")] == ["2"]
    assert [one.sandbox_id for one in store.prune(2.0)] == ["1"]
    store.update(SessionRecord(key="b", compartment="", sandbox_id="3", context_id="k", used_at=9.0))
    assert store.get("b", "") == SessionRecord(key="b", compartment="", sandbox_id="3", context_id="k", used_at=9.0)
    assert [one.sandbox_id for one in store.remove("b")] == ["3"] and store.get("b", "") is None
    store.close()
