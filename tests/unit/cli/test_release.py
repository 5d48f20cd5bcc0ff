"""``pratique release`` on files: show, diff, stamp, and what goes wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pratique_cli.specs import folder_spec, service_spec
from pratique_contract.canonical import short_digest
from pratique_contract.record import ReleaseRecord
from tests.support.releases import make_case, make_digest, make_manifest, make_output, make_record
from tests.unit.cli.conftest import Run

SERVICE = """
apiVersion: serving.pratique.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny, namespace: demo}
spec:
  model: {uri: "file:///models/tiny"}
  engine: {maxNumSeqs: 4}
"""


@pytest.fixture
def record_file(tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    path.write_text(make_record().to_json())
    return path


@pytest.fixture
def service_file(tmp_path: Path) -> Path:
    path = tmp_path / "service.yaml"
    path.write_text(SERVICE)
    return path


def test_a_record_is_shown_as_parts_with_digests(pratique: Run, record_file: Path) -> None:
    result = pratique("release", "show", record_file)
    assert result.code == 0
    assert result.out.startswith(f"Fingerprint: {make_record().fingerprint}\n")
    rows = [line.split()[0] for line in result.out.splitlines()[3:]]
    assert rows == list(make_manifest().digests)


def test_a_config_map_carries_the_record_unchanged(pratique: Run, tmp_path: Path) -> None:
    messages = ({"role": "user", "content": "  'quoted' \"twice\"\n\ttab: # 🚢 \x07 " + "long words " * 50},)
    record = make_record(golden=make_record().golden.model_copy(update={"cases": (make_case(messages=messages),)}))
    path = tmp_path / "record.json"
    path.write_text(record.to_json())
    result = pratique("release", "show", path, "--format", "configmap", "--name", "tiny-release", "--immutable")
    config_map = yaml.safe_load(result.out)
    assert (config_map["metadata"]["name"], config_map["immutable"]) == ("tiny-release", True)
    assert config_map["data"]["record.json"] == record.to_json()
    wrapped = tmp_path / "map.yaml"
    wrapped.write_text(result.out)
    assert pratique("release", "diff", path, wrapped).code == 0


def test_json_output_is_for_programs(pratique: Run, record_file: Path) -> None:
    value = json.loads(pratique("release", "show", record_file, "-o", "json").out)
    assert value["fingerprint"] == make_record().fingerprint
    assert yaml.safe_load(pratique("release", "show", record_file, "-o", "yaml").out) == value


def test_the_same_release_is_no_difference(pratique: Run, record_file: Path) -> None:
    result = pratique("release", "diff", record_file, record_file)
    assert (result.code, result.out) == (0, "The releases are the same.\n")


def test_a_record_that_proves_less_of_the_same_release_is_not_called_the_same(
    pratique: Run, record_file: Path, tmp_path: Path
) -> None:
    """No fingerprint covers the golden cases: whoever may edit a record can thin them out, and this is where it would be seen."""
    golden = make_record().golden
    first, *others = golden.cases
    altered = first.model_copy(
        update={"outputs": (make_output(ids=(10, 11, 3)), make_output(device_class="cuda-sm90"))}
    )
    thinned = make_record(golden=golden.model_copy(update={"cases": (altered, *others[1:])}))
    other = tmp_path / "other.json"
    other.write_text(thinned.to_json())
    result = pratique("release", "diff", record_file, other)
    assert result.code == 1
    sentence, _, *rows = result.out.splitlines()
    assert sentence == "The releases are the same, what their records make a pod prove is not:"
    build = short_digest(make_digest("build"))
    assert [row.split("   ")[0] for row in rows] == [
        f"golden.cases[greeting].outputs[FP32 cpu {build}].ids",
        f"golden.cases[greeting].outputs[FP32 cuda-sm90 {build}]",
        f"golden.cases[{others[0].name}]",
    ]
    (part,) = json.loads(pratique("release", "diff", record_file, other, "-o", "json").out)
    assert (part["part"], len(part["fields"])) == ("golden", 3)
    review = pratique("release", "review", record_file, other)
    assert "What their records make a pod prove is not" in review.out


def test_a_manifest_says_nothing_of_what_is_proved(pratique: Run, record_file: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(make_manifest().to_json_value()))
    assert pratique("release", "diff", record_file, manifest).out == "The releases are the same.\n"


def test_a_difference_names_field_and_values_and_ends_with_1(pratique: Run, record_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "manifest.json"
    manifest = make_manifest()
    changed = manifest.model_copy(update={"engine": manifest.engine.model_copy(update={"version": "0.2.0"})})
    # As /manifest of a pod answers it.
    other.write_text(json.dumps({**changed.to_json_value(), "digests": changed.digests, "fingerprint": "x"}))
    result = pratique("release", "diff", record_file, other)
    assert result.code == 1
    assert result.out.splitlines()[1].split() == ["engine.version", "0.1.0", "0.2.0"]
    (difference,) = json.loads(pratique("release", "diff", record_file, other, "-o", "json").out)
    assert difference["reason"] == "EngineMismatch"


def test_the_config_map_has_the_name_that_stamping_refers_to(
    pratique: Run, record_file: Path, service_file: Path, tmp_path: Path
) -> None:
    """It was once named after the file, and the service that stamp wrote found no record."""
    shown = pratique("release", "show", record_file, "-o", "configmap", "--service", service_file)
    stamped = yaml.safe_load(pratique("release", "stamp", service_file, "--record", record_file).out)
    assert yaml.safe_load(shown.out)["metadata"]["name"] == stamped["spec"]["release"]["recordRef"]["name"]
    nameless = pratique("release", "show", record_file, "-o", "configmap")
    assert (nameless.code, nameless.out) == (2, "")
    wrapped = tmp_path / "map.yaml"
    wrapped.write_text(shown.out)
    assert pratique("release", "show", wrapped, "-o", "configmap").out == shown.out


def test_stamping_names_the_release_and_leaves_the_rest(pratique: Run, record_file: Path, service_file: Path) -> None:
    service_file.write_text(f"{SERVICE}---\nkind: Secret\nmetadata: {{name: keys}}\n")
    result = pratique("release", "stamp", service_file, "--record", record_file)
    service, secret = yaml.safe_load_all(result.out)
    before: dict[str, Any] = yaml.safe_load(SERVICE)
    assert service["spec"].pop("release") == {
        "fingerprint": make_record().fingerprint,
        "recordRef": {"name": "tiny-release"},
    }
    assert service == before
    assert secret == {"kind": "Secret", "metadata": {"name": "keys"}}
    assert service_file.read_text().startswith(SERVICE)


def test_stamping_keeps_a_given_record_name_and_writes_only_when_told(
    pratique: Run, record_file: Path, service_file: Path
) -> None:
    arguments = ("release", "stamp", service_file, "--record", record_file, "--record-ref", "approved", "--write")
    assert pratique(*arguments).out == ""
    pratique("release", "stamp", service_file, "--record", record_file, "--write")
    assert yaml.safe_load(service_file.read_text())["spec"]["release"]["recordRef"] == {"name": "approved"}


FAULTS: dict[str, tuple[str, str]] = {
    "not there": ("", "cannot be read: No such file"),
    "not JSON": ("{", "is not JSON"),
    "no record": ("{}", "manifest: "),
    "no map": ("kind: Secret", "neither a release record nor a ConfigMap"),
    "YAML garbage": ("a: [", "is not YAML"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_gets_a_sentence_and_3(pratique: Run, fault: str, record_file: Path, tmp_path: Path) -> None:
    text, sentence = FAULTS[fault]
    path = tmp_path / "bad"
    if text:
        path.write_text(text)
    result = pratique("release", "diff", record_file, path)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("error: ")
    assert sentence in result.err


def test_a_file_with_two_services_cannot_be_stamped(pratique: Run, record_file: Path, service_file: Path) -> None:
    service_file.write_text(f"{SERVICE}---{SERVICE}")
    result = pratique("release", "stamp", service_file, "--record", record_file)
    assert (result.code, result.err) == (3, f"error: {service_file} holds 2 InferenceServices, not one\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("release", "record"),
        ("release", "record", "--config", "a", "--model", "b"),
        ("release", "record", "--model", ".", "-o", "configmap"),
        ("release", "record", "--model", ".", "--key", "key.pem"),
        ("release", "build", "--config", "a", "--service", "b"),
        ("release", "build", "--config", "a", "--dtype", "FP32"),
        ("release", "build", "--config", "a", "--trust-remote-code"),
        ("release", "build", "--model", ".", "--adapter", "sailor"),
        ("release", "build", "--model", ".", "--dtype", "FP8"),
        ("release", "build", "--model", ".", "--quantization-keep", "lm_head"),
        ("release", "build", "--config", "a", "--quantization-keep", "lm_head"),
        ("serve", "--model", ".", "--trust-first", "--quantization-keep", "lm_head"),
        ("serve",),
        ("serve", "--model", "."),
        ("release", "nonsense"),
        ("chat",),
    ],
)
def test_wrong_usage_ends_with_2(pratique: Run, arguments: tuple[str, ...]) -> None:
    assert pratique(*arguments).code == 2


def test_a_missing_model_folder_ends_with_3(pratique: Run, tmp_path: Path) -> None:
    result = pratique("release", "build", "--model", tmp_path / "nowhere")
    assert result.code == 3
    assert "does not exist" in result.err


def test_a_service_is_mapped_as_the_operator_maps_it(service_file: Path, tmp_path: Path) -> None:
    spec = service_spec(service_file, model=tmp_path, tokenizer=None, chat_template=None, image="")
    assert (spec.served_model_name, spec.namespace, spec.engine.max_num_seqs) == ("tiny", "demo", 4)
    assert (spec.model.uri, spec.model.path) == ("file:///models/tiny", str(tmp_path))
    assert spec.engine.image_digest is None
    by_digest = service_spec(
        service_file, model=tmp_path, tokenizer=None, chat_template=None, image="r/server@sha256:" + "a" * 64
    )
    assert by_digest.engine.image_digest == "sha256:" + "a" * 64


def test_a_folders_image_digest_and_adapters_are_part_of_its_release(tmp_path: Path) -> None:
    digest = "sha256:" + "a" * 64
    spec = folder_spec(
        tmp_path, image=f"r/server@{digest}", adapters={"sailor": tmp_path}, quantization="Int8WeightOnly"
    )
    assert (spec.engine.image_digest, spec.quantization.method) == (digest, "Int8WeightOnly")
    assert [(adapter.name, adapter.path) for adapter in spec.model.adapters] == [("sailor", str(tmp_path))]
    assert not spec.model.trust_remote_code
    assert folder_spec(tmp_path, trust_remote_code=True).model.trust_remote_code


def test_kept_layers_are_the_same_release_by_option_and_by_service(service_file: Path, tmp_path: Path) -> None:
    options = folder_spec(tmp_path, quantization="Int8WeightOnly", quantization_keep=["b", "a", "b"])
    text = "  quantization: {method: Int8WeightOnly, config: {keep: [a, b, a]}}\n"
    service_file.write_text(SERVICE.replace("  engine:", f"{text}  engine:"))
    mapped = service_spec(service_file, model=tmp_path, tokenizer=None, chat_template=None, image="")
    assert options.quantization == mapped.quantization
    assert options.quantization.config == {"keep": ["a", "b"]}
    assert folder_spec(tmp_path, quantization="Int8WeightOnly").quantization.config == {}


def test_a_service_with_a_wrong_field_names_it(pratique: Run, service_file: Path, tmp_path: Path) -> None:
    service_file.write_text(SERVICE.replace("maxNumSeqs: 4", "maxNumSeqs: many"))
    result = pratique("release", "build", "--service", service_file, "--model", tmp_path)
    assert result.code == 3
    assert "spec.engine.maxNumSeqs" in result.err


def test_a_serving_document_with_a_wrong_field_names_it(pratique: Run, tmp_path: Path) -> None:
    path = tmp_path / "serving.json"
    path.write_text('{"servedModelName": "x", "model": {"path": "p", "uri": "u"}, "engine": {"name": "Fast"}}')
    result = pratique("serve", "--config", path)
    assert result.code == 3
    assert "engine.name" in result.err


def test_a_record_too_large_for_a_config_map_is_refused(pratique: Run, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    value = make_record().to_json_value()
    value["golden"]["cases"][0]["messages"][0]["content"] = "x" * 2**20
    path.write_text(json.dumps(value))
    result = pratique("release", "show", path, "-o", "configmap", "--name", "tiny-release")
    assert result.code == 3
    assert "ConfigMap leaves room for" in result.err


def test_the_record_read_back_is_the_record(record_file: Path) -> None:
    assert ReleaseRecord.from_json(record_file.read_text()) == make_record()


def test_a_verdict_is_read_from_its_sentence_down() -> None:
    from pratique_cli.commands.release.output import describe_verdict
    from pratique_contract import CheckResult, Evidence, Reason, Verdict, VerdictResult

    message = "model.revision: 1 was recorded, 2 is loaded"
    verdict = Verdict(
        result=VerdictResult.FAIL,
        reason=Reason.MODEL_MISMATCH,
        message=message,
        part="model",
        expected="sha256:a",
        observed="two\nlines",
        evidence=(Evidence(subject="model.revision", expected="1", observed="2"),),
        checks=(CheckResult(name="manifest", result=VerdictResult.FAIL, duration_ms=1.2, message=message),),
    )
    lines = describe_verdict(verdict).splitlines()
    assert lines[:4] == [
        f"Fail: ModelMismatch: {message}",
        "  Part:      model",
        "  Expected:  sha256:a",
        "  Observed:  'two\\nlines'",
    ]
    assert lines[6].split() == ["manifest", "Fail", "1", "ms", "as", "said", "above"]
    assert lines[-1].split() == ["model.revision", "1", "2"]
