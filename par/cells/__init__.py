"""Cells: the operations, the genotypes that combine them, the experts built from them and the search for them."""
