"""Reads the daemon's settings: command line over environment over file over defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cellbox.control.settings import Secret, Settings
from cellbox.errors import ConfigurationError

ENVIRONMENT_PREFIX = "CELLBOX_"
CONFIG_VARIABLE = "CELLBOX_CONFIG"
SYSTEM_CONFIG = Path("/etc/cellbox/cellbox.toml")
_LISTS = ("allowed_hosts", "allowed_origins", "pool")


def load_settings(
    config_file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Put the settings together.

    The file is `config_file`, else `CELLBOX_CONFIG`, else `/etc/cellbox/cellbox.toml` if there is one. `overrides`
    are what the command line says; None means that it says nothing. Raises `ConfigurationError`, which names the
    setting and where it came from.
    """
    environment = os.environ if environment is None else environment
    settings = _from_file(_config_file(config_file, environment))
    for name in Settings.__struct_fields__:
        text = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if text is not None:
            value = [part.strip() for part in text.split(",") if part.strip()] if name in _LISTS else text
            settings[name] = _checked({name: value}, f"{ENVIRONMENT_PREFIX}{name.upper()}")[name]
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    settings |= _checked(given, "the command line")
    return msgspec.convert(settings, Settings)


def _config_file(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    if given is None and environment.get(CONFIG_VARIABLE):
        given = Path(environment[CONFIG_VARIABLE])
    if given is None and SYSTEM_CONFIG.exists():
        given = SYSTEM_CONFIG
    return given


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"can't read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from error
    return _checked(document, str(path))


def _checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check values against the types and bounds of `Settings` and return them converted."""
    try:
        settings = msgspec.convert(dict(values), Settings, strict=False, dec_hook=_from_text)
    except msgspec.ValidationError as error:
        # Of a secret that is malformed nothing must be shown.
        reason = re.sub(r" - at `\$\.(\w+)`", r", in `\1`", str(error))
        raise ConfigurationError(f"{source}: {reason}") from None
    return {name: getattr(settings, name) for name in values}


def _from_text(kind: type, value: object) -> object:
    if kind in (Path, Secret) and isinstance(value, str | Path):
        return kind(value).expanduser() if kind is Path else kind(value)
    raise TypeError(f"{kind.__name__} expected")
