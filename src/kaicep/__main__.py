"""`python -m kaicep` is the command `kaicep`."""

from kaicep.cli.main import main

if __name__ == "__main__":
    main()
