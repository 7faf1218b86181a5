"""Prints casing_table.go: the characters whose upper or title case is longer than one character, as CPython maps them.

    python3 testdata/casing.py | gofmt > casing_table.go
"""


def quoted(s):
    return '"' + "".join("\\u%04x" % ord(c) if ord(c) > 127 else c for c in s) + '"'


def rows(mapping):
    keys = sorted(mapping)
    return "\n".join(
        "\t" + " ".join("0x%04x: %s," % (k, quoted(mapping[k])) for k in keys[i : i + 6]) for i in range(0, len(keys), 6)
    )


chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
upper = {ord(c): c.upper() for c in chars if len(c.upper()) > 1}
title = {ord(c): c.title() for c in chars if len(c.title()) > 1}
print("""package jinja

// These tables have the characters whose upper or title case has more than one character: the unconditional part of
// Unicode's SpecialCasing.txt. The tables are needed because Go's unicode package maps one character to one character.
// testdata/casing.py writes this file.

var upperLong = map[rune]string{
%s
}

var titleLong = map[rune]string{
%s
}""" % (rows(upper), rows(title)))
