"""The methods are what the literature says they are, on any kernels."""
