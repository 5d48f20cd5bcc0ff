"""The ``InferenceService`` spec: frozen camelCase models from which the CRD is generated and with which every object is parsed.

Defaults live here and are filled in when the spec is read, never written back: what a user stored is what a user sees.
The one exception is ``replicas``, which the API server must know for the scale subresource.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from pratique_contract.canonical import DIGEST_PATTERN
from pratique_contract.manifest import DType
from pratique_contract.model import ContractModel
from pratique_contract.sources import FETCHED_SCHEMES
from pratique_operator.errors import InvalidSpecError
from pratique_operator.pod_types import KeyRef, LocalRef, PodTemplate
from pratique_operator.schema import ObjectName, PositiveInt, Quantity, ShortText, cel, rules

REPLICAS_MAX: Final = 1000
SERVICE_NAME_MAX: Final = 50
URI_MAX: Final = 1024
CHAT_TEMPLATE_CHARS_MAX: Final = 256 * 1024

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

_URI_RULES = rules(
    cel(
        "self.matches('^(hf|oci|s3|https|pvc|file)://')",
        "a source is hf://OWNER/NAME, oci://REGISTRY/REPOSITORY@sha256:DIGEST, s3://BUCKET/PREFIX, https://HOST/ARCHIVE.tar, "
        "pvc://CLAIM/PATH or file:///PATH",
    ),
    cel(
        "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')",
        "a repository of the hub is written hf://OWNER/NAME, its commit in revision",
    ),
    cel(
        "!self.startsWith('oci://') || self.matches('^oci://[^/@ ]+/[^@ ]+@sha256:[0-9a-f]{64}$')",
        "an artifact is written oci://REGISTRY/REPOSITORY@sha256:<64 digits>; a tag can move under a running service",
    ),
    cel(
        "!self.startsWith('s3://') || self.matches('^s3://[a-z0-9][a-z0-9.-]+(/[^/]+)*/?$')",
        "a bucket is written s3://BUCKET or s3://BUCKET/PREFIX",
    ),
    cel(
        "!self.startsWith('https://') || self.matches('^https://[^/@?# ]+/[^?# ]+[.](tar|tar[.]gz|tgz)$')",
        "an archive is written https://HOST/PATH.tar (or .tar.gz, .tgz), without credentials and query; its digest in revision",
    ),
    cel(
        "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*/?$')",
        "a claim is written pvc://CLAIM or pvc://CLAIM/PATH",
    ),
    cel(
        "!self.startsWith('file://') || self.matches('^file://(/[^/]+)+/?$')",
        "a node's folder is written file:///ABSOLUTE/PATH",
    ),
    cel("!self.matches('(^|/)[.][.]?(/|$)')", "a path may not contain . or .. segments"),
)
# On whatever has both fields: a source that can move needs the revision that cannot.
_PINNED_RULES = rules(
    cel(
        "!self.uri.startsWith('hf://') || (has(self.revision) && self.revision.matches('^[0-9a-f]{40}$'))",
        "hf:// needs revision, the 40-digit commit",
        fieldPath=".revision",
    ),
    cel(
        "!self.uri.startsWith('https://') || (has(self.revision) && self.revision.startsWith('sha256:'))",
        "https:// needs revision, the sha256: digest of the archive",
        fieldPath=".revision",
    ),
    cel(
        "!self.uri.startsWith('oci://') || !has(self.revision) || self.uri.endsWith('@' + self.revision)",
        "the revision of an artifact is the digest in its address; leave it out or repeat it",
        fieldPath=".revision",
    ),
)
_REVISION_RULES = rules(
    cel(
        "self.matches('^([0-9a-f]{40}|sha256:[0-9a-f]{64})$')",
        "a revision is a 40-digit commit or sha256:<64 digits>; a branch or tag can move under a running service",
    )
)

_FETCHED: Final = f"^({'|'.join(FETCHED_SCHEMES)})://"

Endpoint = Annotated[str, StringConstraints(pattern=r"^https?://[^/@?# ]+(/[^?# ]*)?$", max_length=512)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=URI_MAX), Field(json_schema_extra=_URI_RULES)]
Revision = Annotated[str, StringConstraints(min_length=1, max_length=128), Field(json_schema_extra=_REVISION_RULES)]


class AdapterSpec(ContractModel):
    """A LoRA adapter. Their order is the order in which they are merged."""

    model_config = ConfigDict(json_schema_extra=_PINNED_RULES)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=40)]
    uri: Uri
    revision: Revision | None = None
    mode: Literal["Merged"] = Field(
        default="Merged", description="Merged into the weights at load. Only Merged so far."
    )


class ModelSpec(ContractModel):
    """Where the model lies and under which name it is served."""

    model_config = ConfigDict(json_schema_extra=_PINNED_RULES)

    uri: Uri = Field(
        description="hf://, oci://, s3:// and https:// are fetched before the server starts (see download); pvc://CLAIM/PATH, and "
        "file:///PATH on the node where the operator allows it, are mounted."
    )
    revision: Revision | None = Field(
        default=None, description="Immutable revision of the source: a commit or a digest. A branch is refused."
    )
    name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        default=None, description="Model name in the API. Default: the service's own name."
    )
    adapters: tuple[AdapterSpec, ...] | None = Field(
        default=None,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    trust_remote_code: bool = Field(
        default=False,
        description="Let Python files of the model's own folder build it. They become part of the release. Default false.",
    )


class TokenizerSpec(ContractModel):
    """A tokenizer that is not the model's own."""

    model_config = ConfigDict(json_schema_extra=_PINNED_RULES)

    uri: Uri = Field(description="As model.uri.")
    revision: Revision | None = Field(default=None, description="As model.revision.")


