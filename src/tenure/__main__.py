"""`python -m tenure`: the command line."""

from tenure_command import main

if __name__ == "__main__":
    main()
