"""PAR (CVPR 2023): task-difficulty-aware parameter allocation and regularisation.

The science of the pipeline: streams, relatedness, cells, networks, learning, methods, reporting.
Nothing in this package imports DVC or MLflow; ``pipeline/`` does the plumbing.
"""
