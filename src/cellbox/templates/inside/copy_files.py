"""Copies the files of a recipe over the root filesystem: dotfiles too, links as links, everything owned by root.

Runs in a sandbox, under the private interpreter.
"""

# Runs in a sandbox, alone, where start-up time counts and what it prints is the log.
# ruff: noqa: PTH101, PTH102, PTH108, PTH112, PTH114, PTH115, PTH116, PTH118, PTH211, T201

import os
import shutil
import sys


def main() -> None:
    source = sys.argv[1]
    count = 0
    for folder, directories, names in os.walk(source):
        directories.sort()
        inner = os.path.relpath(folder, source)
        target = os.path.normpath(os.path.join("/", inner))
        if inner != ".":
            make_directory(target, os.stat(folder).st_mode & 0o7777)
        # `walk` reports a link to a directory among the directories; it is copied as a link, not descended into.
        links = [name for name in directories if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *links]:
            copy(os.path.join(folder, name), os.path.join(target, name))
            count += 1
    print(f"{count} files copied")


def make_directory(path: str, mode: int) -> None:
    if not os.path.isdir(path):
        if os.path.lexists(path):
            os.unlink(path)
        os.mkdir(path)
        os.chmod(path, mode)


def copy(source: str, target: str) -> None:
    if os.path.isdir(target) and not os.path.islink(target):
        sys.exit(f"{target} is a directory in the template and a file in the recipe")
    if os.path.lexists(target):
        os.unlink(target)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    else:
        shutil.copyfile(source, target)
        os.chmod(target, os.stat(source).st_mode & 0o7777)
    os.chown(target, 0, 0, follow_symlinks=False)


if __name__ == "__main__":
    main()
