"""What ``pratique release review`` does: read both sides, run the tests, conclude, and show it."""
