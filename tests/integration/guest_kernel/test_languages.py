"""Other languages through real Jupyter kernels and the bridge. Needs `jupyter_client` and the kernels beside the Python
that `CELLBOX_KERNEL_PYTHON` names."""

from __future__ import annotations

import time

import pytest

from cellbox.wire import messages

LANGUAGES = ("bash", "javascript")


@pytest.fixture(scope="module", params=LANGUAGES)
def language(bench, request):
    listed = bench.ask(messages.ListLanguages()).answer["languages"]
    if request.param not in listed:
        pytest.skip(f"no {request.param} kernel here")
    return request.param


@pytest.fixture(scope="module")
def other(bench, language):
    context = bench.context(language=language, cwd="/tmp", env={"GREETING": "hallo welt"})
    yield context
    context.close()


def say(language: str, text: str) -> str:
    return f"echo {text}" if language == "bash" else f"console.log({text!r})"


def variable(language: str, name: str) -> str:
    return f'echo "[${name}]"' if language == "bash" else f"console.log('[' + (process.env.{name} ?? '') + ']')"


def test_output_and_state(other, language):
    assert other.run(say(language, "hi")).stdout == "hi\n"
    other.run("x=41" if language == "bash" else "let x = 41")
    after = other.run("echo $((x+1))" if language == "bash" else "console.log(x + 1)")
    assert after.stdout == "42\n"
    assert after.answer["outcome"] == "completed"
    assert after.answer["exit"] == 0
    assert after.answer["error"] is None


def test_directory_and_variables(other, language):
    where = "pwd" if language == "bash" else "console.log(Deno.cwd())"
    assert other.run(where).stdout == "/tmp\n"
    assert other.run(variable(language, "GREETING")).stdout == "[hallo welt]\n"
    value = "tab\there 'q' \"d\" !x\nsecond"
    assert other.run(variable(language, "ONCE"), env={"ONCE": value}).stdout == f"[{value}]\n"
    assert other.run(variable(language, "ONCE")).stdout == "[]\n"


def test_output_comes_as_it_is_written(bench, other, language):
    code = (
        "for i in 1 2 3; do echo $i; sleep 0.3; done"
        if language == "bash"
        else "for (const i of [1, 2, 3]) { console.log(i); await new Promise(r => setTimeout(r, 300)); }"
    )
    bench.host.first_output.clear()
    started = time.monotonic()
    outcome = other.run(code)
    first = min(bench.host.first_output.values()) - started
    assert outcome.stdout == "1\n2\n3\n"
    assert first < 0.6 < outcome.seconds


def test_errors(other, language):
    outcome = other.run("no_such_command_x" if language == "bash" else "throw new TypeError('bad')")
    assert outcome.answer["outcome"] == "completed"
    assert outcome.answer["exit"] == (127 if language == "bash" else 1)
    assert "\x1b" not in outcome.error["traceback"]
    if language == "javascript":
        assert outcome.error["name"] == "TypeError"
        assert outcome.error["value"] == "bad"
        syntax = other.run("let = = 1")
        assert syntax.error["name"] == "SyntaxError"
    else:
        assert "not found" in outcome.stdout + outcome.stderr


def test_time_limit(other, language):
    started = time.monotonic()
    outcome = other.run("sleep 30" if language == "bash" else "while (true) {}", timeout=0.5)
    assert time.monotonic() - started < 8
    assert outcome.answer["reason"] == "timeout"
    assert outcome.answer["outcome"] == ("interrupted" if language == "bash" else "killed")
    assert other.run(say(language, "again")).stdout == "again\n"


def test_death_is_told(other, language):
    outcome = other.run("kill -9 $PPID; sleep 5" if language == "bash" else "Deno.exit(7)")
    assert outcome.answer["outcome"] == "died", outcome.answer
    assert language in outcome.answer["hint"]
    assert other.run(say(language, "anew")).stdout == "anew\n"


def test_late_output_comes_with_the_next_cell(bench, other, language):
    other.run("(sleep 0.2; echo late) &" if language == "bash" else "setTimeout(() => console.log('late'), 200); null")
    bench.idle(0.8)
    outcome = other.run(say(language, "own"))
    assert outcome.stdout.startswith("late\nown\n")  # an interactive bash then tells that the job is done
    # bash_kernel reads its terminal only while a cell runs, so nobody can tell what is late.
    assert outcome.late == {"stdout": 0 if language == "bash" else 5, "stderr": 0}


def test_bash_is_run_like_a_script(bench, other, language):
    if language != "bash":
        pytest.skip("bash only")
    assert other.run('read x; echo "[$x]"\ncat\necho $((1+1))').stdout == "[]\n2\n"
    assert other.run("cat <<'EOF'\na\tb\nEOF\nprintf '%s' '" + "y" * 5000 + "' | wc -c").stdout == "a\tb\n5000\n"
    ended = other.run("z=1; exit 3")
    assert ended.answer["exit"] == 3
    assert "begun anew" in ended.answer["hint"]
    assert other.run("echo [$z]").stdout == "[]\n"


def test_javascript_results(other, language):
    if language != "javascript":
        pytest.skip("JavaScript only")
    assert other.run("1+1").text == "2"
    shown = other.run(
        "await Deno.jupyter.display({'text/html': '<b>x</b>', 'application/json': {a: [1, 2]}}, {raw: true})"
    )
    assert shown.displays[0]["bundle"]["text/html"] == "<b>x</b>"
    assert shown.displays[0]["bundle"]["application/json"] in ('{"a": [1, 2]}', '{"a":[1,2]}')


def test_unknown_language_names_what_there_is(bench):
    answer = bench.ask(messages.CreateContext(context_id="none", language="cobol")).answer
    assert answer["code"] == "unknown_language"
    assert "python" in answer["message"]
