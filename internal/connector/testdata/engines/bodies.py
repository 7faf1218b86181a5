"""Reads the scripts beside this folder: which bodies a connector writes."""

import json
import pathlib
import re

SCRIPTS = pathlib.Path(__file__).parent.parent


def bodies(name):
    """Yields (leg, kind, body) for each body that the script of a connector shows."""
    kind = ""
    for line in (SCRIPTS / (name + ".txt")).read_text().splitlines():
        word = line.split(" ", 1)[0]
        if word in ("chat", "completion"):
            kind = word
        found = re.match(r"    → (prefill|decode|fetch|release) (\{.*)", line)
        if found:
            text = found[2]
            yield found[1], "chat" if '"messages"' in text else "completion", text


def show(names, version, command, read):
    """Prints each body with what the engine's code reads in it."""
    print(f"# What the code of {version} reads in the bodies that the scripts show. Made with")
    print(f"#     {command}")
    print("# in a Python that has this engine's packages.")
    for name in names:
        for leg, kind, text in bodies(name):
            print(f"\n{name} {leg} {text}")
            try:
                for line in read(name, leg, kind, json.loads(text)):
                    print(f"    → {line}")
            except Exception as e:  # what the engine refuses is a result, too
                print("    → refused: " + " ".join(f"{type(e).__name__}: {e}".split()))
