"""Every name the operator gives, and nothing else gives names. ``{service}`` is the entry; ``{service}-{revision}`` belongs to one
revision. A service's name has at most 50 characters (CEL), a revision 10, so all fit in a DNS label."""

from typing import Final

from pratique_contract import constants

REVISION_DIGITS: Final = 10

CONTAINER: Final = "server"
FETCHER: Final = "fetch"
ENTRY_PORT: Final = 80

VOLUME_CONFIG: Final = "config"
VOLUME_TMP: Final = "tmp"
VOLUME_MODEL: Final = "model"
VOLUME_TOKENIZER: Final = "tokenizer"
VOLUME_TEMPLATE: Final = "chat-template"
VOLUME_KEYS: Final = "api-keys"
VOLUME_CACHE: Final = "cache"
VOLUME_CREDENTIALS: Final = "credentials"
VOLUME_FETCH_TMP: Final = "fetch-tmp"

TEMPLATE_DIR: Final = "/etc/pratique-template"
KEYS_DIR: Final = "/etc/pratique-keys"

# When a revision first had ready endpoints behind the entry Service (RFC 3339); absent: it never served.
ANNOTATION_SERVED_AT: Final = f"{constants.GROUP}/served-at"


def revision_child(service: str, revision: str) -> str:
    """Name of the Deployment, Service and ConfigMap of one revision."""
    return f"{service}-{revision}"


def adapter_volume(adapter: str) -> str:
    """Name of the volume of an adapter that is mounted, and of its folder beside the model's."""
    return f"adapter-{adapter}"


def entry(service: str) -> str:
    """Name of the entry Service, the PodDisruptionBudget and the ServiceAccount."""
    return service


def url(service: str, namespace: str) -> str:
    """Where clients inside the cluster find the API."""
    return f"http://{entry(service)}.{namespace}.svc"
