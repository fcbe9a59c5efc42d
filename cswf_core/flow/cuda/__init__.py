"""The steps of a stage on CUDA: half precision, recorded as CUDA graphs."""
