"""Work handed to other machines: flow runs of other pools, Ray and Dask workers."""
