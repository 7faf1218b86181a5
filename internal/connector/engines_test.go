package connector

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTheEnginesReadWhatIsWritten: testdata/engines has what the code of vLLM and SGLang read in each body that the
// scripts show. A body that changed must be read again: the first lines of the files have the commands, which need an
// engine's Python packages, but start no engine.
func TestTheEnginesReadWhatIsWritten(t *testing.T) {
	for file, names := range map[string][]string{
		"testdata/engines/vllm-0.32.0.txt":   {"mooncake", "nixl", "nixl_push", "nixl_two_way", "p2p", "shared"},
		"testdata/engines/sglang-0.5.23.txt": {"sglang"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		read := map[string]string{} // what was read, by connector, leg and body
		for part := range strings.SplitSeq(string(text), "\n\n") {
			body, meaning, _ := strings.Cut(part, "\n")
			read[body] = meaning
		}
		for _, name := range names {
			script, err := os.ReadFile("testdata/" + name + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			bodies := written.FindAllSubmatch(script, -1)
			if len(bodies) < 3 {
				t.Errorf("%s shows %d bodies", name, len(bodies))
			}
			for _, b := range bodies {
				leg := string(b[1])
				meaning, ok := read[name+" "+leg+" "+string(b[2])]
				if !ok {
					t.Errorf("%s has no body of %s for %s: read the bodies again, see its first lines.\n%s", file, name, leg, b[2])
				} else if r := ranks.FindStringSubmatch(meaning); r != nil && (r[1] != r[2] || r[2] != r[3]) {
					t.Errorf("%s %s %s: the legs meet at different ranks\n%s", name, leg, b[2], meaning)
				} else if want := meanings[name][leg]; !want.MatchString(meaning) {
					t.Errorf("%s %s %s: the engine reads\n%s\nwant %v", name, leg, b[2], meaning, want)
				}
			}
		}
	}
}

// ranks finds the rank to which a prefill engine gives a request, and the rank that the decode engine asks.
var ranks = regexp.MustCompile(`the room goes to (\d+), and decode asks (\d+) \(without being told: (\d+)\)`)

var written = regexp.MustCompile(`(?m)^    → (prefill|decode|fetch|release) (\{.*)$`)

// meanings say what an engine must read in each leg.
var meanings = func() map[string]map[string]*regexp.Regexp {
	const one = `^    → whole answer, at most 1 tokens, at least 0, .*\n`
	all := map[string]map[string]*regexp.Regexp{}
	for name, legs := range map[string]map[string]string{
		"nixl": {
			"prefill": one + `    → computes the prompt; its blocks stay for the decode leg`,
			"decode":  `\n    → reads 500 tokens: blocks \[\[.*\]\] of \S+ at engine \S+, \S+:\d+`,
		},
		"nixl_two_way": {
			"prefill": one + `    → computes the prompt; its blocks stay for the decode leg`,
			"decode":  `\n    → reads 500 tokens: blocks \[\[.*\]\] of \S+ at engine P, 10.0.0.1:5600`,
			"fetch":   one + `    → reads 70 tokens: blocks \[\[34, 29\]\] of \S+ at engine D, 10.0.0.2:5601\n    → then its blocks stay for the decode leg`,
			// With no token to read, the engine only tells the other one that its blocks are free.
			"release": one + `    → reads 0 tokens: blocks \[\[34, 29\]\] of \S+ at engine D, 10.0.0.2:5601\n    → then its blocks stay for the decode leg`,
		},
		"nixl_push": {
			"prefill": one + `    → computes the prompt; its blocks stay for the decode leg`,
			"decode":  `\n    → waits for 500 tokens from engine \S+ at 10.0.0.1:560\d, groups of \d and \d\n    → both engines know the request as \S+: True`,
		},
		"mooncake": {
			"prefill": one + `    → computes the prompt; its blocks stay for the decode leg\n    → sends transfer xfer-R`,
			"decode":  `\n    → receives 500 tokens: transfer xfer-R\S+ of engine 6f1c\S*, bootstrap http://\S+:8998`,
		},
		"p2p": {
			"prefill": one + `    → reads from None, keeps for P2PDestInfo\(kv_request_id='R`,
			"decode":  `\n    → reads from P2PSourceInfo\(kv_request_id='R\S+, peer_id='10.0.0.1:57\d\d', do_probe=False\), keeps for None`,
			"fetch":   `\n    → reads from P2PSourceInfo\(kv_request_id='fetch-R\S+, peer_id='10.0.0.1:57\d\d', do_probe=True\)`,
		},
		"shared": {
			"prefill": one + `    → connector: None`,
			"decode":  `\n    → connector: None`,
		},
		"sglang": {
			"prefill": `^    → rid R\S+: room \d+ at \S+:8998`,
			"decode":  `^    → rid R\S+: room \d+ at \S+:8998`,
		},
	} {
		all[name] = map[string]*regexp.Regexp{}
		for leg, pattern := range legs {
			all[name][leg] = regexp.MustCompile(pattern)
		}
	}
	return all
}()
