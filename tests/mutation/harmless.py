"""Changes that may not be refused: another place, host, form or moment of the same release. A gate that cries wolf is switched off.

Each row says why no served byte can differ. ``act`` looks further than the passed verdict, where the change is about what comes after.
"""

import hashlib
import importlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import torch

from pratique_server.engine.client import start_engine
from tests.integration.server.running import serving, wait_until
from tests.mutation.fault import Act, Arrange, Variation, declared, files, stream
from tests.mutation.faults.streams import Kinds, read, write
from tests.mutation.faults.texts import generation, settings
from tests.mutation.faults.weights import config
from tests.mutation.scene import Judged, Scene
from tests.support.broken_streams import Events
from tests.support.models import CHATML
from tests.support.mutations import Mutation, copy_of, edit_json, reformat_json, replace

BYTES, VALUES = "the bytes that are loaded are the same", "JSON is hashed as a value"
UNREAD, PLACE, HOST = "nothing loads it", "where bytes lie is not identity", "the host is not identity"
TUNING = "it decides when an answer comes, never which"
FRAMING = "clients see the same events"


# The folder


def _each_json(dump: Callable[[Any], str]) -> Mutation:
    def mutation(folder: Path) -> None:
        for path in sorted(folder.glob("*.json")):
            replace(path, dump(json.loads(path.read_text(encoding="utf-8"))).encode())

    return mutation


def _reversed_keys(value: Any) -> Any:
    """Keys in reverse order at every depth; the order inside lists is meaning and stays."""
    if isinstance(value, dict):
        return {key: _reversed_keys(value[key]) for key in reversed(value)}
    return [_reversed_keys(item) for item in value] if isinstance(value, list) else value


