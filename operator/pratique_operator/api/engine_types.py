"""Spec fields of the engine: numeric format, K/V cache, image and flags."""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from pratique_contract.manifest import DType
from pratique_contract.model import ContractModel
from pratique_contract.serving import KEEP_PATTERN, QuantizationMethod
from pratique_operator.api.schema import PositiveInt, Shape, Size, cel, rules

# Engine flags that would change which release runs, or how the pod is reached and proved.
REFUSED_FLAGS: Final = (
    "model",
    "tokenizer",
    "revision",
    "tokenizer-revision",
    "served-model-name",
    "chat-template",
    "dtype",
    "quantization",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-batched-tokens",
    "kv-cache-dtype",
    "trust-remote-code",
    "load-format",
    "host",
    "port",
    "api-key",
    "config",
)


# Which methods have which setting; a setting of another method is refused by name.
SETTINGS: Final[dict[str, tuple[QuantizationMethod, ...]]] = {"keep": ("Int8WeightOnly",)}


def _settings_rules() -> dict[str, Any]:
    method = "(has(self.method) ? self.method : 'None')"
    return rules(
        *(
            cel(
                f"!has(self.config) || !has(self.config.{name}) || size(self.config.{name}) == 0 "
                f"|| {method} in {list(methods)!r}",
                f"config.{name} belongs to method {' and '.join(methods)}: set that method, or leave {name} out",
                fieldPath=f".config.{name}",
            )
            for name, methods in SETTINGS.items()
        )
    )


def _in_one_order(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Order and repetition say nothing: two spellings are one declaration and one revision."""
    return tuple(sorted(set(patterns)))


class QuantizationConfig(ContractModel):
    """Settings of the method, each for the methods it names. What a method computes in one way only has no setting."""

    keep: Annotated[
        tuple[
            Annotated[str, Shape(KEEP_PATTERN, "a layer is named by letters, digits, _, - and ., with * and ?", 256)],
            ...,
        ],
        AfterValidator(_in_one_order),
    ] = Field(
        default=(),
        max_length=128,
        description="Int8WeightOnly: layers that stay as the checkpoint has them, by name. * stands for anything, dots too, and ? "
        "for one character: *.down_proj, model.layers.0.*. The language head, embeddings and norms are kept in any case. A name "
        "that no layer of the model has fails the pod with QuantizationMismatch. Default: none.",
    )


class QuantizationSpec(ContractModel):
    """Numeric format of the weights, part of the release."""

    model_config = ConfigDict(json_schema_extra=_settings_rules())

    method: QuantizationMethod = Field(
        default="None",
        description="Int8WeightOnly: linear layers as int8 with a scale per output channel, made at load; half the memory of "
        "BF16, slower decode. Default None.",
    )
    dtype: DType | None = Field(
        default=None, description="The type that computes. Default: the type the checkpoint was saved in."
    )
    config: QuantizationConfig = QuantizationConfig()

    def settings(self) -> dict[str, Any]:
        """What differs from the defaults, as the serving document holds it."""
        return self.config.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class KvCacheSpec(ContractModel):
    """Size of the K/V cache of one pod: a number of blocks or an amount of memory. Part of the release."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("!(has(self.blocks) && has(self.memory))", "give the cache's size as blocks or as memory, not both")
        )
    )

    blocks: PositiveInt | None = Field(default=None, description="Default: 1,024 tokens for each of maxNumSeqs.")
    memory: Size | None = Field(default=None, description="For example 4Gi.")
    block_size: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Tokens in a block. Default 16."
    )
    dtype: DType | None = Field(
        default=None, description="Must be the type that computes; another one fails the pod with FlagsMismatch."
    )


_IMAGE_RULES = rules(
    cel(
        "!self.endsWith(':latest')",
        "the tag latest can move under a running service; name a version or a digest",
    ),
    cel(
        "self.contains('@sha256:') || self.matches('^.+:[A-Za-z0-9_][-A-Za-z0-9_.]*$')",
        "an image without a tag means latest; name a version or a digest",
    ),
)
# On each flag, so that the answer says which one.
_FLAG_RULES = rules(
    cel("self.matches('^--[a-z0-9][-a-z0-9]*(=.*)?$')", "an argument is written --flag or --flag=value"),
    cel(
        f"!self.matches('^--({'|'.join(REFUSED_FLAGS)})(=.*)?$')",
        "this flag would change the release or the pod's contract; each of these has a field of its own or none: "
        + ", ".join(REFUSED_FLAGS),
    ),
)
EngineFlag = Annotated[str, StringConstraints(min_length=1, max_length=512), Field(json_schema_extra=_FLAG_RULES)]


class EngineSpec(ContractModel):
    """The engine and its flags, part of the release: what changes tokens or limits."""

    name: Literal["Torch", "Naive"] = Field(
        default="Torch", description="Default Torch. Naive is the slow baseline, one request at a time."
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        default=None,
        description="Server image, by digest or by a tag other than latest. By digest it is part of the release. Default: the "
        "operator's serverImage.",
        json_schema_extra=_IMAGE_RULES,
    )
    max_model_len: PositiveInt | None = Field(default=None, description="Shortens the model's own context limit.")
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Requests computed at once. Default 16."
    )
    max_batched_tokens: PositiveInt | None = Field(default=None, description="Token budget of one step. Default 512.")
    kv_cache: KvCacheSpec | None = None
    args: tuple[EngineFlag, ...] | None = Field(
        default=None,
        max_length=64,
        description="Flags of the engine, part of the release. One it does not know fails the pod with FlagsMismatch.",
    )
