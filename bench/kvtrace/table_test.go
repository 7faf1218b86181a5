package main

import (
	"strings"
	"testing"
)

// TestTableReadsBothHarnesses reads lines that kvtrace (for Warmpath) and peerbench (for the peers) print.
func TestTableReadsBothHarnesses(t *testing.T) {
	in := strings.Join([]string{
		"main\tlookup smg-chain-into len=512 probes=119 wrong=0 mean holders=1.24: n=1190 mean=231 p50=200 p90=277 p99=413 p99.9=587 max=1536 | per-rep p50 min=212 med=217 p99 min=309 med=332",
		"main\tlookup smg-chain len=512 probes=119 wrong=0 mean holders=1.24: n=1190 mean=231 p50=400 p90=277 p99=400 p99.9=587 max=1536 | per-rep p50 min=212 med=217 p99 min=309 med=332",
		"main\tlookup warmpath-kvindex len=512 probes=119 wrong=0 mean holders=1.24: n=1190 mean=231 p50=100 p90=277 p99=413 p99.9=587 max=1536 | per-rep p50 min=212 med=217 p99 min=309 med=332",
		"main\tapply smg-chain split=0: median 0.204s best 0.199s of [0.2, 0.3] | median: stored 14.68 M blocks/s, block ops (stored+removed) 27.80 M/s | best: 28.52 M block ops/s",
		"main\tapply warmpath-kvindex split=0: median 0.204s best 0.199s of [0.2] | median: stored 14.68 M blocks/s, block ops (stored+removed) 13.90 M/s | best: 28.52 M block ops/s",
		"main\tmem smg-chain cleanup=false: live entries=320000 RssAnon delta=20.3 MiB (66.5 B/entry), after malloc_trim 20.0 MiB (65.4 B/entry); heap requested 0.0 MiB (0.0 B/entry) in 0 allocations",
		"main\tmem warmpath-kvindex cleanup=false: live entries=320000 RssAnon delta=20.3 MiB (66.5 B/entry), after FreeOSMemory 9.0 MiB (29.5 B/entry); the index counts 9.0 MiB (29.5 B/entry)",
		"main\tconc smg-chain rate=0: n=321567 mean=190 p50=169 p90=218 p99=289 p99.9=1002 max=196263 | sent 12.44 M block ops/s over 0.19s, 1666008 lookups/s, mean best depth 256.0, full hits 100.0%",
		"main\tconc warmpath-kvindex rate=0: n=321567 mean=190 p50=169 p90=218 p99=289 p99.9=1002 max=196263 | sent 12.44 M block ops/s over 0.19s, 1666008 lookups/s, mean best depth 256.0, full hits 100.0%",
		"hard\tverify dynamo-crtc: queries=10 wrong=3 (worker-depths too high 2, too low 1) first=None",
		"-\thash warmpath block.Hasher.Append 8192 tok bs=16: n=247874 mean=5997 p50=2282 p90=2289 p99=2832 p99.9=27907 max=136994540",
		"hard\tsmg-chain refused: ParentBlockNotFound",
	}, "\n")
	var out strings.Builder
	if err := table(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| lookup main 512 p50 ns | kvindex | 100 | smg-chain-into | 200 | 0.50 | ≤ 0.90 | met |",
		"| lookup main 512 p99 ns | kvindex | 413 | smg-chain | 400 | 1.03 | ≤ 0.90 | **missed** |",
		"| apply main 0 M block ops/s | kvindex | 13.9 | smg-chain | 27.8 | 0.50 | ≥ 0.60 | **missed** |",
		"| mem main  B/entry | kvindex | 29.5 | smg-chain | 65.4 | 0.45 | ≤ 52 B | met |",
		"| conc main 0 p50 ns | kvindex | 169 | smg-chain | 169 | 1.00 | ≤ 0.80 | **missed** |",
		"| conc main 0 writer M/s | kvindex | 12.44 | smg-chain | 12.44 | 1.00 |  |  |",
		"| hard | dynamo-crtc | 10 | 3 | 2 | 1 |",
		"| hard | smg-chain | | refused: ParentBlockNotFound | | |",
		"| warmpath block.Hasher.Append 8192 tok bs=16 | 2282 | 2832 |",
		"Goals met 2, missed 4.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks\n%s\nin\n%s", want, out.String())
		}
	}
}
