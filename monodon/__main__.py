"""``python -m monodon``."""

from monodon.commands import main

if __name__ == "__main__":
    main()
