"""Beyond the faults: mutants without effect, and faults that no gate of this kind can see. Neither is counted.

A mutant is equivalent when a proof stands beside it. A limit is a fault of the running program that the golden cases cannot reach: it
passes, and the test says so, so that the page about it stays true. A change of the program itself moves ``engine.build``.
"""

from typing import Any, Final

import torch

from pratique_contract.reasons import Reason
from pratique_server.text.renderer import Renderer
from pratique_server.text.tokenizer import Tokenizer
from tests.mutation.fault import Variation, engine, files, patched
from tests.mutation.faults import cache, computation, request_path
from tests.mutation.faults.texts import generation, tokenizer
from tests.mutation.faults.weights import config
from tests.mutation.scene import Scene
from tests.support.mutations import copy_of, swap_two_tokens

EQUIVALENT: Final = (
    Variation(
        name="the stop ids in another order, one of them twice",
        why="they are a set: sorted, each once, before anything reads them",
        arrange=files(generation(eos_token_id=[0, 2, 2])),
        base="talkative",
    ),
    Variation(
        name="the EOS id of config.json",
        why="generation_config.json names one, and then it alone is read",
        arrange=files(config(eos_token_id=0)),
    ),
    Variation(
        name="a generation default that is null",
        why="null says nothing: it is dropped before anything reads it",
        arrange=files(generation(min_p=None, typical_p=None)),
    ),
    Variation(
        name="the range in which weights would be initialised",
        why="every weight is read, none initialised; config.json is hashed as a whole all the same",
        arrange=files(config(initializer_range=0.5)),
        refused=Reason.MODEL_MISMATCH,
    ),
    Variation(
        name="the truncation a tokenizer file asks for",
        why="it is switched off after loading; the file is hashed all the same",
        arrange=files(
            tokenizer(
                lambda value: value.update(
                    truncation={"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
                )
            )
        ),
        refused=Reason.TOKENIZER_MISMATCH,
    ),
)


def _lowest_bit_in_memory(model: Any) -> None:
    """As a memory error would: one bit of one weight, after it was hashed."""
    weight = model.get_submodule("model.layers.0.mlp.up_proj").weight
    weight.view(torch.int32)[0, 0] ^= 1


def _rare_tokens_swapped(renderer: Any, scene: Scene) -> Renderer:
    return Renderer(
        renderer.template, Tokenizer.load(copy_of(scene.base.folder, scene.room / "stale", swap_two_tokens))
    )


LIMITS: Final = (
    Variation(
        name="K/V lost after 1024 tokens",
        why="the longest golden prompt is shorter",
        arrange=engine(cache.lost_block(1024)),
    ),
    Variation(
        name="every answer ends after 40 tokens",
        why="a golden answer has at most 16 tokens",
        arrange=engine(computation.events(computation.finish_after(40))),
    ),
    Variation(
        name="the lowest bit of one weight flipped in memory after it was hashed",
        why="it moves log-probabilities by less than any tolerance",
        arrange=engine(computation.memory(_lowest_bit_in_memory)),
    ),
    Variation(
        name="stop strings are ignored",
        why="no golden request has one",
        arrange=patched("pratique_server.text.stop_strings.StopStrings.push", lambda self, text: text),
    ),
    Variation(
        name="sampled requests ignore their seed",
        why="golden requests are greedy",
        arrange=patched("pratique_server.engine.torch_engine.sampler.uniform", lambda seed, position: 0.5),
    ),
    Variation(
        name="a request path with a tokenizer of its own that differs in two rare tokens",
        why="no golden prompt holds them; the tokenizer that was loaded and hashed is another object",
        arrange=request_path.stale_state(_rare_tokens_swapped),
    ),
)
