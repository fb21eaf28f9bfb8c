"""Code contexts in other languages, in real sandboxes of the template `polyglot`: the same for a user as Python's."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import cellbox
from cellbox.errors import APIError

LANGUAGES = ("bash", "javascript")
SAY = {"bash": "echo {}", "javascript": "console.log('{}')"}
VARIABLE = {"bash": 'echo "[${}]"', "javascript": "console.log('[' + (process.env['{}'] ?? '') + ']')"}
SLEEP = {"bash": "sleep 60", "javascript": "await new Promise(r => setTimeout(r, 60000))"}


@pytest.fixture(scope="module")
def sandbox(client):
    with cellbox.Sandbox.create("polyglot", ttl_seconds=600, client=client) as made:
        yield made


@pytest.fixture(scope="module", params=LANGUAGES)
def context(sandbox, request):
    with sandbox.create_code_context(language=request.param, cwd="/tmp", env={"GREETING": "hallo welt"}) as context:
        yield context


def test_cells_share_state_and_say_how_they_ended(context):
    assert context.language in LANGUAGES
    bash = context.language == "bash"
    assert context.run_code("x=41" if bash else "let x = 41").exit == 0
    assert context.run_code("echo $((x+1))" if bash else "console.log(x+1)").stdout == "42\n"
    failed = context.run_code("no_such_command_x" if bash else "throw new TypeError('bad')")
    assert failed.exit == (127 if bash else 1)
    assert failed.error
    assert "\x1b" not in failed.error


def test_contexts_are_apart_in_state_directory_and_variables(sandbox, context):
    bash = context.language == "bash"
    with sandbox.create_code_context(language=context.language, cwd="/", env={"GREETING": "moin"}) as second:
        where = "pwd" if bash else "console.log(Deno.cwd())"
        assert [one.run_code(where).stdout for one in (context, second)] == ["/tmp\n", "/\n"]
        read = VARIABLE[context.language].format("GREETING")
        assert [one.run_code(read).stdout for one in (context, second)] == ["[hallo welt]\n", "[moin]\n"]
        context.run_code("y=1" if bash else "globalThis.y = 1")
        seen = second.run_code('echo "[$y]"' if bash else "console.log(`[${globalThis.y ?? ''}]`)")
        assert seen.stdout == "[]\n"


def test_variables_of_one_cell(context):
    read = VARIABLE[context.language].format("ONCE")
    assert context.run_code(read, env={"ONCE": "1 'a' \"b\""}).stdout == "[1 'a' \"b\"]\n"
    assert context.run_code(read).stdout == "[]\n"


def test_output_streams(context):
    code = (
        "for i in 1 2 3; do echo $i; sleep 0.5; done"
        if context.language == "bash"
        else "for (const i of [1, 2, 3]) { console.log(i); await new Promise(r => setTimeout(r, 500)); }"
    )
    arrived = []
    context.run_code(code, on_stdout=lambda text: arrived.append((text, time.monotonic())))
    assert "".join(text for text, _ in arrived) == "1\n2\n3\n"
    assert arrived[-1][1] - arrived[0][1] > 0.6


def test_a_time_limit_and_an_interrupt_end_a_cell(context):
    started = time.monotonic()
    stopped = context.run_code(SLEEP[context.language], timeout_seconds=1)
    assert stopped.timed_out
    assert stopped.outcome in ("interrupted", "killed")
    assert time.monotonic() - started < 10
    assert context.run_code(SAY[context.language].format("again")).stdout == "again\n"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(context.run_code, SLEEP[context.language], timeout_seconds=50)
        time.sleep(1)
        assert context.interrupt()
        assert running.result(20).reason == "interrupt"
    assert context.run_code(SAY[context.language].format("still")).stdout == "still\n"


def test_restart_and_death(context):
    bash = context.language == "bash"
    context.run_code("z=1" if bash else "globalThis.z = 1")
    context.restart()
    assert context.run_code('echo "[$z]"' if bash else "console.log(`[${globalThis.z ?? ''}]`)").stdout == "[]\n"
    died = context.run_code("kill -9 $PPID; sleep 5" if bash else "Deno.exit(7)")
    assert (died.outcome, died.state_kept) == ("died", False)
    assert context.run_code(SAY[context.language].format("anew")).stdout == "anew\n"


def test_rich_results_of_javascript(sandbox):
    with sandbox.create_code_context(language="js") as context:
        assert context.language == "javascript"
        assert context.run_code("1+1").text == "2"
        shown = context.run_code("await Deno.jupyter.display({'text/html': '<b>x</b>'}, {raw: true})")
        assert shown.results[0].html == "<b>x</b>"


def test_late_output_is_tagged_in_every_language(sandbox):
    with sandbox.create_code_context() as context:
        context.run_code(
            "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('later'))).start()"
        )
        time.sleep(1)
        chunks = [event for event in context.stream("print('own')") if hasattr(event, "chunk")]
        assert [(chunk.chunk, chunk.late) for chunk in chunks] == [("later\n", True), ("own\n", False)]


def test_languages_are_listed(sandbox):
    assert {"bash", "javascript", "python", "typescript"} <= set(sandbox.languages())


def test_an_unknown_language_is_told_what_there_is(sandbox):
    with pytest.raises(APIError) as caught:
        sandbox.create_code_context(language="cobol")
    for name in ("bash", "javascript", "python", "typescript"):
        assert name in str(caught.value)
