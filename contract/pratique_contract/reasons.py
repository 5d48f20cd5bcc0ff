"""Reason codes: stable, CamelCase, part of the API. The same code stands in verdicts, conditions, Events, metrics
and tests, so that one search finds every trace of a cause."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a verdict or a condition is what it is."""

    RECONCILED = "Reconciled"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_FIELDS = "UnknownFields"
    RECORD_MISSING = "RecordMissing"
    REVIEW_REQUIRED = "ReviewRequired"
    REVIEW_PASSED = "ReviewPassed"
    NOTHING_TO_COMPARE = "NothingToCompare"
    SAME_RELEASE = "SameRelease"
    SIGNATURE_INVALID = "SignatureInvalid"
    UNVERIFIED_ENDPOINT = "UnverifiedEndpoint"

    MODEL_MISMATCH = "ModelMismatch"
    ADAPTER_MISMATCH = "AdapterMismatch"
    TOKENIZER_MISMATCH = "TokenizerMismatch"
    TEMPLATE_MISMATCH = "TemplateMismatch"
    SPECIAL_TOKENS_MISMATCH = "SpecialTokensMismatch"
    QUANTIZATION_MISMATCH = "QuantizationMismatch"
    ENGINE_MISMATCH = "EngineMismatch"
    FLAGS_MISMATCH = "FlagsMismatch"
    OUTPUT_MISMATCH = "OutputMismatch"
    STREAM_BROKEN = "StreamBroken"
    BLOCKS_LEAKED = "BlocksLeaked"
    PROBE_TIMEOUT = "ProbeTimeout"
    GOLDEN_MISSING = "GoldenMissing"
    ENGINE_UNREACHABLE = "EngineUnreachable"
    # The gate itself broke: nothing was learned about the release, and what was not proved does not serve.
    GATE_FAILED = "GateFailed"

    # One code per cause that asks for another remedy; DownloadFailed is what none of them explains.
    DOWNLOAD_FAILED = "DownloadFailed"
    DOWNLOAD_UNAUTHORIZED = "DownloadUnauthorized"
    DOWNLOAD_NOT_FOUND = "DownloadNotFound"
    DOWNLOAD_RATE_LIMITED = "DownloadRateLimited"
    DOWNLOAD_TRUNCATED = "DownloadTruncated"
    DOWNLOAD_CORRUPT = "DownloadCorrupt"
    DOWNLOAD_STALLED = "DownloadStalled"
    DISK_FULL = "DiskFull"
    MOUNT_FAILED = "MountFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOPING = "CrashLooping"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"

    ROLLOUT_STEP = "RolloutStep"
    PAUSED = "Paused"
    SCALED_TO_ZERO = "ScaledToZero"
    ANALYSIS_FAILED = "AnalysisFailed"
    ANALYSIS_INCONCLUSIVE = "AnalysisInconclusive"
    ROLLED_BACK = "RolledBack"
    PROMOTED = "Promoted"
    SCALING_LIMITED = "ScalingLimited"
    METRICS_UNAVAILABLE = "MetricsUnavailable"

    # Not failures: a pod that has not reached its verdict yet, and one that passed it (against an approved record, or
    # under TrustFirst against the record of the first pod, which nobody has approved).
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    VERIFYING = "Verifying"
    VERIFIED = "Verified"
    RECORDED_NOT_APPROVED = "RecordedNotApproved"


# The order is the order in which the gate reports: the earliest differing part is named first.
PART_REASONS: dict[str, Reason] = {
    "model": Reason.MODEL_MISMATCH,
    "adapters": Reason.ADAPTER_MISMATCH,
    "tokenizer": Reason.TOKENIZER_MISMATCH,
    "chatTemplate": Reason.TEMPLATE_MISMATCH,
    "specialTokens": Reason.SPECIAL_TOKENS_MISMATCH,
    "quantization": Reason.QUANTIZATION_MISMATCH,
    "engine": Reason.ENGINE_MISMATCH,
    "servingFlags": Reason.FLAGS_MISMATCH,
}

# Why an artefact could not be fetched, as the fetching container says it.
DOWNLOAD_REASONS: frozenset[Reason] = frozenset(
    {
        Reason.DOWNLOAD_FAILED,
        Reason.DOWNLOAD_UNAUTHORIZED,
        Reason.DOWNLOAD_NOT_FOUND,
        Reason.DOWNLOAD_RATE_LIMITED,
        Reason.DOWNLOAD_TRUNCATED,
        Reason.DOWNLOAD_CORRUPT,
        Reason.DOWNLOAD_STALLED,
        Reason.DISK_FULL,
    }
)

# Reasons a pod's own gate can give; everything else is the operator's observation. RecordMissing is both: the operator
# gives it when the ConfigMap is absent, a pod when the record it was handed is of another release than the approved one.
GATE_REASONS: frozenset[Reason] = frozenset(
    {
        *PART_REASONS.values(),
        Reason.OUTPUT_MISMATCH,
        Reason.STREAM_BROKEN,
        Reason.BLOCKS_LEAKED,
        Reason.PROBE_TIMEOUT,
        Reason.GOLDEN_MISSING,
        Reason.RECORD_MISSING,
        Reason.ENGINE_UNREACHABLE,
        Reason.GATE_FAILED,
    }
)
