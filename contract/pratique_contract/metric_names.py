"""Metric names, the one place they are written. The server exports them, the operator and autoscalers read them, dashboards
name them; the aliases let tools that know vLLM's names work unchanged."""

from typing import Final

REQUESTS_TOTAL: Final = "pratique_requests_total"
REQUESTS_RUNNING: Final = "pratique_requests_running"
REQUESTS_WAITING: Final = "pratique_requests_waiting"
QUEUE_TOKENS: Final = "pratique_queue_tokens"
TIME_TO_FIRST_TOKEN_SECONDS: Final = "pratique_time_to_first_token_seconds"
INTER_TOKEN_LATENCY_SECONDS: Final = "pratique_inter_token_latency_seconds"
REQUEST_DURATION_SECONDS: Final = "pratique_request_duration_seconds"
REQUEST_QUEUE_SECONDS: Final = "pratique_request_queue_seconds"
REQUEST_PREFILL_SECONDS: Final = "pratique_request_prefill_seconds"
REQUEST_DECODE_SECONDS: Final = "pratique_request_decode_seconds"
PROMPT_TOKENS_TOTAL: Final = "pratique_prompt_tokens_total"
GENERATION_TOKENS_TOTAL: Final = "pratique_generation_tokens_total"
KV_BLOCKS: Final = "pratique_kv_blocks"
KV_CACHE_USAGE_RATIO: Final = "pratique_kv_cache_usage_ratio"
PREEMPTIONS_TOTAL: Final = "pratique_preemptions_total"
STEP_SECONDS: Final = "pratique_step_seconds"
STALE_OUTPUTS_TOTAL: Final = "pratique_stale_outputs_total"
STREAM_ABORTS_TOTAL: Final = "pratique_stream_aborts_total"
REJECTIONS_TOTAL: Final = "pratique_rejections_total"
VERDICT: Final = "pratique_verdict"
REVERIFICATIONS_TOTAL: Final = "pratique_reverifications_total"
REVERIFICATION_FAILURES: Final = "pratique_reverification_failures"
RELEASE_INFO: Final = "pratique_release_info"
ENGINE_EPOCH: Final = "pratique_engine_epoch"

OPERATOR_RECONCILE_SECONDS: Final = "pratique_operator_reconcile_seconds"
OPERATOR_RECONCILE_TOTAL: Final = "pratique_operator_reconcile_total"
OPERATOR_APPLY_TOTAL: Final = "pratique_operator_apply_total"
OPERATOR_QUEUE_LENGTH: Final = "pratique_operator_queue_length"

VLLM_ALIASES: Final[dict[str, str]] = {
    REQUESTS_RUNNING: "vllm:num_requests_running",
    REQUESTS_WAITING: "vllm:num_requests_waiting",
    KV_CACHE_USAGE_RATIO: "vllm:kv_cache_usage_perc",
}
