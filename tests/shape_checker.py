"""The type checker that the import hook of conftest.py puts on every function of the package."""

from beartype import BeartypeConf, beartype

# An int is welcome where a float is asked for, as in Python's own typing rules.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
