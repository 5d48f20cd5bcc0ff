"""What pods say, by their own object and when they are asked: nothing here knows a release or a rollout."""
