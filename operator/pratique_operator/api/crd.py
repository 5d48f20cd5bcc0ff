"""The CustomResourceDefinition, generated from the pydantic models.

``python -m pratique_operator.api.crd`` writes ``crds/``, the chart's copy and the field table in ``docs/crd.md``; ``--check`` fails on
drift. pydantic's JSON Schema is made *structural*: references inlined, ``T | None`` collapsed, ``const`` turned into ``enum``;
whatever a structural schema cannot say raises ``NotStructuralError`` instead of being dropped.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from pratique_contract import constants
from pratique_contract.model import ContractModel
from pratique_operator.api.schema import INTEGER_MAX, cel
from pratique_operator.api.status_types import InferenceServiceStatus
from pratique_operator.api.types import SERVICE_NAME_MAX, InferenceServiceSpec

Schema = dict[str, Any]

NAME: Final = f"{constants.PLURAL}.{constants.GROUP}"
# The scale subresource reads the stored object, so this one default must be stored.
STORED_DEFAULTS: Final = frozenset({"spec.replicas"})

EXAMPLE: Final = "examples/all-fields.yaml"

_KEPT: Final = {
    *("type", "description", "enum", "format", "pattern", "required"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "maxProperties"),
    *("x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
}
_DROPPED: Final = frozenset({"title", "default", "$defs"})


class NotStructuralError(Exception):
    """A model says something that a structural schema cannot."""


def structural(model: type[ContractModel], path: str) -> Schema:
    """The model as a structural schema; ``path`` is where it stands in the object, for errors and stored defaults."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(schema, schema.get("$defs", {}), path)


def _convert(schema: Schema, definitions: Schema, path: str) -> Schema:
    schema = _collapse(schema, definitions, path)
    result: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _convert(child, definitions, f"{path}.{name}") for name, child in value.items()}
        elif key == "items":
            result[key] = _convert(value, definitions, f"{path}[]")
        elif key == "additionalProperties":
            if isinstance(value, dict):
                result[key] = _convert(value, definitions, f"{path}.*")
            elif value is True:
                raise NotStructuralError(f"{path}: a free-form object must say x-kubernetes-preserve-unknown-fields")
            # False means "unknown fields are refused"; next to properties the API server prunes or refuses by itself.
        elif key == "const":
            result["enum"] = [value]
        elif key in _KEPT:
            result[key] = " ".join(value.split()) if key == "description" else value
        elif key not in _DROPPED:
            raise NotStructuralError(f"{path}: {key} has no place in a structural schema")
    if path in STORED_DEFAULTS:
        result["default"] = schema["default"]
    if "type" not in result and not result.get("x-kubernetes-int-or-string"):
        raise NotStructuralError(f"{path}: no type")
    return result


