"""Names, ports, paths and headers that server, operator and command line share. One place per fact."""

from typing import Final

GROUP: Final = "serving.pratique.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SHORT_NAME: Final = "psvc"
FIELD_MANAGER: Final = "pratique-operator"

API_PORT: Final = 8000
MANAGEMENT_PORT: Final = 8001
API_PORT_NAME: Final = "http"
MANAGEMENT_PORT_NAME: Final = "management"

CHAT_COMPLETIONS_PATH: Final = "/v1/chat/completions"
MODELS_PATH: Final = "/v1/models"
LIVEZ_PATH: Final = "/livez"
READYZ_PATH: Final = "/readyz"
STARTUPZ_PATH: Final = "/startupz"
VERDICT_PATH: Final = "/verdict"
MANIFEST_PATH: Final = "/manifest"
# The release record of what this pod loaded. GET asks for its own: proved here, made or given. POST starts the making with the pod's
# own engine, in time no user wants; with a record as its body, that record with this pod's outputs added. What comes of a POST is told
# by GET with the digest of the POST's body as ``of``: anyone can POST, and the pod's own record must not change by it. A pod without a
# record under TrustFirst starts by itself. 200: the record's own bytes (canonical JSON). 202: it is being made, ask again. 409: there
# is none, and asking again will not help (not verified, too large for a ConfigMap, no clear golden case). 503: nothing is loaded, or the
# pod is ending, or at another record. All but 200 answer {"message": sentence}.
RECORD_API_PATH: Final = "/record"
RECORD_OF_PARAMETER: Final = "of"
METRICS_PATH: Final = "/metrics"
STATS_PATH: Final = "/stats"
DRAIN_PATH: Final = "/drain"

# Inside the serving container.
CONFIG_DIR: Final = "/etc/pratique"
SERVING_FILE: Final = "serving.json"
RECORD_FILE: Final = "record.json"
# A record's signature stands beside it, as a file and as a key of its ConfigMap (``signature.py``).
SIGNATURE_SUFFIX: Final = ".sig"
RECORD_SIGNATURE_FILE: Final = f"{RECORD_FILE}{SIGNATURE_SUFFIX}"
SERVING_PATH: Final = f"{CONFIG_DIR}/{SERVING_FILE}"
RECORD_PATH: Final = f"{CONFIG_DIR}/{RECORD_FILE}"
MODEL_MOUNT: Final = "/models"
# The Secret with credentials for fetching: mounted into the fetching container only.
CREDENTIALS_DIR: Final = "/etc/pratique-credentials"
# Under TrustFirst: where the first pod's record appears once the operator has kept it.
RECORDED_DIR: Final = "/etc/pratique-recorded"
# What the kubelet shows as the container's termination message; the gate writes its verdict line here too.
TERMINATION_LOG_PATH: Final = "/dev/termination-log"

CONTRACT_VERSION: Final = "1"
CONTRACT_HEADER: Final = "x-pratique-contract"
FINGERPRINT_HEADER: Final = "x-pratique-fingerprint"
REQUEST_ID_HEADER: Final = "x-request-id"
DEADLINE_HEADER: Final = "x-pratique-deadline-ms"
# Carries the gate's random per-process token; a request without the right one is an ordinary request.
PROBE_HEADER: Final = "x-pratique-probe"
SHOULD_RETRY_HEADER: Final = "x-should-retry"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
# On a service: which operator looks after it; without it, the one that has no name.
LABEL_OPERATOR: Final = f"{GROUP}/operator"
LABEL_SERVICE: Final = f"{GROUP}/service"
LABEL_REVISION: Final = f"{GROUP}/revision"
MANAGED_BY: Final = "pratique"

ANNOTATION_FINGERPRINT: Final = f"{GROUP}/fingerprint"
ANNOTATION_MODEL_REVISION: Final = f"{GROUP}/model-revision"
ANNOTATION_SPEC_HASH: Final = f"{GROUP}/spec-hash"
