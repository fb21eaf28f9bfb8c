"""What the exit codes of `cellbox` mean, and which error ends in which."""

from __future__ import annotations

from enum import IntEnum

from cellbox import errors


class Exit(IntEnum):
    """Documented in `docs/cli.md`; scripts rely on them. `exec` and `run` end with their command's own code."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTHENTICATION = 4
    DAEMON_UNAVAILABLE = 5
    ENGINE_UNFIT = 6
    TIMEOUT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class UsageError(errors.CellboxError):
    """The command line asks for something that makes no sense; the message says what to change."""


_MEANINGS: tuple[tuple[type[errors.CellboxError], Exit, str], ...] = (
    (UsageError, Exit.USAGE, "`cellbox COMMAND --help` shows what is possible."),
    (errors.ConfigurationError, Exit.USAGE, ""),
    (errors.UnknownTemplateError, Exit.NOT_FOUND, "`cellbox template list` shows what there is."),
    (errors.InvalidRequestError, Exit.USAGE, ""),
    (errors.TemplateNotFoundError, Exit.NOT_FOUND, "`cellbox template list` shows what there is."),
    (errors.SandboxNotFoundError, Exit.NOT_FOUND, "`cellbox ps` shows your sandboxes."),
    (errors.WorkspaceNotFoundError, Exit.NOT_FOUND, "`cellbox workspace ls` shows your workspaces."),
    (errors.KeyNotFoundError, Exit.NOT_FOUND, "`cellbox key list` shows the keys."),
    (errors.NotFoundError, Exit.NOT_FOUND, ""),
    (errors.AuthenticationError, Exit.AUTHENTICATION, "Set CELLBOX_API_KEY to a key made with `cellbox key create`."),
    (errors.PermissionDeniedError, Exit.AUTHENTICATION, ""),
    (
        errors.DaemonUnavailableError,
        Exit.DAEMON_UNAVAILABLE,
        "Start one with `cellbox serve`, or unset CELLBOX_API_URL to use a private one.",
    ),
    (errors.ConnectionLostError, Exit.DAEMON_UNAVAILABLE, "Whether it was done is unknown: look before you repeat it."),
    (errors.EngineUnavailableError, Exit.ENGINE_UNFIT, "`cellbox doctor` tells what is missing and how to fix it."),
    (errors.CapacityError, Exit.FAILURE, "Kill a sandbox (`cellbox ps`, `cellbox kill`) or try again later."),
    (errors.GuestError, Exit.FAILURE, "`cellbox logs` may tell more."),
)


def meaning(error: errors.CellboxError) -> tuple[Exit, str]:
    """The exit code of an error, and what the user can do about it."""
    for kind, code, advice in _MEANINGS:
        if isinstance(error, kind):
            return code, advice
    return Exit.FAILURE, ""
