"""A Jupyter kernel whose cells run in a sandbox: each start makes a fresh one. Needs `cellbox[jupyter]`.

Jupyter finds it as `cellbox`. `CELLBOX_TEMPLATE` names what the sandbox is made from.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

from cellbox._version import __version__
from cellbox.client._sync._context import CodeContext
from cellbox.client._sync._sandbox import Sandbox
from cellbox.errors import CellboxError
from cellbox.protocol.commands import StderrChunk, StdoutChunk
from cellbox.protocol.contexts import CellDisplay, Execution
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE

_TTL_SECONDS = 24 * 3600.0


class CellboxKernel(Kernel):
    """Passes cells on to a sandbox and shows what comes of them."""

    implementation = "cellbox"
    implementation_version = __version__
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}
    banner = "Python in a Cellbox sandbox"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._sandbox: Sandbox | None = None
        self._context: CodeContext | None = None

    def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Any = None,
        allow_stdin: bool = False,
        **_more: Any,
    ) -> dict[str, Any]:
        del store_history, user_expressions, allow_stdin
        try:
            execution = self._run(code, silent)
        except CellboxError as error:
            return self._failed(type(error).__name__, str(error), [str(error)], silent)
        if execution.error is not None:
            info = execution.error_info
            name, value = (info.name, info.value) if info is not None else ("KernelError", execution.error)
            return self._failed(name, value, execution.error.splitlines(), silent)
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    def do_interrupt(self) -> None:
        """Called from the control thread while a cell runs."""
        if self._context is not None:
            self._context.interrupt()

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        self.do_interrupt()
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def do_shutdown(self, restart: bool) -> dict[str, Any]:
        if self._sandbox is not None:
            self._sandbox.kill()
            self._sandbox = self._context = None
        return {"status": "ok", "restart": restart}

    def _run(self, code: str, silent: bool) -> Execution:
        if self._context is None:
            template = os.environ.get("CELLBOX_TEMPLATE") or DEFAULT_TEMPLATE
            self._sandbox = Sandbox.create(template, ttl_seconds=_TTL_SECONDS, metadata={"made_by": "jupyter"})
            self._context = self._sandbox.create_code_context()
        with self._context.stream(code, timeout_seconds=None) as events:
            for event in events:
                if isinstance(event, StdoutChunk | StderrChunk):
                    name = "stdout" if isinstance(event, StdoutChunk) else "stderr"
                    self._publish("stream", {"name": name, "text": event.chunk}, silent)
                elif isinstance(event, CellDisplay):
                    self._display(event, silent)
                else:
                    return event.execution
        raise AssertionError("a cell's stream ends with its last event or an exception")

    def _display(self, event: CellDisplay, silent: bool) -> None:
        data = {mime: json.loads(text) if mime.endswith("json") else text for mime, text in event.data.items()}
        content: dict[str, Any] = {"data": data, "metadata": {}}
        if event.info.is_main:
            self._publish("execute_result", {**content, "execution_count": self.execution_count}, silent)
        else:
            self._publish("display_data", content, silent)

    def _failed(self, name: str, value: str, traceback: list[str], silent: bool) -> dict[str, Any]:
        error = {"ename": name, "evalue": value, "traceback": traceback}
        self._publish("error", error, silent)
        return {"status": "error", "execution_count": self.execution_count, **error}

    def _publish(self, kind: str, content: dict[str, Any], silent: bool) -> None:
        if not silent:
            self.send_response(self.iopub_socket, kind, content)


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=CellboxKernel)
