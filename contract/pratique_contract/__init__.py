"""What the server, the operator and the command line agree on: the release and its fingerprint, the golden
record, the verdict, reason codes and the names and ports both sides share. Import-light: standard library, pydantic, rfc8785."""

from pratique_contract.canonical import canonical_json, digest_json
from pratique_contract.compare import FieldDifference, PartDifference, compare_manifests
from pratique_contract.golden import GoldenCase, GoldenOutput, GoldenRecord, RefusedFixture, RenderFixture, Usage
from pratique_contract.manifest import PARTS, ReleaseManifest
from pratique_contract.reasons import PART_REASONS, Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_contract.verdict import CheckResult, Evidence, Reverification, Verdict, VerdictResult

__all__ = [
    "PARTS",
    "PART_REASONS",
    "CheckResult",
    "Evidence",
    "FieldDifference",
    "GoldenCase",
    "GoldenOutput",
    "GoldenRecord",
    "PartDifference",
    "Reason",
    "RefusedFixture",
    "ReleaseManifest",
    "ReleaseRecord",
    "RenderFixture",
    "Reverification",
    "ServingSpec",
    "Usage",
    "Verdict",
    "VerdictResult",
    "canonical_json",
    "compare_manifests",
    "digest_json",
]
