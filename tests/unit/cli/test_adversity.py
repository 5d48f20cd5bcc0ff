"""What a person, a shell or a machine may do to any command: the code is one of the documented ones, and no trace is shown."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pratique_cli import app as app_module
from pratique_cli.errors import EXIT_INTERRUPTED
from tests.support.releases import make_digest, make_manifest, make_record
from tests.unit.cli.conftest import Run

PROGRAM = (sys.executable, "-m", "pratique_cli")
DEEP = {"deep.json": '{"a":' * 100_000, "deep.yaml": "[" * 5000, "list.json": "[" * 100_000}


@pytest.fixture
def records(tmp_path: Path) -> tuple[Path, Path]:
    """Two records of different releases."""
    paths = tmp_path / "a.json", tmp_path / "b.json"
    paths[0].write_text(make_record().to_json())
    manifest = make_manifest()
    other = manifest.model_copy(update={"engine": manifest.engine.model_copy(update={"build": make_digest("other")})})
    paths[1].write_text(make_record(manifest=other).to_json())
    return paths


def shell(command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_answer_is_the_same_when_the_reader_ends_early(records: tuple[Path, Path], unbuffered: str) -> None:
    """``release diff a b | head``: 0 would say that the releases are the same, and 1, Python's own, that they differ."""
    program = " ".join(PROGRAM)
    for left, right, code in ((*records, 1), (records[0], records[0], 0)):
        command = f"{program} release diff {left} {right} | true; echo ${{PIPESTATUS[0]}}"
        result = shell(command, PYTHONUNBUFFERED=unbuffered)
        assert (result.stdout.split(), result.stderr) == ([str(code)], "")
    result = shell(f"{program} --version | true; echo ${{PIPESTATUS[0]}}", PYTHONUNBUFFERED=unbuffered)
    assert (result.stdout, result.stderr) == ("0\n", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_output_is_a_failure_in_one_line(records: tuple[Path, Path], unbuffered: str) -> None:
    result = shell(
        f"{' '.join(PROGRAM)} release diff {records[0]} {records[0]} > /dev/full", PYTHONUNBUFFERED=unbuffered
    )
    assert (result.returncode, result.stderr) == (3, "error: The output cannot be written: No space left on device\n")


def test_a_closed_output_is_no_error(records: tuple[Path, Path]) -> None:
    for closed, code in ((">&-", 1), ("2>&- >/dev/null", 1)):
        result = shell(f"{' '.join(PROGRAM)} release diff {records[0]} {records[1]} {closed}")
        assert (result.returncode, result.stderr) == (code, "")


def test_an_interrupted_command_has_not_answered() -> None:
    command = [*PROGRAM, "resolve", "hf://a/b", "--hub-endpoint", "http://127.0.0.1:9"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "Trying again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert (process.wait(timeout=10), "Traceback" in process.stderr.read()) == (EXIT_INTERRUPTED, False)
    process.stderr.close()


def test_ctrl_c_anywhere_else_has_not_answered_either(
    pratique: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pratique_cli.records.read_release", interrupt)
    (tmp_path / "a.json").write_text("{}")
    assert pratique("release", "diff", tmp_path / "a.json", tmp_path / "a.json").code == EXIT_INTERRUPTED


def test_a_crash_of_ours_is_no_answer(pratique: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(**_: object) -> None:
        raise ZeroDivisionError("one by nought")

    monkeypatch.setattr(app_module, "app", crash)
    result = pratique("release", "verify")
    assert (result.code, "ZeroDivisionError: one by nought; this is a bug of ours" in result.err) == (3, True)


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize(
    "command",
    [
        "release show {}",
        "release diff {} {}",
        "release review {} {}",
        "release stamp {} --record {}",
        "release sign {} --key {}",
    ],
)
def test_a_file_that_is_nested_without_end_is_told(pratique: Run, tmp_path: Path, name: str, command: str) -> None:
    path = tmp_path / name
    path.write_text(DEEP[name])
    result = pratique(*command.format(path, path).split())
    assert (result.code, result.err.count("\n"), str(path) in result.err) == (3, 1, True), result.err


def test_a_file_without_end_is_not_read_to_its_end(pratique: Run) -> None:
    started = time.process_time()
    result = pratique("release", "show", "/dev/zero")
    assert (result.code, "/dev/zero has more than" in result.err) == (3, True)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a b", "é", "\udce9", "a\u202eb", "x" * 300])
@pytest.mark.parametrize(
    "command", ["status {}", "chat {} hi", "release approve {}", "release record --service s -n {}", "status s -n {}"]
)
def test_what_no_object_is_called_is_asked_of_nobody(
    pratique: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    if not name and "-n" in command.split():
        return  # the context's own, as kubectl takes it
    use_kubeconfig(monkeypatch, tmp_path, json.dumps(DEAD))
    result = pratique(*(name if word == "{}" else word for word in command.split()))
    assert (result.code, "can have the name" in result.err) == (2, True), result.err
    assert "\u202e" not in result.err


DEAD = {
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "demo"}}],
    "current-context": "x",
}


def use_kubeconfig(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    (folder / "kubeconfig").write_text(text)
    # The client remembers which file that is when it is imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(folder / "kubeconfig"))


@pytest.mark.parametrize(
    "text", ["\0\1 not: [yaml", "[]", "", "text", "contexts: 1", "{current-context: x, contexts: [1]}"]
)
def test_a_kubeconfig_that_is_none_is_told(
    pratique: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    use_kubeconfig(monkeypatch, tmp_path, text)
    result = pratique("status", "s")
    assert (result.code, "There is no usable kubeconfig: " in result.err) == (3, True), result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("url", ["http://[", "http://h:x", "ftp://h", "", "http://"])
@pytest.mark.parametrize("command", ["chat --url {} hi", "release record --url {}"])
def test_what_is_no_url_is_wrong_usage(pratique: Run, url: str, command: str) -> None:
    result = pratique(*(url if word == "{}" else word for word in command.split()))
    assert (result.code, "is not an http:// or https:// URL" in result.err) == (2, True), result.err


@pytest.mark.parametrize("endpoint", ["http://[", "nonsense", "ftp://h", "http://", "http://h:99999"])
@pytest.mark.parametrize("command", ["resolve hf://a/b --hub-endpoint", "resolve s3://bucket/p --s3-endpoint"])
def test_what_is_no_endpoint_is_told(pratique: Run, endpoint: str, command: str) -> None:
    if endpoint == "nonsense" and "s3" in command:
        return  # a host: https is meant
    result = pratique(*command.split(), endpoint)
    assert (result.code, "is not of the form https://HOST or https://HOST:PORT" in result.err) == (3, True), result.err


def test_a_port_that_is_none_is_wrong_usage(pratique: Run, tmp_path: Path) -> None:
    for port in ("-1", "65536", "http"):
        assert pratique("serve", "--model", tmp_path, "--trust-first", "--port", port).code == 2
        assert pratique("serve", "--model", tmp_path, "--trust-first", "--management-port", port).code == 2


@pytest.mark.parametrize("command", ["build", "record"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_loaded(
    pratique: Run, tiny_model_dir: Path, tmp_path: Path, command: str
) -> None:
    for output, why in ((tmp_path / "none" / "x.json", "there is no folder"), (tmp_path, "it is a folder")):
        result = pratique("release", command, "--model", tiny_model_dir, "--output", output)
        assert (result.code, result.err.count("\n"), why in result.err) == (3, 1, True), result.err


def test_a_key_or_name_that_cannot_be_used_is_told_before_anything_is_loaded(
    pratique: Run, tiny_model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"\xff")
    record = ("release", "record", "--model", tiny_model_dir)
    result = pratique(*record, "--output", tmp_path / "x.json", "--key", tmp_path / "key")
    assert (result.code, result.err.count("\n"), "key cannot be read" in result.err) == (3, 1, True), result.err
    result = pratique(*record, "--format", "configmap", "--name", "A_b")
    assert (result.code, result.err) == (2, "error: No ConfigMap can have the name 'A_b'\n")


@pytest.mark.parametrize(("folder", "why"), [("/", "name a folder below it"), ("{file}", "is a file; name the folder")])
def test_a_folder_that_cannot_be_filled_is_told(pratique: Run, tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "file").touch()
    result = pratique("fetch", "hf://a/b", folder.format(file=tmp_path / "file"))
    assert (result.code, why in result.err) == (3, True), result.err