class EmptyDirCache(ContractModel):
    """Space on the pod's node; each pod fetches for itself and again after it was moved."""

    size_limit: Quantity | None = Field(
        default=None,
        description="The node must have this much, and the pod is evicted (DiskFull) when it takes more. Default 20Gi.",
    )


class CacheSpec(ContractModel):
    """The volume fetched files are kept on. Pods that share it fetch a source once."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "(has(self.claimName) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) + (has(self.emptyDir) ? 1 : 0) == 1",
                "cache needs exactly one of claimName, hostPath and emptyDir",
            )
        )
    )

    claim_name: ObjectName | None = Field(default=None, description="A PersistentVolumeClaim of the namespace.")
    host_path: Annotated[str, StringConstraints(pattern=r"^(/[^/]+)+$", max_length=512)] | None = Field(
        default=None,
        description="A folder of the node that user 65532 may write, where the operator allows file sources.",
    )
    empty_dir: EmptyDirCache | None = None


class DownloadSpec(ContractModel):
    """How sources that are not mounted get to the pod. Only the fetching container has the credentials and the network."""

    cache: CacheSpec | None = Field(default=None, description="Default: an emptyDir of 20Gi.")
    credentials_secret_ref: LocalRef | None = Field(
        default=None,
        description="Secret with any of token, username, password, accessKeyId, secretAccessKey, sessionToken, ca.crt.",
    )
    hub_endpoint: Endpoint | None = Field(default=None, description="A mirror of the hub. Default: the hub itself.")
    s3_endpoint: Endpoint | None = Field(default=None, description="Default: the public service of the region.")
    s3_region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$", max_length=64)] | None = None
    connections: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Files or parts fetched at once. Default 8."
    )
    stall_seconds: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        default=None,
        description="A connection that gives next to nothing for this long is dropped and resumed. Default 30.",
    )


class ChatTemplateSpec(ContractModel):
    """The exact template text, or where it is kept. A changed text is a new revision."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "(has(self.inline) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0) + (has(self.secretKeyRef) ? 1 : 0) == 1",
                "chatTemplate needs exactly one of inline, configMapKeyRef and secretKeyRef",
            )
        )
    )

    inline: Annotated[str, StringConstraints(min_length=1, max_length=CHAT_TEMPLATE_CHARS_MAX)] | None = Field(
        default=None, description="The Jinja template itself, at most 256 Ki characters."
    )
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class QuantizationSpec(ContractModel):
    """Numeric format of the weights."""

    method: Literal["None", "Int8WeightOnly"] = Field(
        default="None",
        description="Int8WeightOnly: linear layers as int8 with a scale per output channel, made at load.",
    )
    dtype: DType | None = Field(default=None, description="Default: the type the checkpoint was saved in.")


