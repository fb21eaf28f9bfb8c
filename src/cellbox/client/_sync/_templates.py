"""The catalogue of templates, and builds of new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from cellbox.client._sync._connection import Connection, Content
from cellbox.client._sync._stream import EventStream
from cellbox.client._codec import decode_answer
from cellbox.client._compat import chunks, notify
from cellbox.client._multipart import RecipeForm
from cellbox.errors import TemplateBuildError
from cellbox.protocol import operations
from cellbox.protocol.templates import BuildEvent, BuildLine, TemplateBuild, TemplateInfo

_SILENCE_SECONDS = 1800.0
"""A package download may print nothing for long."""


class Templates:
    """What sandboxes are made from."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> list[TemplateInfo]:
        """All templates, built or not."""
        return self._connection.call(operations.list_templates)

    def get(self, name: str) -> TemplateInfo:
        """One template, by name or alias.

        Raises:
            TemplateNotFoundError: There is none.
        """
        return self._connection.call(operations.get_template, ids={"name": name})

    def delete(self, name: str) -> None:
        """Remove a template from the catalogue. Sandboxes made from it live on.

        Raises:
            TemplateNotFoundError: There is none.
        """
        self._connection.call(operations.delete_template, ids={"name": name})

    def build(
        self,
        folder: str | Path,
        *,
        name: str | None = None,
        replace: bool = False,
        on_line: Callable[[str], object] | None = None,
    ) -> TemplateBuild:
        """Build a template from a folder with a `recipe.toml` and wait until it is done.

        Args:
            name: In place of the recipe's own.
            replace: Take the place of a template of this name.
            on_line: Gets every line of the build's log.

        Raises:
            InvalidRequestError: The folder or its recipe makes no sense.
            TemplateExistsError: There is one of this name already, and `replace` is not set.
            TemplateBuildError: A step failed; `details["log_tail"]` shows why.
        """
        return self._follow(self.start_build(folder, name=name, replace=replace), on_line)

    def ensure(self, name: str, *, on_line: Callable[[str], object] | None = None) -> TemplateInfo:
        """Return a template, which is built first if it is one of Cellbox's own and not built yet.

        Args:
            name: Or an alias.
            on_line: Gets every line of the build's log.

        Raises:
            TemplateNotFoundError: There is none.
            TemplateBuildError: A step failed; `details["log_tail"]` shows why.
        """
        template = self.get(name)
        if template.is_built:
            return template
        form = urlencode({"name": template.name}).encode()
        build = self._send_build(form, ((b"Content-Type", b"application/x-www-form-urlencoded"),))
        self._follow(build, on_line)
        return self.get(template.name)

    def start_build(self, folder: str | Path, *, name: str | None = None, replace: bool = False) -> TemplateBuild:
        """Send a recipe folder and return as soon as its build is queued."""
        form = RecipeForm(folder, {"replace": str(replace).lower(), **({"name": name} if name else {})})
        return self._send_build(chunks(form.chunks()), form.headers)

    def _send_build(self, content: Content, headers: tuple[tuple[bytes, bytes], ...]) -> TemplateBuild:
        operation = operations.build_template
        with self._connection.open(
            operation, content, headers=headers, timeout_seconds=_SILENCE_SECONDS
        ) as response:
            return decode_answer(operation, response.status, "", response.read())

    def _follow(self, build: TemplateBuild, on_line: Callable[[str], object] | None) -> TemplateBuild:
        tail: list[str] = []
        with self.build_events(build.id) as events:
            for event in events:
                if isinstance(event, BuildLine):
                    tail = [*tail[-49:], event.line]
                    notify(on_line, event.line)
                else:
                    build = event.build
        if build.status != "done":
            reason = build.error or "the log says why"
            raise TemplateBuildError(f"Building {build.name!r} failed: {reason}", details={"log_tail": "\n".join(tail)})
        return build

    def builds(self) -> list[TemplateBuild]:
        """Recent builds."""
        return self._connection.call(operations.list_builds)

    def get_build(self, build_id: str) -> TemplateBuild:
        """One build.

        Raises:
            NotFoundError: There is none.
        """
        return self._connection.call(operations.get_build, ids={"build_id": build_id})

    def build_events(self, build_id: str) -> EventStream[BuildEvent]:
        """The log of a build from its first line, then how it ended."""
        return self._connection.stream(
            operations.get_build_logs,
            query=[("follow", True)],
            timeout_seconds=_SILENCE_SECONDS,
            ids={"build_id": build_id},
        )

# Generated from _async/_templates.py by tools/unasync.py: edit that, and run it again.
