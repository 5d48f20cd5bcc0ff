"""The operator's own metrics. Names come from the contract."""

from prometheus_client import Counter, Gauge, Histogram

from pratique_contract import metric_names

RECONCILE_SECONDS = Histogram(metric_names.OPERATOR_RECONCILE_SECONDS, "Duration of one pass over one service.")
RECONCILES = Counter(metric_names.OPERATOR_RECONCILE_TOTAL, "Passes by result: unchanged, changed, error.", ["result"])
APPLIES = Counter(metric_names.OPERATOR_APPLY_TOTAL, "Writes to children by kind and result.", ["kind", "result"])
QUEUE_LENGTH = Gauge(metric_names.OPERATOR_QUEUE_LENGTH, "Services that wait for a pass or are in one.")
