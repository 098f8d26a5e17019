"""Survives a killed supervisor until it has ended the remaining processes.

It runs as a script with one end of a pipe as standard input. Each line is `+group signal` (a process group
that was started, and its stop signal) or `-group`. The end of the file means that the supervisor is dead. The
remaining groups then get their signals, and later SIGKILL. "Die with the parent" affects only direct children,
and not on every system; this includes indirect children.
"""

import os
import signal
import sys
import time

QUIT_AFTER = 4.0
KILL_AFTER = 6.0


def has_ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def send(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def end(groups: dict[int, int]) -> None:
    started = time.monotonic()
    for group, polite in groups.items():
        send(group, polite)
    stages = [(QUIT_AFTER, signal.SIGQUIT), (KILL_AFTER, signal.SIGKILL)]
    while remaining := [group for group in groups if not has_ended(group)]:
        elapsed = time.monotonic() - started
        if stages and elapsed > stages[0][0]:
            number = stages.pop(0)[1]
            for group in remaining:
                send(group, number)
        elif not stages and elapsed > KILL_AFTER + 2.0:
            return  # only zombies remain, which no parent reaps
        time.sleep(0.05)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, int] = {}
    for line in sys.stdin:
        words = line[1:].split()
        if line.startswith("+"):
            groups[int(words[0])] = int(words[1])
        else:
            groups.pop(int(words[0]), None)
    end(groups)


if __name__ == "__main__":
    main()
