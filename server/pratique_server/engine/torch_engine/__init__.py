"""The built-in torch engine: several requests at once over a K/V cache, on unmodified Hugging Face models."""
