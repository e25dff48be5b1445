"""Runs the parts of an evlbi correlation plan on the workers of a Dask cluster."""
