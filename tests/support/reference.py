"""What an answer is compared with: the library's own generation, with its own cache."""

from typing import Any

import torch


def generate_with_transformers(model: Any, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy ids and their log-probabilities, ``count`` of each, whatever ends a text."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),  # else it hides every id equal to the padding id
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids = output.sequences[0, len(prompt) :].tolist()
    return ids, [float(torch.log_softmax(logits[0], -1)[i]) for logits, i in zip(output.logits, ids, strict=True)]
