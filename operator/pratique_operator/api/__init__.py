"""The ``InferenceService`` API: frozen models with limits and CEL beside the fields, and the CRD that is generated from them."""