class KvCacheSpec(ContractModel):
    """K/V cache size: a number of blocks or an amount of memory."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("!(has(self.blocks) && has(self.memory))", "give the cache's size as blocks or as memory, not both")
        )
    )

    blocks: PositiveInt | None = Field(default=None, description="Default: 1,024 tokens for each of maxNumSeqs.")
    memory: Quantity | None = Field(default=None, description="For example 4Gi.")
    block_size: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Tokens in a block. Default 16."
    )
    dtype: DType | None = Field(default=None, description="The type that computes; another one is refused by the pod.")


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
_ARGS_RULES = rules(
    cel("self.all(a, a.matches('^--[a-z0-9][-a-z0-9]*(=.*)?$'))", "each argument is written --flag or --flag=value"),
    cel(
        f"!self.exists(a, a.matches('^--({'|'.join(REFUSED_FLAGS)})(=.*)?$'))",
        "these flags would change the release or the pod's contract and have fields of their own or none: "
        + ", ".join(REFUSED_FLAGS),
    ),
)


class EngineSpec(ContractModel):
    """The engine and the flags that change tokens or limits."""

    name: Literal["Torch", "Naive"] = Field(
        default="Torch", description="Default Torch. Naive is the slow baseline, one request at a time."
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        default=None,
        description="Server image. Default: the operator's serverImage. latest is refused.",
        json_schema_extra=_IMAGE_RULES,
    )
    max_model_len: PositiveInt | None = Field(default=None, description="Shortens the model's own context limit.")
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Requests computed at once. Default 16."
    )
    max_batched_tokens: PositiveInt | None = Field(default=None, description="Token budget of one step. Default 512.")
    kv_cache: KvCacheSpec | None = None
    args: tuple[ShortText, ...] | None = Field(
        default=None,
        max_length=64,
        description="Flags of the engine, part of the release. One it does not know fails the pod with FlagsMismatch.",
        json_schema_extra=_ARGS_RULES,
    )


class SignatureSpec(ContractModel):
    """The public key the record's signature (record.json.sig beside record.json) must verify with: PEM, ed25519."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.configMapKeyRef) != has(self.secretKeyRef)",
                "signature needs exactly one of configMapKeyRef and secretKeyRef",
            )
        )
    )

    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class ReverifySpec(ContractModel):
    """Golden cases sent again while a pod is idle."""

    interval_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=600, description="Between two rounds; 0 switches them off. Default 600."
    )
    failures: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="Failed rounds in a row until it counts. Default 3."
    )
    on_failure: Literal["Report", "Unready"] = Field(
        default="Report",
        description="Report says so in the status; Unready also takes the pod out of the endpoints, the last one too.",
    )


