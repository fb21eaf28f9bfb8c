"""LangChain's conformance suite for sandbox backends of deepagents, as it is published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests

from cellbox import Sandbox
from cellbox.integrations.deepagents import CellboxSandbox

CHANGED_IN_DEEPAGENTS_0_7 = {
    "test_glob": "absolute",
    "test_glob_basic_pattern": "absolute",
    "test_glob_with_directories": "absolute",
    "test_glob_hidden_files_explicitly": "absolute",
    "test_glob_with_character_class": "absolute",
    "test_glob_with_question_mark": "absolute",
    "test_write_existing_file_fails": "write overwrites",
}
"""The suite (langchain-tests 1.1.9) expects deepagents 0.6: relative paths of `glob`, and `write` refusing a file that
exists. Both methods are the framework's own, not ours."""


@pytest.fixture(autouse=True)
def expect_what_the_suite_has_not_followed(request: pytest.FixtureRequest) -> None:
    reason = CHANGED_IN_DEEPAGENTS_0_7.get(request.node.originalname)
    if reason is not None:
        request.node.add_marker(pytest.mark.xfail(reason=f"deepagents 0.7: {reason}", strict=True))


@pytest.fixture(scope="module")
def shared() -> Iterator[SandboxBackendProtocol]:
    with Sandbox.create(ttl_seconds=900) as sandbox:
        yield CellboxSandbox(sandbox)


class TestCellboxSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, shared: SandboxBackendProtocol) -> SandboxBackendProtocol:
        return shared
