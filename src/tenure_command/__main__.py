"""`python -m tenure_command`: the command line, also quiet when it is interrupted at its start."""

from tenure_command import main

if __name__ == "__main__":
    main()