def _collapse(schema: Schema, definitions: Schema, path: str) -> Schema:
    """Inline ``$ref`` and turn ``T | None`` into T: a structural field is optional by not being required."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return _collapse({**target, **{k: v for k, v in schema.items() if k != "$ref"}}, definitions, path)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            some = [option for option in schema[keyword] if option.get("type") != "null"]
            if len(some) != 1:
                raise NotStructuralError(f"{path}: a union of {len(some)} types")
            rest = {k: v for k, v in schema.items() if k != keyword}
            return _collapse({**_collapse(some[0], definitions, path), **rest}, definitions, path)
    return schema


def _column(name: str, json_path: str, description: str, *, type_: str = "string", wide: bool = False) -> Schema:
    column: Schema = {"name": name, "type": type_, "jsonPath": json_path, "description": description}
    return {**column, "priority": 1} if wide else column


def _condition(name: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{field}'


COLUMNS: Final = (
    _column("Ready", _condition("Ready", "status"), "Whether the current spec serves"),
    _column("Revision", ".status.serving.revision", "The revision that takes traffic"),
    _column("Candidate", ".status.candidate.revision", "The revision that is on its way"),
    _column("Replicas", ".status.replicas", "Pods of all revisions", type_="integer"),
    _column("Verified", ".status.readyReplicas", "Pods that are verified and ready", type_="integer"),
    _column(
        "Approved", ".status.serving.approved", "Whether a person approved the release that serves", type_="boolean"
    ),
    _column("Reason", _condition("Ready", "reason"), "Why it is ready or not"),
    _column("Age", ".metadata.creationTimestamp", "Age of the service", type_="date"),
    _column(
        "Degraded", _condition("Degraded", "reason"), "What a person should look at, also while it serves", wide=True
    ),
    _column("Fingerprint", ".status.serving.fingerprint", "The release that takes traffic", wide=True),
    _column("URL", ".status.url", "Where the API is, inside the cluster", wide=True),
    _column("Message", _condition("Ready", "message"), "The reason as a sentence", wide=True),
)


def build_crd() -> Schema:
    """The whole CustomResourceDefinition as plain JSON types."""
    schema: Schema = {
        "type": "object",
        "description": "A model served by pods that take traffic only after each has proved to be the approved release.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(InferenceServiceSpec, "spec"),
            "status": structural(InferenceServiceStatus, "status"),
        },
        "x-kubernetes-validations": [
            cel(
                f"size(self.metadata.name) <= {SERVICE_NAME_MAX} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                f"metadata.name becomes a Service's name: at most {SERVICE_NAME_MAX} lower-case letters, digits and -, "
                "starting with a letter",
            )
        ],
    }
    version: Schema = {
        "name": constants.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": list(COLUMNS),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": constants.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": constants.KIND,
                "listKind": f"{constants.KIND}List",
                "plural": constants.PLURAL,
                "singular": constants.KIND.lower(),
                "shortNames": [constants.SHORT_NAME],
            },
            "versions": [version],
        },
    }


def crd_yaml() -> str:
    """The file's text."""
    body = yaml.safe_dump(build_crd(), sort_keys=False, width=120, allow_unicode=True)
    return f"# Generated by python -m pratique_operator.api.crd from operator/pratique_operator/api/types.py; do not edit.\n{body}"


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    required = schema.get("required", [])
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child, name in required
        yield from _fields(child, f"{path}.{name}")
        if "items" in child:
            yield from _fields(child["items"], f"{path}.{name}[]")


def _type_text(schema: Schema) -> str:
    """The type with its limits: ``integer 1–64``, ``list of string, at most 16``."""
    if "enum" in schema:
        return " \\| ".join(map(str, schema["enum"]))
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if schema.get("type") == "array":
        most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list of {_type_text(schema['items'])}{most}"
    if "maximum" in schema:
        top = schema["maximum"]
        return f"integer {schema['minimum']}–{top}" if top < INTEGER_MAX else f"integer from {schema['minimum']}"
    return str(schema["type"])


def fields_markdown(example: str) -> str:
    """``docs/crd.md``: every field with its type, limits, meaning and CEL rules, and all of them in one manifest."""
    crd = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [
        "# InferenceService fields",
        "",
        "Generated by `python -m pratique_operator.api.crd` from the pydantic models; do not edit.",
        "A refused value is answered by the API server itself, with the field and one of the sentences below.",
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    refusals: list[str] = []
    for part in ("spec", "status"):
        for path, schema, required in _fields(crd["properties"][part], part):
            meaning = schema.get("description", "").replace("|", "\\|")
            lines.append(f"| `{path}` | {_type_text(schema)}{' (required)' if required else ''} | {meaning} |")
            rules = [schema, schema.get("items", {})]
            found = [rule for holder in rules for rule in holder.get("x-kubernetes-validations", ())]
            refusals.extend(f"* `{path}`: {rule['message']}." for rule in found)
    refusals += [f"* `metadata.name`: {rule['message']}." for rule in crd["x-kubernetes-validations"]]
    lines += ["", "## All of it in one manifest", "", f"`{EXAMPLE}`:", "", "```yaml", example.rstrip(), "```"]
    return "\n".join([*lines, "", "## Refused by the API server", "", *refusals, ""])


def outputs(root: Path) -> dict[Path, str]:
    """Every generated file with its text."""
    file = f"{constants.GROUP}_{constants.PLURAL}.yaml"
    text = crd_yaml()
    return {
        root / "crds" / file: text,
        root / "charts" / "pratique" / "crds" / file: text,
        root / "docs" / "crd.md": fields_markdown((root / EXAMPLE).read_text(encoding="utf-8")),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pratique_operator.api.crd", description="Write the generated CRD files."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file differs")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[3], help="the repository")
    options = parser.parse_args(arguments)
    stale = [path for path, text in outputs(options.root).items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(
                f"{path.relative_to(options.root)} is not what the models say; run python -m pratique_operator.api.crd"
            )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(outputs(options.root)[path])
            print(f"Wrote {path.relative_to(options.root)}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
