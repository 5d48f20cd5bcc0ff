"""The ``InferenceService`` spec: frozen camelCase models from which the CRD is generated and with which every object is parsed.

Defaults live here and are filled in when the spec is read, never written back: what a user stored is what a user sees.
The one exception is ``replicas``, which the API server must know for the scale subresource.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from pratique_contract.model import ContractModel
from pratique_contract.sources import FETCHED_SCHEMES
from pratique_operator.api.engine_types import EngineSpec, QuantizationSpec
from pratique_operator.api.pod_types import LocalRef, PodTemplate
from pratique_operator.api.release_types import ReleaseSpec
from pratique_operator.api.schema import PositiveInt, cel, rules
from pratique_operator.api.source_types import ChatTemplateSpec, DownloadSpec, ModelSpec, TokenizerSpec
from pratique_operator.errors import InvalidSpecError

REPLICAS_MAX: Final = 1000
SERVICE_NAME_MAX: Final = 50
_FETCHED: Final = f"^({'|'.join(FETCHED_SCHEMES)})://"


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
