"""The revision and what it stands for; that every field that can change a pod moves it is in ``test_revision_fields.py``."""

import json
from typing import Any

import pytest

from pratique_contract import ServingSpec, constants
from pratique_contract.review import Review
from pratique_contract.serving import AdapterSource, DownloadSpec, ModelSource, ReverifySpec, TokenizerSource
from pratique_contract.sources import cache_folder
from pratique_operator.api.types import parse_spec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.revision import Target, compute_target
from pratique_operator.errors import InvalidSpecError, RecordError
from pratique_operator.release.references import Reference, References, required_references
from tests.support.releases import make_record

CONFIG = OperatorConfig(server_image="registry/server:1", allow_file_sources=True)
HUB = {"uri": "hf://owner/name", "revision": "a" * 40}
BASE: dict[str, Any] = {"model": {"uri": "file:///models/x"}, "engine": {"image": "localhost/none:1"}}


def target(references: References | None = None, config: OperatorConfig = CONFIG, **spec: Any) -> Target:
    merged = {**BASE, **spec}
    return compute_target(parse_spec(merged), references or References(), service="svc", namespace="ns", config=config)


def test_order_of_fields_and_written_defaults_keep_the_revision() -> None:
    spelled: dict[str, Any] = {"release": {"policy": "Enforce"}, "drain": {"preStopSeconds": 5, "deadlineSeconds": 30}}
    assert target(**spelled).revision == target().revision


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"method": "Int8WeightOnly", "config": {"keep": ["a", "b"]}}, {"config": {"keep": ["b", "a", "b"]}}),
        ({"method": "Int8WeightOnly"}, {"config": {}}),
        ({"method": "Int8WeightOnly"}, {"config": {"keep": []}}),
        ({"method": "None"}, {"config": {"keep": []}}),
    ],
)
def test_two_spellings_of_the_same_kept_layers_are_one_revision(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert target(quantization=one).revision == target(quantization={**one, **other}).revision


def test_default_image_is_part_of_the_revision() -> None:
    def of(image: str) -> str:
        return target(config=OperatorConfig(server_image=image, allow_file_sources=True), engine={}).revision

    assert of("registry/server:1") != of("registry/server:2")


def test_content_of_secrets_in_the_environment_is_part_of_the_revision() -> None:
    """linagora/openrag#985: a rotated Secret that no pod saw."""
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]

    def of(value: str) -> str:
        found = References({Reference("Secret", "s"): {"data": {"k": value}}})
        return target(found, template={"spec": {"env": env}}).revision

    assert of("b25l") != of("dHdv")


def test_secret_template_is_mounted_and_never_copied_into_the_config_map() -> None:
    found = References({Reference("Secret", "s"): {"data": {"k": "c2VjcmV0IHRleHQ="}}})
    built = target(found, chatTemplate={"secretKeyRef": {"name": "s", "key": "k"}})
    assert "secret text" not in json.dumps([built.config_data, built.template])
    serving = ServingSpec.model_validate_json(built.config_data[constants.SERVING_FILE])
    assert serving.chat_template_path == "/etc/pratique-template/k"


def test_serving_document_maps_the_spec() -> None:
    built = target(
        model={"uri": "pvc://models/a/b", "name": "served", "revision": "a" * 40},
        quantization={"dtype": "BF16", "method": "Int8WeightOnly", "config": {"keep": ["b.*", "a"]}},
        engine={"name": "Naive", "image": "r/s@sha256:" + "c" * 64, "kvCache": {"memory": "1Gi"}, "maxModelLen": 99},
        auth={"apiKeySecretRef": {"name": "keys"}},
        limits={"maxQueued": 3},
        startup={"probeTimeoutSeconds": 5},
    )
    serving = ServingSpec.model_validate_json(built.config_data[constants.SERVING_FILE])
    assert (serving.service, serving.namespace, serving.revision) == ("svc", "ns", built.revision)
    assert (serving.served_model_name, serving.model.path, serving.model.revision) == (
        "served",
        "/models/model",
        "a" * 40,
    )
    assert (serving.quantization.method, serving.quantization.config) == ("Int8WeightOnly", {"keep": ["a", "b.*"]})
    assert (serving.quantization.dtype, serving.engine.name, serving.engine.max_model_len) == ("BF16", "Naive", 99)
    assert serving.engine.image_digest == "sha256:" + "c" * 64
    assert serving.engine.kv_cache.memory_bytes == 2**30
    assert (serving.engine.max_num_seqs, serving.limits.max_queued, serving.probe_timeout_seconds) == (16, 3, 5)
    assert (serving.api_keys_path, serving.release.record_path) == ("/etc/pratique-keys", None)


