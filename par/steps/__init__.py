"""Steps: chains and searches as jobs, the workers that run them, and the store that keeps what is finished."""
