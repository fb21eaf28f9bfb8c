# ruff: noqa: SLF001 - matplotlib has no public way to extend its choice of fonts
"""Glyphs for every script: each matplotlib text falls back, behind its own font, on the fonts that are installed."""

from __future__ import annotations

import os
from typing import Any

_FALLBACKS = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "Noto Sans Arabic",
    "Noto Naskh Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Lohit Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Thai",
    "Noto Sans Symbols",
    "Noto Sans Symbols 2",
    "Noto Emoji",
    "Symbola",
    "Unifont",
    "Unifont Upper",
)
_DIRECTORIES = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts")

_paths: list[str] | None = None
_seen: dict[str, float] = {}


def install() -> None:
    """Extend matplotlib's choice of fonts. Whatever family a style or a cell asks for comes first."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    find = manager._find_fonts_by_props

    def find_with_fallbacks(*args: Any, **options: Any) -> list[str]:
        found = find(*args, **options)
        return [*found, *(path for path in _fallback_paths() if path not in found)]

    manager._find_fonts_by_props = find_with_fallbacks
    _seen.update(_modified())


def refresh() -> None:
    """Take in fonts that were installed since, without matplotlib's stale cache."""
    global _paths
    now = _modified()
    if now == _seen:
        return
    from matplotlib import font_manager

    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:
            try:
                font_manager.fontManager.addfont(path)
            except Exception:  # a broken or bitmap font is no loss
                continue
    for cached in (font_manager.fontManager._findfont_cached, font_manager._get_font):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
    _seen.clear()
    _seen.update(now)
    _paths = None


def _fallback_paths() -> list[str]:
    global _paths
    if _paths is None:
        from matplotlib import font_manager

        by_name: dict[str, str] = {}
        for entry in font_manager.fontManager.ttflist:
            if entry.style == "normal" and (entry.name not in by_name or str(entry.weight) in ("400", "normal")):
                by_name[entry.name] = entry.fname
        _paths = [by_name[name] for name in _FALLBACKS if name in by_name]
    return _paths


def _modified() -> dict[str, float]:
    times: dict[str, float] = {}
    for top in _DIRECTORIES:
        for directory, _, _ in os.walk(os.path.expanduser(top)):
            try:
                times[directory] = os.stat(directory).st_mtime
            except OSError:
                continue
    return times
