"""Pure builders: from the spec and the plan to the exact objects that are applied. No reads, no clock, no policy."""
