"""The CRD is structural, says no when a model cannot be, and the generated files are what the models say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field

from pratique_contract.model import ContractModel
from pratique_operator.api import crd
from pratique_operator.api.types import InferenceServiceSpec, parse_spec

REPOSITORY = Path(__file__).resolve().parents[3]
FORBIDDEN = {
    "$ref",
    "$defs",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "const",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "title",
}


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from schemas(schema[keyword], f"{path}.{keyword}")


def root() -> dict[str, Any]:
    schema: dict[str, Any] = crd.build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_every_node_is_structural() -> None:
    for path, schema in schemas(root()):
        assert FORBIDDEN.isdisjoint(schema), path
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert not ("properties" in schema and "additionalProperties" in schema), path


def test_every_string_and_list_of_the_spec_has_a_limit() -> None:
    """The API server prices CEL rules by the largest possible value and refuses a CRD that could cost too much."""
    for path, schema in schemas(root()["properties"]["spec"], "spec"):
        if schema["type"] == "string" if "type" in schema else False:
            assert "maxLength" in schema or "enum" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path


def test_kubectl_explain_has_a_word_for_every_field() -> None:
    missing = []
    for part in ("spec", "status"):
        for path, schema, _ in crd._fields(root()["properties"][part], part):
            text = schema.get("description", "")
            if not text or "``" in text:
                missing.append(path)
    assert missing == []


def test_the_example_of_all_fields_has_all_of_them() -> None:
    """All but the ones that another choice excludes, and the fingerprint that ``release stamp`` writes."""
    document = yaml.safe_load((REPOSITORY / crd.EXAMPLE).read_text(encoding="utf-8"))
    parse_spec(document["spec"])
    missing = {
        path
        for path, _, _ in crd._fields(root()["properties"]["spec"], "spec")
        if not any(_found(document["spec"], path.split(".")[1:]))
    }
    chosen_otherwise = {
        "spec.chatTemplate.configMapKeyRef", "spec.chatTemplate.secretKeyRef", "spec.engine.kvCache.blocks",
        "spec.release.signature.configMapKeyRef", "spec.download.cache.claimName", "spec.download.cache.hostPath",
        "spec.template.spec.env[].valueFrom.secretKeyRef", "spec.release.fingerprint",
    }  # fmt: skip
    assert {path for path in missing if path.rpartition(".")[0] not in missing} == chosen_otherwise


def _found(value: Any, path: list[str]) -> Iterator[Any]:
    """Every value at a path; a step that ends with [] goes into each item."""
    if not path:
        yield value
    elif isinstance(value, dict) and (name := path[0].removesuffix("[]")) in value:
        items = value[name] if path[0].endswith("[]") else [value[name]]
        for item in items:
            yield from (_found(item, path[1:]) if len(path) > 1 else [True])


def test_a_refusal_is_a_sentence_and_no_bare_regular_expression() -> None:
    for path, schema in schemas(root()["properties"]["spec"], "spec"):
        assert "pattern" not in schema, path
        assert all(rule["message"] for rule in schema.get("x-kubernetes-validations", ())), path


def test_only_replicas_has_a_stored_default() -> None:
    assert [path for path, schema in schemas(root()) if "default" in schema] == [".spec.replicas"]


def test_replicas_and_selector_are_where_the_scale_subresource_reads_them() -> None:
    version = crd.build_crd()["spec"]["versions"][0]
    for path in version["subresources"]["scale"].values():
        node = root()
        for part in path.strip(".").split("."):
            node = node["properties"][part]


def test_union_is_refused_and_not_guessed() -> None:
    class Union(ContractModel):
        value: int | str

    with pytest.raises(crd.NotStructuralError, match=r"spec\.value: a union of 2 types"):
        crd.structural(Union, "spec")


def test_keyword_without_a_place_is_refused_and_not_dropped() -> None:
    class Exclusive(ContractModel):
        value: int = Field(gt=0)

    class Anything(ContractModel):
        value: dict[str, Any]

    with pytest.raises(crd.NotStructuralError, match="exclusiveMinimum"):
        crd.structural(Exclusive, "spec")
    with pytest.raises(crd.NotStructuralError, match="free-form"):
        crd.structural(Anything, "spec")


def test_optional_fields_collapse_and_required_ones_stay() -> None:
    schema = crd.structural(InferenceServiceSpec, "spec")
    assert schema["required"] == ["model"]
    assert schema["properties"]["tokenizer"]["type"] == "object"


def test_generated_files_are_current() -> None:
    assert crd.main(["--check", "--root", str(REPOSITORY)]) == 0


def test_check_fails_on_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / crd.EXAMPLE).write_text("kind: InferenceService\n", encoding="utf-8")
    assert crd.main(["--check", "--root", str(tmp_path)]) == 1
    assert "run python -m pratique_operator.api.crd" in capsys.readouterr().out
    assert crd.main(["--root", str(tmp_path)]) == 0
    assert crd.main(["--check", "--root", str(tmp_path)]) == 0
    written = next((tmp_path / "crds").iterdir())
    assert yaml.safe_load(written.read_text()) == crd.build_crd()
