"""Changes that may not be refused: another place, host, form or moment of the same release. A gate that cries wolf is switched off.

Each row says why no served byte can differ. ``act`` looks further than the passed verdict, where the change is about what comes after.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pratique_server.engine.client import start_engine
from tests.mutation.fault import Act, Arrange, Variation, declared, files, stream
from tests.mutation.faults.texts import generation, settings
from tests.mutation.faults.weights import config
from tests.mutation.moments import (
    BusyFirst,
    Fragments,
    api_keys,
    contents_joined,
    drained,
    engine_replaced,
    golden_prompts_again,
    hammered,
    many_at_once,
    more_headers,
    one_thread_more,
    proved_again,
    second_replica,
    slow_steps,
    slowed,
    with_comments,
    with_key,
    with_more_fields,
)
from tests.mutation.scene import Scene
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
    _v("kept layers named in another order, one twice, the head too", "the same layers are kept", declared(quantization={"config": {
        "keep": ["lm_head", "model.layers.0.*", "*.down_proj", "model.layers.0.*"]}}), base="kept"),
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
    _v("with API keys", "who may ask does not change the answer", api_keys, act=with_key, status=401),
    _v("one thread more", HOST, one_thread_more),
    _v("a slow disk", TUNING, slowed("pratique_server.engine.weights.read_safetensors", 0.5)),
    _v("a slow template", TUNING, slowed("pratique_server.text.template.ChatTemplate.render", 0.02)),
    _v("a slow engine", TUNING, lambda scene: scene.engine_hooks.append(slow_steps)),
    _v("a saturated pod", "busy is not wrong", lambda scene: scene.wrap_app(lambda app: BusyFirst(app, 4))),
    _v("users knock from eight sides", TUNING, hammered("/v1/chat/completions")),
    _v("probes knock from eight sides", TUNING, hammered("/readyz")),
    _v("keep-alive comments", FRAMING, stream(with_comments)),
    _v("the whole body in one write", FRAMING, stream(lambda events: events)),
    _v("writes of seven bytes", FRAMING, lambda scene: scene.wrap_app(lambda app: Fragments(app, 7))),
    _v("two tokens in one event", FRAMING, stream(contents_joined)),
    _v("a field that says nothing", FRAMING, stream(with_more_fields)),
    _v("a proxy's header", FRAMING, lambda scene: scene.break_streams(lambda events: events, start=more_headers)),
    _v("sixteen users right after readiness", TUNING, _nothing, act=many_at_once),
    _v("golden prompts asked by users, prefixes known", "an answer does not depend on what was asked before", _nothing,
       act=golden_prompts_again),
    _v("proved again while idle", "the same cases", declared(release={"reverify": {"interval_seconds": 0.2}}), act=proved_again),
    _v("a second replica", HOST, _nothing, act=second_replica),
    _v("a drain after the verdict", TUNING, _nothing, act=drained),
    _v("an engine that was killed and replaced", "the next engine loads the same bytes", _real_process, act=engine_replaced),
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
