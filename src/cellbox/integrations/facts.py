"""What a sandbox really is, for the descriptions that a model reads."""

from __future__ import annotations

from typing import Self

from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE, SandboxInfo
from cellbox.protocol.templates import TemplateInfo
from cellbox.protocol.values import Value


class Facts(Value):
    """The machine behind the tools."""

    template: str = DEFAULT_TEMPLATE
    installed: list[str] = []
    """Programs and packages worth naming to a model."""
    has_network: bool = False
    memory_mb: int = 0
    disk_mb: int = 0
    cpu: float = 0

    @classmethod
    def of_sandbox(cls, info: SandboxInfo) -> Self:
        """Those of a sandbox that runs."""
        return cls(
            template=info.template,
            installed=info.tools,
            has_network=info.network != "none",
            memory_mb=info.memory_mb,
            disk_mb=info.disk_mb,
            cpu=info.cpu,
        )

    @classmethod
    def of_template(
        cls,
        template: TemplateInfo,
        *,
        network: str = "none",
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        cpu: float | None = None,
    ) -> Self:
        """Those that a sandbox of this template will have."""
        return cls(
            template=template.name,
            installed=template.tools,
            has_network=network != "none",
            memory_mb=memory_mb or template.memory_mb,
            disk_mb=disk_mb or template.disk_mb,
            cpu=cpu or template.cpu,
        )

    @staticmethod
    def look_up(template: str, *, api_url: str | None = None, api_key: str | None = None) -> TemplateInfo:
        """Ask the daemon what a template holds. Blocks for the few milliseconds that takes.

        Raises:
            TemplateNotFoundError: There is none of that name.
            DaemonUnavailableError: No daemon answers.
        """
        from cellbox.client._sync._client import Client

        with Client(api_url, api_key) as client:
            return client.templates.get(template)

    def machine(self) -> str:
        """One sentence on sizes and network."""
        sizes = [
            f"{self.cpu:g} cores" if self.cpu else "",
            f"{self.memory_mb} MB of memory" if self.memory_mb else "",
            f"{self.disk_mb} MB of disk" if self.disk_mb else "",
        ]
        network = (
            "There is a network, within limits that its owner set."
            if self.has_network
            else "There is no network: nothing can be downloaded or installed."
        )
        listed = ", ".join(filter(None, sizes))
        return f"It has {listed}. {network}" if listed else network
