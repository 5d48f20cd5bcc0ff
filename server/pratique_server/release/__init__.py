"""Release identity: what was loaded, what was approved."""
