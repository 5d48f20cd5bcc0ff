"""What the operator hands to a pod: one JSON document, mounted beside the release record.

It says what to load and how to serve; what was *approved* is in the record. The pod reads nothing else about its identity.
"""

from typing import Any, Final, Literal, get_args

from pydantic import Field

from pratique_contract import constants
from pratique_contract.manifest import Digest, DType
from pratique_contract.model import ContractModel


class AdapterSource(ContractModel):
    """An adapter to apply: a local folder and where it came from."""

    name: str
    path: str
    uri: str
    revision: str | None = None
    mode: Literal["Merged", "Static", "PerRequest"] = "Merged"


class ModelSource(ContractModel):
    """A local folder that holds the model, and the declared place it came from. ``trust_remote_code`` lets the folder's own
    Python files build the model; they are then part of the manifest."""

    path: str
    uri: str
    revision: str | None = None
    adapters: tuple[AdapterSource, ...] = ()
    trust_remote_code: bool = False


class TokenizerSource(ContractModel):
    """A local folder that holds the tokenizer."""

    path: str
    uri: str
    revision: str | None = None


# What the built-in engines compute. ``Int8WeightOnly`` takes ``config`` ``{keep: [layer names with * and ?]}``; their order and
# repetition say nothing.
QuantizationMethod = Literal["None", "Int8WeightOnly"]
QUANTIZATION_METHODS: Final[tuple[str, ...]] = get_args(QuantizationMethod)
KEEP_PATTERN: Final = r"^[A-Za-z0-9_.*?-]+$"


class QuantizationSpec(ContractModel):
    """How the weights are computed. ``dtype`` None means the dtype the checkpoint was saved in. ``method`` is one of
    ``QUANTIZATION_METHODS``; another one, or a setting it does not have, is a ``QuantizationMismatch`` and says so."""

    method: str = "None"
    dtype: DType | None = None
    config: dict[str, Any] = {}


class KvCacheSpec(ContractModel):
    """K/V cache size: a number of blocks, or bytes; the engine's default when both are None."""

    blocks: int | None = Field(default=None, gt=0)
    memory_bytes: int | None = Field(default=None, gt=0)
    block_size: int = Field(default=16, gt=0)
    dtype: DType | None = None


class EngineSpec(ContractModel):
    """Which engine, and the flags that change tokens or limits. ``image_digest`` is known only for an image named by digest."""

    name: Literal["Torch", "Naive"] = "Torch"
    image_digest: Digest | None = None
    max_model_len: int | None = Field(default=None, gt=0)
    max_num_seqs: int = Field(default=16, gt=0)
    max_batched_tokens: int = Field(default=512, gt=0)
    kv_cache: KvCacheSpec = KvCacheSpec()
    args: tuple[str, ...] = ()


class ReverifySpec(ContractModel):
    """Golden cases sent again while the pod is idle. After ``failures`` failed rounds in a row the verdict says so; only with
    ``Unready`` does the pod leave the endpoints on this evidence alone. ``interval_seconds`` 0 switches it off."""

    interval_seconds: float = Field(default=600.0, ge=0)
    failures: int = Field(default=3, gt=0)
    on_failure: Literal["Report", "Unready"] = "Report"


class ReleaseSpec(ContractModel):
    """What was approved. With ``Enforce`` a missing record is a failure; ``record_path`` None means none was given."""

    fingerprint: Digest | None = None
    policy: Literal["Enforce", "TrustFirst"] = "Enforce"
    record_path: str | None = None
    reverify: ReverifySpec = ReverifySpec()


class DownloadSpec(ContractModel):
    """How the fetching container gets what ``uri`` names (``sources.is_fetched``) into each source's ``path``.

    ``credentials_path`` is a folder with one file per key of a Secret: ``token`` (hub, bearer), ``username`` and ``password``
    (registry, https), ``accessKeyId``, ``secretAccessKey`` and ``sessionToken`` (S3), ``ca.crt``. A connection that gives fewer than
    ``bytes_per_second_min`` over ``stall_seconds`` is dropped and resumed elsewhere; attempts are bounded.
    ``cache_bytes_max`` is the cache volume's own limit where its file system does not know it (``emptyDir.sizeLimit``): the kubelet
    evicts a pod that writes more, so a download that cannot fit is refused before its first byte.
    """

    hub_endpoint: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    credentials_path: str | None = None
    cache_bytes_max: int | None = Field(default=None, gt=0)
    connections: int = Field(default=8, gt=0, le=64)
    stall_seconds: float = Field(default=30.0, gt=0)
    bytes_per_second_min: int = Field(default=1024, ge=0)
    attempts: int = Field(default=5, gt=0)


class LimitsSpec(ContractModel):
    """Bounds on what one client may ask for; None means the model's own limit."""

    max_body_bytes: int = Field(default=4 * 1024 * 1024, gt=0)
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    max_output_tokens: int | None = Field(default=None, gt=0)
    max_queued: int = Field(default=128, gt=0)
    max_queued_tokens: int | None = Field(default=None, gt=0)
    request_timeout_seconds: float = Field(default=600.0, gt=0)


class DrainSpec(ContractModel):
    """How long a terminating pod goes on: ``pre_stop_seconds`` until endpoints are gone, then up to ``deadline_seconds`` for streams."""

    pre_stop_seconds: float = Field(default=5.0, ge=0)
    deadline_seconds: float = Field(default=30.0, ge=0)


class ServingSpec(ContractModel):
    """The whole document. Paths say where to read inside the container and are never part of an identity."""

    service: str = "local"
    namespace: str = "local"
    revision: str = "local"
    served_model_name: str
    model: ModelSource
    tokenizer: TokenizerSource | None = None
    chat_template: str | None = None
    chat_template_path: str | None = None  # a file to read instead: text kept in a Secret must not be copied in here
    quantization: QuantizationSpec = QuantizationSpec()
    engine: EngineSpec = EngineSpec()
    release: ReleaseSpec = ReleaseSpec()
    download: DownloadSpec = DownloadSpec()
    limits: LimitsSpec = LimitsSpec()
    drain: DrainSpec = DrainSpec()
    api_keys_path: str | None = None
    probe_timeout_seconds: float = Field(default=60.0, gt=0)
    host: str = "0.0.0.0"  # noqa: S104 - inside a pod the kubelet and the Service reach us on the pod's address
    api_port: int = constants.API_PORT
    management_port: int = constants.MANAGEMENT_PORT
