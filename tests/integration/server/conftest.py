"""As the product's entry points do: what transformers reads for its models is read once, and not walked while it comes in."""

from pratique_server.imports import MODELS, import_large

import_large(MODELS)
