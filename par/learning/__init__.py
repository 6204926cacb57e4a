"""Learning: one training loop, the steps that use it, and the store that keeps finished steps."""
