"""The golden record: what an approved release renders, tokenizes and generates, kept so that a pod can prove it does the same.

Rendering fixtures hold messages → exact text → exact ids, with no generation. A golden case adds the greedy output,
kept per (dtype, device class, engine build): another device may round differently, so its own output stands beside the others.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pratique_contract.canonical import canonical_json
from pratique_contract.manifest import Digest, DType
from pratique_contract.model import ContractModel, Several

# Smallest difference of log-probability (nat) between the chosen token and its runner-up that a golden case may rely on.
# Below it two correct engines in bf16 may choose differently.
MARGIN_NATS_MIN = 0.5

# Largest difference of a chosen token's log-probability (nat) that counts as the same model on another device or build:
# two units in the last place of a logit between 16 and 32, where language models' winning logits lie.
LOGPROB_TOLERANCE: dict[str, float] = {"FP32": 0.002, "FP16": 0.03, "BF16": 0.25}

# A choice that leads by more than this many tolerances is the same on every correct device; a smaller lead may flip.
MARGIN_IN_TOLERANCES = 4.0

# The conversations every record has to cover, each of a kind that some export or upgrade has changed in silence.
FIXTURE_KINDS: tuple[str, ...] = ("plain", "tools", "multi-turn", "empty-system", "non-latin", "emoji", "long")

# Fewest output tokens, over all cases, that prove anything: a single forced token is what most broken models say too.
GOLDEN_STEPS_MIN = 8
GOLDEN_DISTINCT_IDS_MIN = 3

# The order of a stream's events with runs of content collapsed into one.
EVENT_ORDER: tuple[str, ...] = ("role", "content", "finish", "usage", "done")

TokenId = Annotated[int, Field(ge=0, lt=2**31)]

# A name stands in request ids, in logs and in the verdict's checks.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class RenderFixture(ContractModel):
    """Messages (and tools) with the exact text and ids the pinned template and tokenizer must give."""

    name: Name
    messages: Several[dict[str, Any]]
    tools: tuple[dict[str, Any], ...] | None = None
    text: str
    ids: Several[TokenId]


class RefusedFixture(ContractModel):
    """Messages that the pinned template refuses. ``message`` is what it said, for people: only that it refuses is compared."""

    name: Name
    messages: Several[dict[str, Any]]
    tools: tuple[dict[str, Any], ...] | None = None
    message: str = ""


class Usage(ContractModel):
    """Token counts as the API reports them."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class GoldenOutput(ContractModel):
    """Greedy output of one case on one kind of device. ``logprobs`` and ``margins`` have one entry per output id (nat);
    a margin is the chosen token's log-probability minus the runner-up's."""

    dtype: DType
    device_class: str
    engine_build: Digest
    ids: Several[TokenId]
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: Several[float]
    margins: Several[float]
    event_order: Several[str] = EVENT_ORDER
    usage: Usage

    @model_validator(mode="after")
    def _one_entry_per_id(self) -> Self:
        if not self.ids:
            raise ValueError("ids is empty: a golden output proves nothing without a token")
        if not len(self.ids) == len(self.logprobs) == len(self.margins) == self.usage.completion_tokens:
            raise ValueError(
                f"{len(self.ids)} ids, {len(self.logprobs)} logprobs, {len(self.margins)} margins and "
                f"usage.completionTokens {self.usage.completion_tokens} must be the same count"
            )
        if min(self.margins) < MARGIN_NATS_MIN:
            raise ValueError(
                f"margins holds {min(self.margins)}: a choice that leads by less than {MARGIN_NATS_MIN} nat proves nothing"
            )
        return self


class GoldenCase(ContractModel):
    """One prompt that goes through the whole path, with its expected output on each kind of device it was recorded on."""

    name: Name
    messages: Several[dict[str, Any]]
    max_tokens: int = Field(gt=0)
    text: str
    prompt_ids: Several[TokenId]
    outputs: Several[GoldenOutput] = Field(min_length=1)

    @model_validator(mode="after")
    def _usage_counts_the_prompt(self) -> Self:
        for output in self.outputs:
            if output.usage.prompt_tokens != len(self.prompt_ids):
                raise ValueError(
                    f"usage.promptTokens is {output.usage.prompt_tokens} but promptIds has {len(self.prompt_ids)} ids"
                )
        return self

    def exact_output(self, *, dtype: str, device_class: str, engine_build: str) -> GoldenOutput | None:
        """The output recorded for exactly this dtype, device class and engine build, or None."""
        wanted = (dtype, device_class, engine_build)
        return next((o for o in self.outputs if (o.dtype, o.device_class, o.engine_build) == wanted), None)


class GoldenRecord(ContractModel):
    """Rendering fixtures and golden cases of one release. ``refused`` are fixtures its template does not take: one that takes
    them all of a sudden is another template."""

    fixtures: Several[RenderFixture] = ()
    refused: Several[RefusedFixture] = ()
    cases: Several[GoldenCase] = ()

    @field_validator("fixtures", "refused", "cases")
    @classmethod
    def _each_name_once(cls, items: tuple[Any, ...]) -> tuple[Any, ...]:
        _require_unique([item.name for item in items])
        return items

    @model_validator(mode="after")
    def _rendered_or_refused(self) -> Self:
        _require_unique([*(item.name for item in self.fixtures), *(item.name for item in self.refused)])
        return self


def _require_unique(names: list[str]) -> None:
    if (name := find_repeated(names)) is not None:
        raise ValueError(f"the name {name!r} is given twice")


def find_repeated(names: Iterable[str]) -> str | None:
    """The first name that was there before, in one pass: a hostile record has a hundred thousand of them."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def find_gaps(golden: GoldenRecord) -> tuple[str, ...]:
    """What keeps a record from proving a release, as sentences' ends ("it has …"); empty when it is strong enough.

    A record is data that somebody may have cut down or written by hand: a pod that proves nothing must not get ready for it.
    """
    if not golden.cases:
        return ("it has no golden case, so there is no output a pod could prove",)
    gaps = []
    known = {*(fixture.name for fixture in golden.fixtures), *(fixture.name for fixture in golden.refused)}
    missing = [kind for kind in FIXTURE_KINDS if kind not in known]
    if not golden.fixtures:
        gaps.append("it has no rendering fixture, so nothing says how messages become tokens")
    elif "plain" not in {fixture.name for fixture in golden.fixtures}:
        gaps.append("it does not render the fixture plain, which every template takes")
    elif missing:
        gaps.append(f"it neither renders nor refuses the fixture{'s' * (len(missing) > 1)} {', '.join(missing)}")
    if len({canonical_json(list(case.messages)) for case in golden.cases}) < len(golden.cases):
        gaps.append("two of its golden cases ask the same")
    # Of each case its weakest output: which one counts is decided by where the pod runs.
    outputs = [min((output.ids for output in case.outputs), key=len) for case in golden.cases]
    steps, distinct = sum(map(len, outputs)), len({token for ids in outputs for token in ids})
    if steps < GOLDEN_STEPS_MIN:
        gaps.append(
            f"its golden cases hold {steps} output tokens in all, and fewer than {GOLDEN_STEPS_MIN} prove little"
        )
    elif distinct < GOLDEN_DISTINCT_IDS_MIN:
        gaps.append(f"its golden cases only ever say {distinct} different tokens")
    return tuple(gaps)