def test_serving_document_maps_sources_downloads_and_re_verification() -> None:
    archive = {"uri": "https://host/m.tar", "revision": "sha256:" + "c" * 64}
    built = target(
        model={
            **HUB,
            "trustRemoteCode": True,
            "adapters": [{"name": "one", "uri": "pvc://a/b"}, {"name": "two", **archive}],
        },
        tokenizer={"uri": "pvc://models/t", "revision": "d" * 40},
        download={
            "credentialsSecretRef": {"name": "hub"},
            "hubEndpoint": "https://mirror",
            "s3Endpoint": "http://minio:9000",
            "s3Region": "eu",
            "connections": 3,
            "stallSeconds": 7,
            "cache": {"emptyDir": {"sizeLimit": "3Gi"}},
        },
        release={"reverify": {"intervalSeconds": 5, "failures": 2, "onFailure": "Unready"}},
    )
    serving = ServingSpec.model_validate_json(built.config_data[constants.SERVING_FILE])
    assert serving.model == ModelSource(
        path=cache_folder(HUB["uri"], HUB["revision"]),
        **HUB,
        trust_remote_code=True,
        adapters=(
            AdapterSource(name="one", path="/models/adapter-one", uri="pvc://a/b"),
            AdapterSource(name="two", path=cache_folder(archive["uri"], archive["revision"]), **archive),
        ),
    )
    assert serving.tokenizer == TokenizerSource(path="/models/tokenizer", uri="pvc://models/t", revision="d" * 40)
    assert serving.download == DownloadSpec(
        hub_endpoint="https://mirror",
        s3_endpoint="http://minio:9000",
        s3_region="eu",
        credentials_path="/etc/pratique-credentials",
        cache_bytes_max=3 * 2**30,
        connections=3,
        stall_seconds=7,
    )
    assert serving.release.reverify == ReverifySpec(interval_seconds=5, failures=2, on_failure="Unready")


def test_a_revision_that_nothing_checks_is_not_told_as_the_one_that_serves() -> None:
    """Weights from another commit than the status reports: of a mounted folder spec.model.revision is somebody's note."""
    assert target(model={"uri": "pvc://models/x", "revision": "a" * 40}).model_revision is None


DIGEST = "sha256:" + "d" * 64


@pytest.mark.parametrize(
    ("model", "revision"),
    [
        (HUB, "a" * 40),
        ({"uri": f"oci://registry:5000/models/x@{DIGEST}"}, DIGEST),
        ({"uri": f"oci://registry/models/x@{DIGEST}", "revision": DIGEST}, DIGEST),
        ({"uri": "https://host/x.tar", "revision": DIGEST}, DIGEST),
        ({"uri": "s3://bucket/x", "revision": DIGEST}, DIGEST),
        ({"uri": "s3://bucket/a@b"}, None),
        ({"uri": "file:///models/a@b"}, None),
    ],
)
def test_the_revision_a_fetched_source_is_pinned_by_is_told_whatever_its_kind(
    model: dict[str, Any], revision: str | None
) -> None:
    found = target(model=model)
    assert (found.model_revision, found.annotations.get(constants.ANNOTATION_MODEL_REVISION)) == (revision, revision)


def test_another_version_of_operator_and_server_finds_what_was_fetched_before() -> None:
    """LLMKube#193: cached models were downloaded again at an upgrade. Where a source lies follows from source and revision alone."""

    def path(image: str) -> str:
        built = target(config=OperatorConfig(server_image=image), model=HUB, engine={})
        return ServingSpec.model_validate_json(built.config_data[constants.SERVING_FILE]).model.path

    assert path("registry/server:1") == path("registry/server:2") == cache_folder(HUB["uri"], HUB["revision"])


