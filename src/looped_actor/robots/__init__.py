"""OGBench's robot environments: data collection, evaluation, films, and the quality of critics."""
