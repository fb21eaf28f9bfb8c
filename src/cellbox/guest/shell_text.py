"""How a shell is driven: what it reads on its standard input, which no command of the user's ever sees.

A command travels as a file in memory that the shell itself reads with `.`, so that everything it changes stays and its
lines are counted from one. Its end is told on a descriptor of its own: nothing that it prints can be taken for it. Each
line of ours stands alone at the shell's top level, so `break`, `return` and syntax errors end the command and not the
shell. What does end the shell (`exit`, `set -e`, an interrupt) runs its EXIT trap, which writes all of its state down
for the next one.
"""

from __future__ import annotations

STATUS = 201
TEXT = 202
STATE = 203
OUTPUT = 204
TERMINAL = 205
NOTHING = 206
"""The shell's descriptors: above what scripts use, and closed while a command runs but for its text and the state."""

_CLOSED = "".join(f" {number}>&-" for number in (STATUS, OUTPUT, TERMINAL, NOTHING))
_END_OF_STATE = b"\n# whole\n"

INTERRUPT = 63
"""A real-time signal that ends what the shell runs: one that nobody traps or sends."""

TERMINAL_VARIABLES = "TERM=xterm-256color COLUMNS=120 LINES=40"

PREPARE = rf"""
builtin shopt -s expand_aliases
__cellbox_end() {{
  if [[ $BASHPID == "$$" ]]; then
    if [[ -n ${{__cellbox_on_exit-}} ]]; then
      builtin eval "builtin unset __cellbox_on_exit; $__cellbox_on_exit"
    fi
    builtin unset __cellbox_on_exit
    __cellbox_last=:
    # Its variable would bring it on in the middle of the reading, where it makes the first readonly variable fatal.
    if [[ -o posix ]]; then __cellbox_last="builtin set -o posix"; builtin set +o posix; fi
    {{
      builtin declare -p; builtin declare -fp; builtin alias -p; builtin umask -p
      builtin printf 'builtin cd -- %q\n' "$PWD"
      builtin trap -p; builtin shopt -p; builtin shopt -po
      builtin printf '%s\n' "$__cellbox_last"
      builtin printf '\n# whole\n'
    }} >&{STATE} 2>/dev/null
  fi
}}
# The user's own action at exit is kept apart: it must not take the place of the one above.
trap() {{
  if [[ $BASHPID != "$$" || $# -lt 2 || $1 == -[lp]* ]]; then builtin trap "$@"; return; fi
  [[ $1 == -- ]] && builtin shift
  local action=$1 name; local -a others=(); builtin shift
  for name; do
    case $name in
      EXIT|exit|SIGEXIT|0) if [[ $action == - ]]; then __cellbox_on_exit=""; else __cellbox_on_exit=$action; fi ;;
      *) others+=("$name") ;;
    esac
  done
  if (( ${{#others[@]}} )); then builtin trap -- "$action" "${{others[@]}}"; fi
}}
""".encode()

_TRAPS = f"""
builtin trap __cellbox_end EXIT
builtin trap 'builtin exit 130' {INTERRUPT}
""".encode()

START = f". /dev/fd/{STATE};builtin printf 'ready\\n' >&{STATUS}\n".encode()
NOTHING_TO_DO = f"builtin :;builtin printf '0\\n' >&{STATUS}\n".encode()


def opening(state: bytes) -> bytes:
    """Return what a shell reads first: our part of it, and the state of the one before."""
    return PREPARE + _TRAPS + state + b"\nbuiltin :\n"


def saved_state(content: bytes) -> bytes | None:
    """Return the state that a shell wrote down at its end, or None if it did not come to its end of it."""
    state, mark, _ = content.rpartition(_END_OF_STATE)
    return state + b"\n" if mark else None


def run_line(marker: str, *, terminal: bool) -> bytes:
    """Return the line that runs the text in `TEXT`, with `marker` in the environment of what it starts."""
    target, variables = (TERMINAL, f"{TERMINAL_VARIABLES} ") if terminal else (OUTPUT, "")
    run = f"{variables}{marker} . /dev/fd/{TEXT} <&{NOTHING} >&{target} 2>&1{_CLOSED}"
    return f"{run};builtin printf '%s\\n' $? >&{STATUS}\n".encode()


# What there is without bash. Such a shell can't write its functions down, so its end loses them; its descriptors have
# one digit, since others it does not know.
PLAIN = {STATUS: 8, TEXT: 7, OUTPUT: 9, TERMINAL: 6, NOTHING: 5}


def run_line_plain(marker: str, *, terminal: bool) -> bytes:
    """The same for a shell that is no bash."""
    target = PLAIN[TERMINAL if terminal else OUTPUT]
    closed = "".join(f" {number}>&-" for number in PLAIN.values() if number != PLAIN[TEXT])
    run = f"{marker} . /dev/fd/{PLAIN[TEXT]} <&{PLAIN[NOTHING]} >&{target} 2>&1{closed}"
    return f"{run};printf '%s\\n' $? >&{PLAIN[STATUS]}\n".encode()
