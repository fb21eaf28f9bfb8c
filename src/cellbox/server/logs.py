"""The daemon's log: one event, one line, on standard error; everything that uses `logging` comes out the same way."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from cellbox.control.settings import Settings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(settings: Settings) -> None:
    """Set up structlog and the standard library's logging for this process."""
    level = _LEVELS[settings.log_level]
    is_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if is_json:
        render: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_to_json)]
    else:
        render = [_without_control_characters, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries have little to say that is of use: uvicorn's start and stop lines are ours to tell.
    root.setLevel(max(level, logging.WARNING))


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether a record of uvicorn's says what our own log does not: why an answer was broken off is told there."""
    return not record.getMessage().startswith("ASGI callable returned without completing response")


def _to_json(event: EventDict, **_options: Any) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=repr).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode({key: ascii(value) for key, value in event.items()}).decode()


def _without_control_characters(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Make text from outside harmless to the terminal of whoever reads the log (attack: escape sequences)."""
    return {
        key: value if not isinstance(value, str) or value.isprintable() or key == "exception" else ascii(value)
        for key, value in event.items()
    }
