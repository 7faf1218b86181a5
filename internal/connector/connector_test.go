package connector

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/warmpath/warmpath/fleet"
)

func TestEachEngineHasAtMostOneUsualConnector(t *testing.T) {
	for engine, want := range map[fleet.Engine]string{
		fleet.EngineVLLM: "nixl", fleet.EngineSGLang: "sglang", fleet.EngineTRTLLM: "trtllm", fleet.EngineOther: "", fleet.EngineUnknown: "",
	} {
		if got := Default(engine); got != want {
			t.Errorf("%v: %q, want %q", engine, got, want)
		}
	}
	seen := map[string]string{}
	for name, c := range connectors {
		if of := c.file.Engine; of != "" {
			if seen[of] != "" {
				t.Errorf("%s and %s are both the usual connector of %s", seen[of], name, of)
			}
			seen[of] = name
		}
	}
}

// TestTheRoomNamesTheRank: for any room, the prefill engine's room % ranks is the rank of the leg, and the room has 63
// bits.
func TestTheRoomNamesTheRank(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		ranks := 1 + random.IntN(64)
		p := Pair{Room: random.Uint64(), Prefill: End{Rank: random.IntN(ranks), Ranks: ranks}}
		if random.IntN(4) == 0 {
			p.Room = 1<<64 - 1 - random.Uint64N(200)
		}
		seen := map[uint64]bool{}
		for i := range 3 {
			n := room(&p, i)
			if n >= 1<<63 || n%uint64(ranks) != uint64(p.Prefill.Rank) || seen[n] {
				t.Fatalf("room %d of prompt %d for rank %d of %d", n, i, p.Prefill.Rank, ranks)
			}
			seen[n] = true
		}
	}
}

// TestAFileThatMeansNothingIsRefused: a mistake in a connector's file is found when the program starts, not when an
// engine hangs.
func TestAFileThatMeansNothingIsRefused(t *testing.T) {
	const good = `{"name":"x","about":"a","source":"s","order":"prefill first","owns":["x"]`
	for _, of := range []struct{ more, want string }{
		{`,"prefill":{"set":{"a":"{nobody}"}}`, "names no value"},
		{`,"prefill":{"set":{"a":"{room"}}`, "names no value"},
		{`,"prefill":{"set":{"a":["{room}"]}}`, "a list cannot have"},
		{`,"prefill":{"set":{"a":{"...":"x{carried}"}}}`, "one value"},
		{`,"prefill":{"unset":{}}`, "unknown field"},
		{`,"needs":["prefill.colour"]`, "no value of a worker"},
		{`,"answer":{"carried":"a","has":{"b":"sometimes"}}`, "not one of"},
		{`,"abort":{"whole":{}}`, "not prefill or decode"},
		{`,"order":"later"`, "order"},
		{`,"order":"together","answer":{"carried":"a"}`, "nothing is carried"},
		{`,"about":""`, "must be given"},
		{`,"name":"y"`, "another name"},
	} {
		_, err := read(fstest.MapFS{"connectors/x.json": {Data: []byte(good + of.more + "}")}})
		if err == nil || !strings.Contains(err.Error(), of.want) {
			t.Errorf("%s: %v, want an error with %q", of.more, err, of.want)
		}
	}
	if all, err := read(fstest.MapFS{"connectors/x.json": {Data: []byte(good + "}")}}); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestEachConnectorOwnsItsMembers: a member by which a connector tells an engine where to read is refused from clients.
func TestEachConnectorOwnsItsMembers(t *testing.T) {
	shared := []string{"max_tokens", "stream", "ignore_eos", "return_token_ids", "prompt", "prompt_token_ids", "rid"}
	for name, c := range connectors {
		for _, l := range []*leg{&c.file.Prefill, &c.file.Decode} {
			for _, m := range l.Set.members {
				if !slices.Contains(shared, m.name) && !slices.Contains(c.file.Owns, m.name) {
					t.Errorf("%s sets %s, which clients may set, too", name, m.name)
				}
			}
		}
	}
}

func TestOnlyThePeerToPeerTierFetchesAnyPrompt(t *testing.T) {
	for _, name := range Names() {
		if c, _ := Find(name); c.Fetches() != (name == "p2p") {
			t.Errorf("%s fetches: %v", name, c.Fetches())
		}
	}
}

func TestHeadersOfSGLangAreForeign(t *testing.T) {
	for name, want := range map[string]bool{
		"X-Override-Bootstrap-Host": true, "x-override-bootstrap-room": true, "X-Override-Disagg-Prefill-Dp-Rank": true,
		"x-override-rid": false, "X-Request-Id": false, "Bootstrap-Host": false,
	} {
		if ForeignHeader(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// TestThePageHasEachConnectorAndValue: docs/connectors.md is the reference of the files.
func TestThePageHasEachConnectorAndValue(t *testing.T) {
	page, err := os.ReadFile("../../docs/connectors.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.AppendSeq(Names(), maps.Keys(owned)) {
		if !strings.Contains(string(page), "`"+name) {
			t.Errorf("docs/connectors.md does not have `%s`", name)
		}
	}
	for name := range values {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/connectors.md has no row for the value `%s`", name)
		}
	}
	for kind := range kinds {
		if !strings.Contains(string(page), "`"+kind+"`") {
			t.Errorf("docs/connectors.md does not have the kind `%s`", kind)
		}
	}
}
