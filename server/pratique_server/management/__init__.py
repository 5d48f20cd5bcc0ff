"""The management port: probes, verdict, manifest, metrics and drain, answered from memory in a thread of its own."""