def test_what_the_user_did_not_say_is_the_servers_own_default() -> None:
    built = target(model=HUB, download={"cache": {"claimName": "models"}})
    serving = ServingSpec.model_validate_json(built.config_data[constants.SERVING_FILE])
    assert (serving.download, serving.release.reverify) == (DownloadSpec(), ReverifySpec())
    assert not serving.model.trust_remote_code


def test_fetcher_is_told_the_limit_of_a_cache_nobody_described() -> None:
    serving = ServingSpec.model_validate_json(target(model=HUB).config_data[constants.SERVING_FILE])
    assert serving.download == DownloadSpec(cache_bytes_max=20 * 2**30)


def test_content_of_the_credentials_is_not_part_of_the_revision() -> None:
    """Rotating a token must not roll pods: the Secret is not even read."""
    spec = parse_spec({**BASE, "model": HUB, "download": {"credentialsSecretRef": {"name": "hub"}}})
    assert Reference("Secret", "hub") not in required_references(spec)


def test_record_is_handed_to_the_pod_with_its_fingerprint() -> None:
    record = make_record()
    found = References({Reference("ConfigMap", "rel"): {"data": {"record.json": record.to_json()}}})
    built = target(found, release={"recordRef": {"name": "rel"}, "fingerprint": record.fingerprint})
    serving = ServingSpec.model_validate_json(built.config_data[constants.SERVING_FILE])
    assert built.config_data[constants.RECORD_FILE] == record.to_json()
    assert built.fingerprint == serving.release.fingerprint == record.fingerprint
    assert serving.release.record_path == constants.RECORD_PATH


def test_review_added_to_a_record_in_use_restarts_no_pod() -> None:
    record = make_record()
    review = Review(reference="sha256:" + "0" * 64, candidate=record.fingerprint)
    reviewed = make_record(review=review)
    release = {"fingerprint": record.fingerprint, "recordRef": {"name": "rel"}}

    def of(text: str) -> Target:
        return target(References({Reference("ConfigMap", "rel"): {"data": {"record.json": text}}}), release=release)

    assert of(reviewed.to_json()).revision == of(record.to_json()).revision
    assert of(reviewed.to_json()).record == reviewed


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "there is no ConfigMap rel"),
        ({"data": {}}, "has no key record.json"),
        ({"data": {"record.json": "nonsense"}}, "is not JSON"),
        ({"data": {"record.json": "{}"}}, "not valid at manifest"),
    ],
)
def test_unusable_record_is_a_sentence(data: dict[str, Any] | None, text: str) -> None:
    approved = {"recordRef": {"name": "rel"}, "fingerprint": "sha256:" + "0" * 64}
    with pytest.raises(RecordError, match=text):
        target(References({Reference("ConfigMap", "rel"): data}), release=approved)


def test_record_without_a_fingerprint_approves_nothing_even_when_an_older_crd_let_it_in() -> None:
    found = References({Reference("ConfigMap", "rel"): {"data": {"record.json": make_record().to_json()}}})
    with pytest.raises(InvalidSpecError, match=r"spec\.release\.fingerprint: recordRef needs it"):
        target(found, release={"recordRef": {"name": "rel"}})


def test_record_of_another_release_names_both_fingerprints() -> None:
    record, other = make_record(), "sha256:" + "0" * 64
    found = References({Reference("ConfigMap", "rel"): {"data": {"record.json": record.to_json()}}})
    with pytest.raises(RecordError) as raised:
        target(found, release={"recordRef": {"name": "rel"}, "fingerprint": other})
    assert record.fingerprint in str(raised.value)
    assert other in str(raised.value)


def test_node_folder_is_refused_unless_the_operator_allows_it() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.model\.uri: file:// reads a folder of the node"):
        target(config=OperatorConfig(server_image="a/b:1"))


def test_missing_image_names_the_field() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.engine\.image: no image is given"):
        target(config=OperatorConfig(allow_file_sources=True), engine={})


def test_configuration_too_large_for_a_config_map_is_a_sentence() -> None:
    found = References({Reference("ConfigMap", "c"): {"data": {"k": "x" * 1_000_001}}})
    with pytest.raises(InvalidSpecError, match="a ConfigMap holds at most"):
        target(found, chatTemplate={"configMapKeyRef": {"name": "c", "key": "k"}})
