"""Spec fields that say where a model, tokenizer, adapter or template comes from and how it gets to the pod."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from pratique_contract.model import ContractModel
from pratique_operator.api.pod_types import KeyRef, LocalRef
from pratique_operator.api.schema import ObjectName, Shape, Size, cel, rules

URI_MAX: Final = 1024
CHAT_TEMPLATE_CHARS_MAX: Final = 256 * 1024

_URI_RULES = rules(
    cel(
        "self.matches('^(hf|oci|s3|https|pvc|file)://')",
        "a source is hf://OWNER/NAME, oci://REGISTRY/REPOSITORY@sha256:DIGEST, s3://BUCKET/PREFIX, https://HOST/ARCHIVE.tar, "
        "pvc://CLAIM/PATH or file:///PATH",
    ),
    cel(
        "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')",
        "a repository of the hub is written hf://OWNER/NAME, its commit in revision; for a branch, pratique resolve hf://OWNER/NAME@BRANCH "
        "prints both lines",
    ),
    cel(
        "!self.startsWith('oci://') || self.matches('^oci://[^/@ ]+/[^@ ]+@sha256:[0-9a-f]{64}$')",
        "an artifact is written oci://REGISTRY/REPOSITORY@sha256:<64 digits>; a tag can move under a running service, and "
        "pratique resolve oci://REGISTRY/REPOSITORY:TAG prints the digest it stands for now",
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
        "!self.uri.startsWith('hf://') || (has(self.revision) && !self.revision.startsWith('sha256:'))",
        "hf:// needs revision, the 40-digit commit (pratique resolve hf://OWNER/NAME prints it)",
        fieldPath=".revision",
    ),
    cel(
        "!self.uri.startsWith('https://') || (has(self.revision) && !self.revision.matches('^[0-9a-f]{40}$'))",
        "https:// needs revision, the sha256: digest of the archive (pratique resolve https://… prints it)",
        fieldPath=".revision",
    ),
    cel(
        "!self.uri.startsWith('oci://') || !has(self.revision) || self.uri.endsWith('@' + self.revision)",
        "the revision of an artifact is the digest in its address; leave it out or repeat it",
        fieldPath=".revision",
    ),
    cel(
        "!self.uri.startsWith('s3://') || !has(self.revision) || !self.revision.matches('^[0-9a-f]{40}$')",
        "the revision of a bucket's prefix is the sha256: digest that pratique resolve s3://… prints, or is left out",
        fieldPath=".revision",
    ),
)
_REVISION_RULES = rules(
    cel(
        "self.matches('^([0-9a-f]{40}|sha256:[0-9a-f]{64})$')",
        "a revision is a 40-digit commit or sha256:<64 digits>; a branch or tag can move under a running service, and "
        "pratique resolve URI --revision BRANCH prints what it stands for now",
    )
)


Endpoint = Annotated[
    str,
    Shape(
        r"^https?://[^/@?# ]+(/[^?# ]*)?$",
        "an endpoint is written https://HOST[:PORT][/PATH], without credentials and query",
        512,
    ),
]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=URI_MAX), Field(json_schema_extra=_URI_RULES)]
Revision = Annotated[str, StringConstraints(min_length=1, max_length=128), Field(json_schema_extra=_REVISION_RULES)]


class AdapterSpec(ContractModel):
    """A LoRA adapter. Their order is the order in which they are merged."""

    model_config = ConfigDict(json_schema_extra=_PINNED_RULES)

    name: Annotated[
        str,
        Shape(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "an adapter's name has lower-case letters, digits and - only", 40),
    ] = Field(description="Its name in the release, in messages and for pratique --adapter NAME=DIR.")
    uri: Uri = Field(
        description="A folder with adapter_config.json and adapter_model.safetensors (PEFT), as model.uri."
    )
    revision: Revision | None = Field(default=None, description="As model.revision.")
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
        default=None,
        description="Immutable revision of the source; pratique resolve prints it. hf://: the commit, required. https://: the archive's "
        "digest, required. oci://: in the URI. s3://: the digest of what the prefix holds; without it the prefix is listed anew at "
        "every start. pvc:// and file://: a note that nothing checks, since the record says what the files are.",
    )
    name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        default=None, description="Model name in the API. Default: the service's own name."
    )
    adapters: tuple[AdapterSpec, ...] | None = Field(
        default=None,
        max_length=16,
        description="LoRA adapters, merged into the weights in this order. Part of the release.",
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

    size_limit: Size | None = Field(
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
    host_path: (
        Annotated[
            str, Shape(r"^(/[^/]+)+$", "a folder of the node is written /ABSOLUTE/PATH, without a / at its end", 512)
        ]
        | None
    ) = Field(
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
    s3_region: Annotated[str, Shape(r"^[a-z0-9-]+$", "a region is written like eu-west-1", 64)] | None = Field(
        default=None, description="Default: what AWS says of the bucket; us-east-1 for another s3Endpoint."
    )
    connections: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Files or parts fetched at once. Default 8."
    )
    stall_seconds: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        default=None,
        description="A connection that gives next to nothing for this long is dropped and resumed. Default 30.",
    )


class ChatTemplateSpec(ContractModel):
    """The exact text of the chat template, instead of the tokenizer's own, or where it is kept. A changed text is a new revision."""

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
    config_map_key_ref: KeyRef | None = Field(default=None, description="The key of a ConfigMap that holds the text.")
    secret_key_ref: KeyRef | None = Field(
        default=None, description="The key of a Secret that holds the text; it is mounted and copied nowhere."
    )
