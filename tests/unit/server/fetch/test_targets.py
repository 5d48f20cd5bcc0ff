"""What a serving document asks to be fetched."""

import subprocess
import sys
from pathlib import Path

from pratique_contract.serving import AdapterSource, ModelSource, ServingSpec, TokenizerSource
from pratique_server.fetch.selection import Wanted
from pratique_server.fetch.targets import find_targets


def make_spec(*, model: ModelSource, tokenizer: TokenizerSource | None = None) -> ServingSpec:
    return ServingSpec(served_model_name="m", model=model, tokenizer=tokenizer)


MODEL = ModelSource(path="/models/hf-1", uri="hf://o/n", revision="a" * 40)


def test_mounted_sources_are_nothing_to_fetch() -> None:
    assert find_targets(make_spec(model=ModelSource(path="/models/model", uri="pvc://claim/m")), None) == ()


def test_model_adapters_and_tokenizer_come_in_their_order() -> None:
    adapter = AdapterSource(name="x", path="/models/hf-2", uri="hf://o/x")
    tokenizer = TokenizerSource(path="/models/hf-3", uri="hf://o/t")
    model = MODEL.model_copy(update={"adapters": (adapter,)})
    targets = find_targets(make_spec(model=model, tokenizer=tokenizer), None)
    assert [(t.path, t.wanted.weights) for t in targets] == [
        (Path("/models/hf-1"), True),
        (Path("/models/hf-2"), True),
        (Path("/models/hf-3"), False),
    ]


def test_a_source_named_twice_is_fetched_once_with_what_both_need() -> None:
    tokenizer = TokenizerSource(path=MODEL.path, uri=MODEL.uri, revision=MODEL.revision)
    (target,) = find_targets(make_spec(model=MODEL, tokenizer=tokenizer), None)
    assert target.wanted == Wanted(weights=True)


def test_declared_code_is_wanted() -> None:
    (target,) = find_targets(make_spec(model=MODEL.model_copy(update={"trust_remote_code": True})), None)
    assert target.wanted.code


def test_the_program_imports_nothing_that_computes_and_no_source_s_library() -> None:
    """It starts in every pod and must neither wait for torch nor hold its memory; a hub's or bucket's library is for who has one."""
    heavy = ("torch", "transformers", "numpy", "huggingface_hub", "minio")
    program = f"import sys, pratique_server.fetch.program; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
