"""Teacher forcing: the logits behind given ids, by both engines, equal to what generation and transformers compute."""

from pathlib import Path

import pytest
import torch

from pratique_server.engine.loader import load_model
from pratique_server.engine.step_engine import ForcedSequence
from tests.unit.server.engine.makers import make_engine, make_request, run

PROMPTS = [[(17 * index + 7 * i * i + 3) % 571 for i in range(3 + 40 * index)] for index in range(10)]
FORCED = [[(31 * index + 5 * i) % 571 for i in range(1 + index % 4)] for index in range(10)]
SEQUENCES = [ForcedSequence(prompt_ids=p, forced_ids=f) for p, f in zip(PROMPTS, FORCED, strict=True)]


@pytest.mark.parametrize("name", ["Torch", "Naive"])
def test_scores_are_the_plain_forward_pass_at_the_forced_positions(tiny_model_dir: Path, name: str) -> None:
    scores = make_engine(tiny_model_dir, name=name).score(SEQUENCES)
    model = load_model(tiny_model_dir).model
    for sequence, rows in zip(SEQUENCES, scores, strict=True):
        ids = sequence.prompt_ids + sequence.forced_ids
        with torch.inference_mode():
            plain = model(torch.tensor([ids]), use_cache=False).logits[0, len(sequence.prompt_ids) - 1 : -1].float()
        assert rows.shape == plain.shape
        torch.testing.assert_close(rows, plain, atol=1e-3, rtol=1e-4)


def test_the_ids_that_the_engine_chose_are_the_most_likely_of_their_scores(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir)
    requests = [make_request(f"r{i}", prompt_ids=prompt) for i, prompt in enumerate(PROMPTS[:3])]
    chosen = {key: outcome.ids for key, outcome in run(engine, *requests).items()}
    sequences = [ForcedSequence(prompt_ids=PROMPTS[i], forced_ids=chosen[f"r{i}"]) for i in range(3)]
    assert [rows.argmax(-1).tolist() for rows in engine.score(sequences)] == [chosen[f"r{i}"] for i in range(3)]
    engine.check_integrity()