class ReleaseSpec(ContractModel):
    """What was approved."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.recordRef) || has(self.fingerprint)",
                "recordRef needs fingerprint: without it whatever record the ConfigMap holds would be the approved one "
                "(pratique release stamp writes it)",
                fieldPath=".fingerprint",
            ),
            cel(
                "!has(self.signature) || has(self.recordRef)",
                "signature is that of the record in recordRef",
                fieldPath=".signature",
            ),
        )
    )

    fingerprint: Annotated[str, StringConstraints(pattern=DIGEST_PATTERN, max_length=71)] | None = Field(
        default=None, description="Fingerprint of the approved release; pratique release stamp writes it."
    )
    record_ref: LocalRef | None = Field(
        default=None,
        description="ConfigMap with the release record under record.json; pratique release record makes it. Without it "
        "no pod becomes ready (GoldenMissing), unless the policy is TrustFirst.",
    )
    policy: Literal["Enforce", "TrustFirst"] = Field(
        default="Enforce",
        description="Enforce: a pod that cannot prove to be the approved release takes no traffic. TrustFirst, without a record: "
        "the first pod that agrees with itself is recorded, later pods must match it, and the status says that nobody approved it.",
    )
    review_policy: Literal["Block", "Warn"] = Field(
        default="Warn",
        description="When a candidate differs from the serving release and its record holds no passed review of the two: Block "
        "starts no pod of it (ReviewRequired), Warn says so. Default Warn.",
    )
    signature: SignatureSpec | None = None
    reverify: ReverifySpec | None = None


class RolloutSpec(ContractModel):
    """How a new revision replaces the one that serves."""

    strategy: Literal["Rolling", "Recreate"] = Field(
        default="Rolling",
        description="Rolling starts the new revision beside the old one and moves the entry Service once every new pod is "
        "verified. Recreate stops the old pods first: for clusters without room for both; the service is down meanwhile.",
    )
    progress_deadline_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] | None = Field(
        default=None, description="After this a rollout counts as failed. Default: startup.timeoutSeconds + 600."
    )
    revision_history_limit: Annotated[int, Field(ge=0, le=20)] = Field(
        default=2, description="Revisions that have served and are kept, scaled to 0, for a quick way back. Default 2."
    )
    paused: bool = Field(default=False, description="Start no new revision and move no traffic. Scaling goes on.")


class AuthSpec(ContractModel):
    """Who may call the API."""

    api_key_secret_ref: LocalRef = Field(description="Secret with the API keys; reloaded without a restart.")


class LimitsSpec(ContractModel):
    """Bounds on what one request may ask for and on what may wait in one pod."""

    max_body_bytes: PositiveInt | None = Field(default=None, description="Default 4 MiB.")
    max_prompt_tokens: PositiveInt | None = Field(default=None, description="Default: the context limit.")
    max_output_tokens: PositiveInt | None = Field(default=None, description="Default: the context limit.")
    max_queued: PositiveInt | None = Field(default=None, description="Waiting requests; more get 429. Default 128.")
    max_queued_tokens: PositiveInt | None = Field(
        default=None, description="Prompt tokens of all waiting requests; more get 429. Default: no limit."
    )
    request_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] | None = Field(
        default=None, description="A request that takes longer ends with 504. Default 600."
    )


class StartupSpec(ContractModel):
    """How long a pod may take until it is verified."""

    timeout_seconds: Annotated[int, Field(ge=10, le=7 * 86400)] = Field(
        default=1800,
        description="Loading and verification; after that the kubelet restarts the container. Default 1800.",
    )
    probe_timeout_seconds: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        default=None, description="Time budget of the golden probe itself. Default 60."
    )


class DrainSpec(ContractModel):
    """How a pod leaves."""

    pre_stop_seconds: Annotated[int, Field(ge=0, le=600)] = Field(
        default=5, description="The pod goes on serving until the endpoints are gone everywhere. Default 5."
    )
    deadline_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=30, description="Then running requests may finish for this long. Default 30."
    )


class InferenceServiceSpec(ContractModel):
    """What is to be served and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                f"!has(self.download) || self.model.uri.matches({_FETCHED!r})"
                f" || (has(self.tokenizer) && self.tokenizer.uri.matches({_FETCHED!r}))"
                f" || (has(self.model.adapters) && self.model.adapters.exists(a, a.uri.matches({_FETCHED!r})))",
                "nothing is fetched: download is for hf://, oci://, s3:// and https:// sources",
                fieldPath=".download",
            )
        )
    )

    model: ModelSpec
    tokenizer: TokenizerSpec | None = None
    chat_template: ChatTemplateSpec | None = None
    quantization: QuantizationSpec = QuantizationSpec()
    engine: EngineSpec = EngineSpec()
    release: ReleaseSpec = ReleaseSpec()
    download: DownloadSpec | None = None
    replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = Field(
        default=1, description="Pods of the serving revision. 0 stops them all: nothing serves. Default 1."
    )
    rollout: RolloutSpec = RolloutSpec()
    auth: AuthSpec | None = None
    limits: LimitsSpec | None = None
    startup: StartupSpec = StartupSpec()
    drain: DrainSpec = DrainSpec()
    template: PodTemplate | None = None

    @property
    def progress_deadline_seconds(self) -> int:
        """The rollout's deadline with its default filled in."""
        return self.rollout.progress_deadline_seconds or self.startup.timeout_seconds + 600


def field_path(loc: tuple[int | str, ...]) -> str:
    """Where pydantic found something, as a person writes it: ``spec.model.adapters[0].name``."""
    return re.sub(r"\.(\d+)", r"[\1]", ".".join(["spec", *map(str, loc)]))


def parse_spec(value: Any) -> InferenceServiceSpec:
    """Parse ``.spec``; raises ``InvalidSpecError`` naming the first wrong field and how many more there are.

    The API server has already refused most of this; what arrives here was stored under another version of the CRD."""
    try:
        return InferenceServiceSpec.model_validate(value)
    except ValidationError as error:
        first, *more = error.errors()
        path = field_path(first["loc"])
        also = f" (and {len(more)} more)" if more else ""
        raise InvalidSpecError(path, f"{first['msg'][0].lower()}{first['msg'][1:]}{also}") from error
