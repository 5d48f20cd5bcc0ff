"""The API port: OpenAI-compatible HTTP in, execution requests out, typed events back as JSON or server-sent events."""
