"""The declared release: a digest of every field of the spec that can change what a pod's manifest says, and of nothing else.

Under TrustFirst it says which record is whose. Replicas, labels or resources keep it, so files that changed behind an unchanged
declaration are refused; another model, flag or image is another release, which is recorded anew. Fields left at their default
do not enter, so that a field this operator learns tomorrow moves no digest. A test puts every field of the spec on one of the two lists.
"""

from typing import Any, Final

from pratique_contract.canonical import digest_bytes, digest_json
from pratique_contract.model import ContractModel
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.release.references import References, chat_template_text

# Of a section that is not declared as a whole: what of it is (limits), or what of it is not (model, engine).
LIMITS_DECLARED: Final = frozenset({"max_prompt_tokens", "max_output_tokens"})
MODEL_NOT_DECLARED: Final = frozenset({"name"})
ENGINE_NOT_DECLARED: Final = frozenset({"image"})  # as it is resolved, with the operator's default


def digest_declaration(spec: InferenceServiceSpec, references: References, *, image: str) -> str:
    """``image`` is the one the pods will run. Raises ``InvalidSpecError`` when a referenced template is missing."""
    template = chat_template_text(spec, references)
    return digest_json(
        {
            "model": _given(spec.model, leave_out=MODEL_NOT_DECLARED),
            "tokenizer": _given(spec.tokenizer),
            "chatTemplate": None if template is None else digest_bytes(template.encode()),
            "quantization": _given(spec.quantization),
            "engine": _given(spec.engine, leave_out=ENGINE_NOT_DECLARED),
            "image": image,
            "limits": {name: value for name, value in _given(spec.limits).items() if name in LIMITS_DECLARED},
        }
    )


def _given(part: ContractModel | None, *, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    if part is None:
        return {}
    return part.model_dump(mode="json", exclude_defaults=True, exclude=set(leave_out))
