//go:build ignore

// gen reads the output of unidump, and writes it into unicode.bin in the order in which unicode.go reads the file.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
)

var categories = strings.Fields("Cc Cf Co Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs")
var graphemes = strings.Fields("CR Control Extend Extended_Pictographic InCB_Consonant L LF LV LVT Prepend Regional_Indicator SpacingMark T V ZWJ")

// runTables and mapTables give the order of the tables in unicode.bin. First come tables of runs of code points. Then
// come tables that map a code point, or a pair of code points, to code points.
var runTables = strings.Fields("category onig_space onig_word onig_digit regex_word old_punctuation old_other old_nonspacing old_combining numeric ccc grapheme " +
	"script:Han script:Hiragana script:Katakana script:Hangul script:Latin script:Cyrillic script:Greek script:Thai script:Arabic script:Hebrew script:Devanagari")
var mapTables = strings.Fields("lower canonical compatible compose")

func main() {
	lines := map[string][][]string{}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		f := strings.Fields(in.Text())
		lines[f[0]] = append(lines[f[0]], f[1:])
	}
	var out []byte
	for _, name := range runTables {
		out = appendRuns(out, name, lines[name])
	}
	for _, name := range mapTables {
		out = appendMap(out, lines[name])
	}
	os.Stdout.Write(out)
}

func appendRuns(out []byte, name string, lines [][]string) []byte {
	if len(lines) == 0 {
		panic("no runs of " + name)
	}
	out = binary.AppendUvarint(out, uint64(len(lines)))
	next := uint64(0)
	for _, f := range lines {
		start, end := hex(f[0]), hex(f[1])
		out = binary.AppendUvarint(out, start-next)
		out = binary.AppendUvarint(out, end-start)
		out = append(out, value(name, f[2]))
		next = end + 1
	}
	return out
}

func appendMap(out []byte, lines [][]string) []byte {
	out = binary.AppendUvarint(out, uint64(len(lines)))
	last := uint64(0)
	for _, f := range lines {
		from := hex(f[0])
		out = binary.AppendUvarint(out, from-last)
		last = from
		to := strings.Split(f[2], ",")
		if f[0] != f[1] { // the key is a pair of code points, which compose to another code point
			to = append([]string{f[1]}, to...)
		}
		out = append(out, byte(len(to)))
		for _, t := range to {
			out = binary.AppendUvarint(out, hex(t))
		}
	}
	return out
}

func value(table, s string) byte {
	switch table {
	case "category":
		return index(categories, s)
	case "grapheme":
		return index(graphemes, s)
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return byte(n)
}

func index(names []string, s string) byte {
	for i, n := range names {
		if n == s {
			return byte(i + 1)
		}
	}
	panic(fmt.Sprintf("unknown value %q", s))
}

func hex(s string) uint64 {
	n, err := strconv.ParseUint(s, 16, 32)
	if err != nil {
		panic(err)
	}
	return n
}
