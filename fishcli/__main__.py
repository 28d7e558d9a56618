"""``python -m fishcli``."""

from fishcli.cli.app import main

if __name__ == "__main__":
    main()
