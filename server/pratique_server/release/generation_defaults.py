"""What ``generation_config.json`` asks for when a request is silent: which fields act here, and which only stand in the fingerprint.

The rule: a field that acts has a value a request could have, or the release is refused; a field that would change answers and is
not applied here is named at every start, so that nobody takes the file for what the server does.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from pratique_server.artifacts.errors import ManifestError

_Rule = tuple[str, Callable[[float], bool]]

# Applied by ``api.pipeline.build_sampling``.
ACTING: Final[dict[str, _Rule]] = {
    "temperature": ("a number of at least 0", lambda value: value >= 0),
    "top_k": ("a whole number", float.is_integer),
    "top_p": ("a number in 0…1, not 0", lambda value: 0 < value <= 1),
    "min_p": ("a number in 0…1", lambda value: 0 <= value <= 1),
    "repetition_penalty": ("a number above 0", lambda value: value > 0),
}
# Would change answers, and are not applied: with the values at which they do nothing.
NOT_APPLIED: Final[dict[str, tuple[Any, ...]]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_new_tokens": (),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": (),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}


def check_defaults(defaults: Mapping[str, Any]) -> None:
    """Raise ``ManifestError`` for an acting field whose value no request could have."""
    for name, (meaning, is_allowed) in ACTING.items():
        value = defaults.get(name)
        if value is None:
            continue
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not math.isfinite(number) or not is_allowed(number):
            raise ManifestError(f"generation_config.json: {name} is {value!r}, not {meaning}")


def find_not_applied(defaults: Mapping[str, Any]) -> list[str]:
    """Names of the fields that ask for something the server does not do, sorted."""
    return sorted(
        name
        for name, neutral in NOT_APPLIED.items()
        if defaults.get(name) is not None and defaults[name] not in neutral
    )
