"""`python -m looped_actor`: the command line, where its script is not on the path."""

from looped_actor.cli.main import main

main()
