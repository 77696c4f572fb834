"""OGBench's robot environments: data, evaluation, films."""
