"""`python -m tenure`: the command line."""

from tenure.cli.main import main

if __name__ == "__main__":
    main()
