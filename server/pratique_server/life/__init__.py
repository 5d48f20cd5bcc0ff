"""The life of the serving process: load, verify, watch the engine, drain."""
