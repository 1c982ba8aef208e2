"""Registers, memory and counted instructions of each kernel of a fatbin on sm_90a, one line a kernel.

An instruction that a source asks for may still not be there: inline PTX can compile to something else, and
a load of 16 bytes can fall apart into narrower ones. The counts are committed, so that a change shows.
"""

import re
import subprocess
import sys

COUNTED = [
    ("LDGSTS", r"LDGSTS\b"),
    ("LDG.128", r"LDG\.\S*128\b"),
    ("LDG.64", r"LDG\.\S*64\b"),
    ("LDG", r"LDG\."),
    ("LDSM", r"LDSM\b"),
    ("IMMA", r"IMMA\b"),
    ("HMMA", r"HMMA\b"),
    ("HGMMA", r"HGMMA\b"),
    ("UTMALDG", r"UTMALDG\b"),
    ("STL", r"STL\b"),
    ("LDL", r"LDL\b"),
]


def dump(what, fatbin):
    return subprocess.run(
        ["cuobjdump", "-arch", "sm_90a", what, fatbin], check=True, capture_output=True, text=True
    ).stdout


def main():
    fatbin = sys.argv[1]
    usage = {}
    name = None
    for line in dump("-res-usage", fatbin).splitlines():
        if found := re.match(r"\s*Function (\w+):", line):
            name = found[1]
        elif name and (found := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line)):
            usage[name] = found.groups()
            name = None
    code = {}
    name = None
    for line in dump("-sass", fatbin).splitlines():
        if found := re.match(r"\s*Function : (\w+)", line):
            name = found[1]
            code[name] = []
        elif name and (found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?(.*?);", line)):
            code[name].append(found[1])
    print("# kernel: registers, stack bytes, static shared bytes; instructions that are there")
    for name in sorted(code):
        registers, stack, shared = usage[name]
        counts = [(what, sum(bool(re.match(r, line)) for line in code[name])) for what, r in COUNTED]
        counts = " ".join(f"{what}={n}" for what, n in counts if n)
        print(f"{name}: reg={registers} stack={stack} shared={shared} all={len(code[name])} {counts}")


main()
