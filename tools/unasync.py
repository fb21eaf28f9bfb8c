"""Generates the blocking twins of asynchronous modules: `_async/x.py` → `_sync/x.py`.

Works on tokens, so that comments and *line numbers* survive: a traceback in generated code points at the same line of
its source. Run it after each change under an `_async` folder; with `--check` it only says whether that was done.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src/cellbox/client", "src/cellbox/integrations", "tests/client")

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "aiter_stream": "iter_stream",
    "asyncio": "sync",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "aread": "read",
    "handle_async_request": "handle_request",
    "_async": "_sync",
    "StopAsyncIteration": "StopIteration",
}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORD_IN_TEXT = re.compile(r"\b(?:await (?=[A-Za-z_(])|async (?=with\b|for\b|def\b))")
_TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def rename(name: str) -> str:
    """The blocking name for `name`: by the table, else `AsyncX` → `X` and `async_x` → `x`."""
    if name in NAMES:
        return NAMES[name]
    for prefix in ("async_", "Async", "_Async"):
        rest = name.removeprefix(prefix)
        if rest != name and rest and (prefix == "async_" or rest[0].isupper()):
            return "_" + rest if prefix.startswith("_") else rest
    return name


def convert(source: str) -> str:
    """Turn the text of an asynchronous module into its blocking twin, line by line."""
    lines = source.splitlines(keepends=True)
    output: list[str] = []
    row, column = 1, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT) or token.start < (row, column):
            continue
        output.append(_between(lines, (row, column), token.start))
        row, column = token.end
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            column += len(token.line[column:]) - len(token.line[column:].lstrip(" "))
        elif token.type == tokenize.NAME:
            output.append(rename(token.string))
        elif token.type in _TEXT_TOKENS:
            original = _between(lines, token.start, token.end)
            output.append(_WORD.sub(lambda match: rename(match[0]), _KEYWORD_IN_TEXT.sub("", original)))
        else:
            output.append(_between(lines, token.start, token.end))
    return "".join(output)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The source text between two positions of the tokenizer."""
    if start[0] > len(lines):
        return ""
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]]
    tail = lines[end[0] - 1][: end[1]] if end[0] <= len(lines) else ""
    return "".join([lines[start[0] - 1][start[1] :], *lines[start[0] : end[0] - 1], tail])


def generated() -> dict[Path, str]:
    """What every generated file should hold."""
    files: dict[Path, str] = {}
    for folder in FOLDERS:
        for source in sorted((ROOT / folder / "_async").rglob("*.py")):
            relative = source.relative_to(ROOT / folder / "_async")
            note = f"\n# Generated from _async/{relative} by tools/unasync.py: edit that, and run it again.\n"
            files[ROOT / folder / "_sync" / relative] = convert(source.read_text("utf-8")) + note
    return files


def outdated(files: dict[Path, str]) -> list[Path]:
    """Generated files that are missing, differ, or have lost their source."""
    stale = [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    for folder in FOLDERS:
        stale += [path for path in (ROOT / folder / "_sync").rglob("*.py") if path not in files]
    return stale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a generated file is not current")
    arguments = parser.parse_args()
    files = generated()
    stale = outdated(files)
    for path in stale:
        print(f"{'not current' if arguments.check else 'generated'}: {path.relative_to(ROOT)}")
        if arguments.check:
            continue
        if path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], "utf-8")
        else:
            path.unlink()
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
