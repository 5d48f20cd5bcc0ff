"""Spec fields of the release: what was approved, who signed it, and what a difference from it does."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pratique_contract.canonical import DIGEST_PATTERN
from pratique_contract.model import ContractModel
from pratique_operator.api.pod_types import KeyRef, LocalRef
from pratique_operator.api.schema import Shape, cel, rules


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

    config_map_key_ref: KeyRef | None = Field(default=None, description="The key of a ConfigMap that holds the PEM.")
    secret_key_ref: KeyRef | None = Field(default=None, description="The key of a Secret that holds the PEM.")


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
    """What was approved, and what a pod that is something else may do."""

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
                "signature needs recordRef: it is checked on the record in that ConfigMap",
                fieldPath=".signature",
            ),
        )
    )

    fingerprint: (
        Annotated[
            str,
            Shape(DIGEST_PATTERN, "a fingerprint is sha256: and 64 hex digits; pratique release stamp writes it", 71),
        ]
        | None
    ) = Field(default=None, description="Fingerprint of the approved release; pratique release stamp writes it.")
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
