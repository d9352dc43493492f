"""Stands for npukit.selftest.worker: a group of checks of which one crashes its process and one never ends.

Its group's name says what happens, a letter a check: p passes, f fails, c crashes, h hangs; "x" dies before it begins.
"""

import json
import os
import sys
import time

group, first, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if group == "x":
    sys.exit("no such card")


def write(**line):
    with open(file, "a") as stream:  # noqa: PTH123
        stream.write(json.dumps(line) + "\n")


write(checks=[f"{number}{letter}" for number, letter in enumerate(group)], missing="")
for number, letter in list(enumerate(group))[first:]:
    write(start=number)
    if letter == "c":
        print("core dumped", flush=True)
        os.abort()
    if letter == "h":
        time.sleep(1000)
    write(end=number, seconds=0, outcome="passed" if letter == "p" else "failed")
