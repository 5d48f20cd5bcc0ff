"""The load-time proof that packed execution computes the model: it passes where it should and catches what it must."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pratique_server.engine.protocol import LoadError
from pratique_server.engine.torch_engine import attention
from tests.mutation.faults.weights import flip_bit
from tests.support.mutations import copy_of
from tests.unit.server.engine.makers import make_engine, make_request, run


def test_a_sound_model_passes_and_the_facts_say_so(tiny_model_dir: Path) -> None:
    facts = make_engine(tiny_model_dir).identity().runtime_facts
    assert (facts["packedCheck"], facts["execution"]) == ("passed", "packed")
    assert facts["packedRelativeError"] < 1e-5
    assert facts["kvBytesPerToken"] == 2 * 2 * 2 * 16 * 4


def break_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an architecture whose attention does not look where ours lets it look."""
    original = attention._causal_mask
    monkeypatch.setattr(attention, "_causal_mask", lambda *a: torch.zeros_like(original(*a)))


def break_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an architecture that ignores the positions it is given."""
    from pratique_server.engine.torch_engine import model_runner

    original = model_runner._pack

    def pack(items: object, rows: int) -> object:
        ids, positions, segments, kept = original(items, rows)  # type: ignore[arg-type]
        return ids, list(range(len(positions))), segments, kept

    monkeypatch.setattr(model_runner, "_pack", pack)


def break_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an architecture with an attention rule we do not compute."""

    def refuse(*_: object) -> None:
        raise attention.UnsupportedAttentionError("the model's attention uses softcap")

    monkeypatch.setattr(attention, "_refuse_unknown", refuse)


@pytest.mark.parametrize("break_it", [break_mask, break_positions, break_call])
def test_a_model_that_does_not_survive_packing_is_refused_or_served_alone(
    tiny_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[pytest.MonkeyPatch], None],
) -> None:
    expected = run(make_engine(tiny_model_dir), make_request())["r"].ids
    break_it(monkeypatch)
    with pytest.raises(LoadError, match="does not compute the same packed"):
        make_engine(tiny_model_dir)
    engine = make_engine(tiny_model_dir, args=("--packed-check=one-sequence",))
    assert engine.identity().runtime_facts["execution"] == "one-sequence"
    assert engine.identity().runtime_facts["selfTest"] == {"result": "notNeeded", "goldenRequests": "alone"}
    assert run(engine, make_request())["r"].ids == expected


def test_an_architecture_known_not_to_survive_packing_is_refused(tmp_path: Path) -> None:
    """bloom computes its position bias from an attention mask of its own."""
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    config = BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=2, max_position_embeddings=64)
    BloomForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="does not compute the same packed"):
        make_engine(tmp_path)


def test_a_damaged_weight_is_blamed_on_the_weights_and_not_on_packing(tiny_model_dir: Path, tmp_path: Path) -> None:
    """The highest exponent bit: the model still computes numbers alone, and infinities when requests are packed."""
    name = "model.layers.0.self_attn.v_proj.weight"
    folder = copy_of(tiny_model_dir, tmp_path / "damaged", flip_bit(name, 30))
    with pytest.raises(LoadError, match=rf"{name} holds values that no trained model has") as raised:
        make_engine(folder)
    assert raised.value.part == "model"