def _extra(name: str, content: bytes = b"nothing loads this\n") -> Mutation:
    def mutation(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return mutation


def _template_file(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", lambda value: value.pop("chat_template"))
    (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")


def _each_file(change: Callable[[Path], object]) -> Mutation:
    def mutation(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            replace(path, path.read_bytes())  # no longer a link into another test's folder
            change(path)

    return mutation


def _moved(target: Callable[[Scene], Path]) -> Arrange:
    def arrange(scene: Scene) -> None:
        folder = target(scene)
        folder.parent.mkdir(parents=True, exist_ok=True)
        scene.folder.rename(folder)
        scene.folder = folder

    return arrange


def _linked(scene: Scene) -> None:
    link = scene.room / "current"
    link.symlink_to(scene.folder, target_is_directory=True)
    scene.folder = link


def _hub_cache(scene: Scene) -> None:
    """The layout of huggingface_hub: snapshots of symbolic links into a folder of blobs named by digest."""
    repository = scene.room / "hub" / "models--example--tiny"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / ("1" * 40)
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in sorted(scene.base.folder.iterdir()):
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    scene.folder = snapshot


def _relative(scene: Scene) -> None:
    folder = scene.folder
    scene.monkeypatch.chdir(folder.parent)
    scene.folder = Path(folder.name)


def _tokenizer_apart(scene: Scene) -> None:
    folder = copy_of(scene.base.folder, scene.room / "tokenizer")
    scene.declare(tokenizer={"path": str(folder), "uri": f"file://{folder}"})


# The record


def _record_text(write_text: Callable[[dict[str, Any]], str]) -> Arrange:
    return lambda scene: (scene.room / "record.json").write_text(write_text(scene.record.to_json_value()))


def _record_in_config_map(scene: Scene) -> None:
    """As the kubelet mounts it: the file is a link into a folder that is itself replaced by a link."""
    data = scene.room / "..2026_11_30"
    data.mkdir()
    (data / "record.json").write_text(scene.record.to_json(), encoding="utf-8")
    (scene.room / "..data").symlink_to(data.name)
    (scene.room / "record.json").symlink_to("..data/record.json")


def _record_of_two_devices(value: dict[str, Any]) -> str:
    for case in value["golden"]["cases"]:
        case["outputs"] = [{**case["outputs"][0], "deviceClass": "cuda-sm90"}, *case["outputs"]]
    return json.dumps(value)


def _record_reordered(value: dict[str, Any]) -> str:
    golden = value["golden"]
    golden["cases"], golden["fixtures"] = golden["cases"][::-1], golden["fixtures"][::-1]
    return json.dumps(value)


# The host and the moment


def _two_threads(scene: Scene) -> None:
    threads = torch.get_num_threads()
    scene.cleanups.append(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(threads + 1)


def _slow(target: str, seconds: float) -> Arrange:
    """A function of the server that takes its time."""

    def arrange(scene: Scene) -> None:
        module, _, name = target.rpartition(".")
        original = _resolve(module, name)

        def slow(*args: Any, **fields: Any) -> Any:
            time.sleep(seconds)
            return original(*args, **fields)

        scene.monkeypatch.setattr(target, slow)

    return arrange


def _resolve(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        parent, _, attribute = module.rpartition(".")
        return getattr(getattr(importlib.import_module(parent), attribute), name)


def _slow_steps(engine: Any, scene: Scene) -> None:
    step = engine.step

    def slow() -> Any:
        time.sleep(0.01)
        return step()

    scene.monkeypatch.setattr(engine, "step", slow)


class _BusyFirst:
    """The first requests are turned away: the pod is saturated."""

    def __init__(self, app: Any, count: int) -> None:
        self._app, self._left = app, count

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/v1/chat/completions" or self._left <= 0:
            await self._app(scope, receive, send)
            return
        self._left -= 1
        await receive()
        body = json.dumps({"error": {"code": "queue_full", "message": "try again"}}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _Fragments:
    """Every write becomes many small ones."""

    def __init__(self, app: Any, size: int) -> None:
        self._app, self._size = app, size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def fragmented(message: Any) -> None:
            body = message.get("body", b"")
            if message["type"] != "http.response.body" or len(body) <= self._size:
                await send(message)
                return
            for start in range(0, len(body), self._size):
                await send({**message, "body": body[start : start + self._size], "more_body": True})
            if not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b""})

        await self._app(scope, receive, fragmented)


def _hammered(path: str, workers: int = 8) -> Arrange:
    """Many clients besides the knocking user, on one port, for as long as the pod proves itself."""

    def arrange(scene: Scene) -> None:
        def hammer(server: Any) -> Callable[[], None]:
            stop = threading.Event()
            base = server.api_url if path.startswith("/v1") else str(server.management.base_url)

            def run() -> None:
                with httpx.Client(timeout=30, trust_env=False) as client:
                    while not stop.is_set():
                        try:
                            client.request("POST" if path.startswith("/v1") else "GET", f"{base}{path}", json={})
                        except httpx.TransportError:
                            time.sleep(0.01)

            threads = [threading.Thread(target=run) for _ in range(workers)]
            for thread in threads:
                thread.start()

            def end() -> None:
                stop.set()
                for thread in threads:
                    thread.join(35)

            return end

        scene.while_proving.append(hammer)

    return arrange


# After the verdict


def _many_at_once(judged: Judged) -> None:
    """Right after readiness, sixteen users at once."""
    statuses: list[int] = []
    question = {"model": "tiny", "messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 8, "stream": True}

    def one() -> None:
        answer = httpx.post(f"{judged.server.api_url}/v1/chat/completions", json=question, timeout=30, trust_env=False)
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(35)
    assert statuses == [200] * 16


def _golden_prompts_again(judged: Judged) -> None:
    """Users ask the golden prompts, whose prefixes have been computed before: the answers are the recorded ones."""
    for case in judged.scene.record.golden.cases:
        body = {"model": "tiny", "messages": list(case.messages), "max_tokens": case.max_tokens, "temperature": 0}
        for _ in range(2):
            answer = httpx.post(f"{judged.server.api_url}/v1/chat/completions", json=body, timeout=30, trust_env=False)
            assert answer.json()["choices"][0]["message"]["content"] == case.outputs[0].text


def _proved_again(judged: Judged) -> None:
    """Idle re-verification sends the golden cases again, after users' requests."""
    wait_until(lambda: judged.server.verdict().get("reverification") is not None, seconds=20)
    verdict = judged.server.verdict()
    assert (verdict["result"], verdict["reverification"]["result"]) == ("Pass", "Pass")


def _engine_replaced(judged: Judged) -> None:
    """The engine is killed; the next one is proved anew and serves."""
    engine: Any = judged.process.engine
    epoch = judged.server.stats()["epoch"]
    os.kill(int(engine._core.process.pid), signal.SIGKILL)
    wait_until(lambda: judged.server.probe("readyz")[0] == 503, seconds=30)
    judged.server.wait_ready(seconds=180)
    assert judged.server.stats()["epoch"] > epoch


def _drained(judged: Judged) -> None:
    """A drain begins: the pod leaves its endpoints and its verdict stays what it was."""
    judged.server.management.post("/drain")
    wait_until(lambda: judged.server.probe("readyz")[0] == 503, seconds=5)
    assert judged.server.verdict()["result"] == "Pass"


def _second_replica(judged: Judged) -> None:
    """Another pod of the same release proves itself beside this one."""
    with serving(judged.scene.spec(), start_engine=judged.scene.start_engine) as (other, _):
        other.wait_ready()
        assert other.verdict()["fingerprint"] == judged.server.verdict()["fingerprint"]


def _with_key(judged: Judged) -> None:
    question = {"model": "tiny", "messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 4}
    url = f"{judged.server.api_url}/v1/chat/completions"
    answer = httpx.post(url, json=question, headers={"authorization": "Bearer k-1"}, timeout=30, trust_env=False)
    assert answer.status_code == 200


def _api_keys(scene: Scene) -> None:
    keys = scene.room / "keys"
    keys.mkdir()
    (keys / "harbour").write_text("k-1\n")
    scene.declare(api_keys_path=str(keys))


# Streams that only look otherwise


def _with_comments(events: Events) -> Events:
    return [part for event in events for part in (b": keep-alive\n\n", event)]


def _contents_joined(events: Events) -> Events:
    """Two tokens in one event, as after a stall of the client."""
    kinds = Kinds(events)
    if kinds.last == kinds.first:
        return events
    first, second = read(events[kinds.last - 1]), read(events[kinds.last])
    one, other = first["choices"][0], second["choices"][0]
    one["delta"]["content"] += other["delta"]["content"]
    one["token_ids"] += other["token_ids"]
    one["logprobs"]["content"] += other["logprobs"]["content"]
    return [*events[: kinds.last - 1], write(first), *events[kinds.last + 1 :]]


def _with_more_fields(events: Events) -> Events:
    return [event if b"[DONE]" in event else write({**read(event), "service_tier": None}) for event in events]


def _more_headers(message: Any) -> Any:
    return {**message, "headers": [(b"x-proxy", b"harbour"), *message["headers"]]}


def _v(
    name: str, why: str, arrange: Arrange, *, base: str = "tiny", act: Act | None = None, status: int = 200
) -> Variation:
    return Variation(name=name, why=why, arrange=arrange, base=base, act=act, status=status)


def _nothing(_: Scene) -> None:
    """As it was recorded."""


def _real_process(scene: Scene) -> None:
    scene.start_engine = start_engine


HARMLESS: Final = (
    _v("nothing changed", BYTES, _nothing),
    _v("JSON indented otherwise, top keys reversed, ASCII only", VALUES, files(reformat_json)),
    _v("JSON on one line", VALUES, files(_each_json(lambda value: json.dumps(value, separators=(",", ":"))))),
    _v("JSON keys in reverse order at every depth", VALUES, files(_each_json(lambda value: json.dumps(_reversed_keys(value))))),
    _v("JSON with carriage returns", VALUES, files(_each_json(lambda value: json.dumps(value, indent=1).replace("\n", "\r\n")))),
    _v("a README", UNREAD, files(_extra("README.md"))),
    _v("a licence and hidden files", UNREAD, files(_extra("LICENSE"), _extra(".gitattributes"))),
    _v("a folder with the original's pickles", UNREAD, files(_extra("original/consolidated.00.pth"))),
    _v("an optimizer's state left by training", UNREAD, files(_extra("optimizer.pt"))),
    _v("a model in another format beside it", UNREAD, files(_extra("onnx/model.onnx"), _extra("model.gguf"))),
    _v("another writer's version", "it names the program that wrote the file", files(
        config(transformers_version="4.40.0"), generation(transformers_version="4.40.0"))),
    _v("the name under which it was trained", "it names a folder of the trainer", files(config(_name_or_path="/home/trainer/run-7"))),
    _v("the tokenizer's name", "it names a folder of the trainer", files(settings(name_or_path="/home/trainer/run-7"))),
    _v("the template in a file of its own", "the text is the same", files(_template_file)),
    _v("the template declared", "the text is the same", declared(chat_template=CHATML)),
    _v("the tokenizer in a folder of its own", BYTES, _tokenizer_apart),
    _v("older files", PLACE, files(_each_file(lambda path: os.utime(path, (1e9, 1e9))))),
    _v("read-only files", PLACE, files(_each_file(lambda path: path.chmod(0o444)))),
    _v("executable files", PLACE, files(_each_file(lambda path: path.chmod(0o755)))),
    _v("a read-only folder", PLACE, files(lambda folder: folder.chmod(0o555))),
    _v("files copied instead of linked", PLACE, files(_each_file(lambda path: None))),
    _v("a renamed snapshot folder", PLACE, _moved(lambda scene: scene.room / "snapshot-of-monday")),
    _v("a path with spaces and other scripts", PLACE, _moved(lambda scene: scene.room / "my models" / "Λιμάνι 船")),
    _v("a very long path", PLACE, _moved(lambda scene: scene.room / Path(*["deep" * 12] * 20) / "model")),
    _v("a linked folder", PLACE, _linked),
    _v("the hub's cache layout", PLACE, _hub_cache),
    _v("a relative path", PLACE, _relative),
    _v("another bucket", PLACE, declared(model={"uri": "s3://other/tiny"})),
    _v("another claim", PLACE, declared(model={"uri": "pvc://models/tiny"})),
    _v("three shards, in another place", PLACE, _moved(lambda scene: scene.room / "sharded"), base="sharded"),
    _v("three shards, their index reformatted", VALUES, files(reformat_json), base="sharded"),
    _v("adapters copied to other folders", PLACE, lambda scene: scene.declare(model={"adapters": [
        {**adapter, "path": str(shutil.copytree(adapter["path"], scene.room / f"other-{adapter['name']}")),
         "uri": f"s3://adapters/{adapter['name']}"} for adapter in scene.base.changes["model"]["adapters"]]}), base="adapted"),
    _v("quantized again on another day", "the scales follow from the weights", _nothing, base="int8"),
    _v("a K/V type that is the model's own", "the engine's default is the same type", declared(
        engine={"kv_cache": {"dtype": "FP32"}})),
    _v("a context that is the model's own", "the engine's default is the same limit", declared(engine={"max_model_len": 2048})),
    _v("an argument that is the default", "defaults are filled in", declared(engine={"args": ["--packed-check=refuse"]})),
    _v("the record indented", VALUES, _record_text(lambda value: json.dumps(value, indent=4, ensure_ascii=False))),
    _v("the record's cases in another order", "each case proves itself", _record_text(_record_reordered)),
    _v("the record has another device's outputs too", "its own output is there", _record_text(_record_of_two_devices)),
    _v("the record in a ConfigMap's links", PLACE, _record_in_config_map),
    _v("another served name", "clients' word for the release", declared(served_model_name="harbour"), status=404),
    _v("another service, namespace and revision", PLACE, declared(service="pilot", namespace="harbour", revision="r-7")),
    _v("other queue sizes and timeouts", TUNING, declared(
        limits={"max_queued": 7, "max_queued_tokens": 9000, "request_timeout_seconds": 30, "max_body_bytes": 65536})),
    _v("another drain", TUNING, declared(drain={"pre_stop_seconds": 0.1, "deadline_seconds": 3})),
    _v("all addresses", HOST, declared(host="0.0.0.0")),
    _v("with API keys", "who may ask does not change the answer", _api_keys, act=_with_key, status=401),
    _v("one thread more", HOST, _two_threads),
    _v("a slow disk", TUNING, _slow("pratique_server.engine.weights.read_safetensors", 0.5)),
    _v("a slow template", TUNING, _slow("pratique_server.text.template.ChatTemplate.render", 0.02)),
    _v("a slow engine", TUNING, lambda scene: scene.engine_hooks.append(_slow_steps)),
    _v("a saturated pod", "busy is not wrong", lambda scene: scene.wrap_app(lambda app: _BusyFirst(app, 4))),
    _v("users knock from eight sides", TUNING, _hammered("/v1/chat/completions")),
    _v("probes knock from eight sides", TUNING, _hammered("/readyz")),
    _v("keep-alive comments", FRAMING, stream(_with_comments)),
    _v("the whole body in one write", FRAMING, stream(lambda events: events)),
    _v("writes of seven bytes", FRAMING, lambda scene: scene.wrap_app(lambda app: _Fragments(app, 7))),
    _v("two tokens in one event", FRAMING, stream(_contents_joined)),
    _v("a field that says nothing", FRAMING, stream(_with_more_fields)),
    _v("a proxy's header", FRAMING, lambda scene: scene.break_streams(lambda events: events, start=_more_headers)),
    _v("sixteen users right after readiness", TUNING, _nothing, act=_many_at_once),
    _v("golden prompts asked by users, prefixes known", "an answer does not depend on what was asked before", _nothing,
       act=_golden_prompts_again),
    _v("proved again while idle", "the same cases", declared(release={"reverify": {"interval_seconds": 0.2}}), act=_proved_again),
    _v("a second replica", HOST, _nothing, act=_second_replica),
    _v("a drain after the verdict", TUNING, _nothing, act=_drained),
    _v("an engine that was killed and replaced", "the next engine loads the same bytes", _real_process, act=_engine_replaced),
)  # fmt: skip

# Each starts the whole server as a process of its own, as a container does.
ENVIRONMENTS: Final[dict[str, dict[str, str]]] = {
    "no home and another temporary folder": {"HOME": "/nonexistent", "TMPDIR": "{room}"},
    "another locale, time zone and hash seed": {"LC_ALL": "C", "LANG": "tr_TR.UTF-8", "TZ": "Pacific/Chatham", "PYTHONHASHSEED": "7"},
    "two threads from the environment": {"OMP_NUM_THREADS": "2"},
    "proxies and a hub that are not there": {
        "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": "{room}/hub", "TRANSFORMERS_CACHE": "{room}/cache"},
}  # fmt: skip
