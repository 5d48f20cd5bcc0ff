"""The tests that a review runs on a reference and a candidate release: rendered fixtures, semantic parity, logit comparison.

The fourth kind, the workload, needs two served releases and a client, and lives with the command line."""
