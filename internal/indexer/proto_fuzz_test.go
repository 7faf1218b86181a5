package indexer

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// messages returns an empty message of each type.
func messages() []message {
	return []message{&question{}, &answer{}, &registration{}, &registered{}, &removal{}, &empty{}, &listing{}, &changeRequest{}, &change{}, &dumpRequest{}, &run{}}
}

// A message that is encoded and decoded is the same message. The test with the compiler's client shows that the form is
// that of indexer.proto.
func TestMessagesAreReadAsTheyAreWritten(t *testing.T) {
	long := string(bytes.Repeat([]byte("x"), 300)) // so that the length of an inner message takes two bytes
	blocks := rankBlocks{model: "m", group: "g", place: place{"w", 1}, tier: "cpu", cacheGroup: 2, depth: 3, keys: []block.Key{5}, hashes: []uint64{0, 6}, blockSize: 7}
	for _, m := range []message{
		&question{model: "m", tokens: []block.Token{0, 127, 128, 16383, 16384, 1<<21 - 1, 1 << 21, 1<<32 - 1}, blockSize: 16, lora: "l", salt: "s", extra: "e", group: "g", workers: []string{"a", "b"}},
		&question{keys: []block.Key{1, 1 << 63}, hasKeys: true, algorithm: "fnv1a", text: "t", hasText: true, id: 1 << 63},
		&answer{model: "m", blockSize: 16, tokens: 9, scores: []score{{worker: long, rank: 3, matched: 1 << 20, tier: [4]int{1, 2, 3, 4}, full: 5, trust: fleet.TrustDegraded}, {worker: "b"}}, id: 3, code: 5, problem: "p", process: 1 << 63},
		&registration{worker: "w", models: []fleet.Model{{ID: "m", Root: long, Parent: "p"}}, group: "g", engine: "vllm", version: "1", blockSize: 32,
			sources: []fleet.EventSource{{Rank: 2, Endpoint: "tcp://a:1", Replay: "tcp://a:2", Topic: "t"}}, ranks: 3, firstRank: 2, lease: 30 * time.Second},
		&registered{listed: true}, &removal{worker: "w", rankPlusOne: 2}, &empty{}, &changeRequest{selection{"m", "g"}}, &dumpRequest{selection{"m", "g"}, "w"},
		&listing{workers: []listedWorker{{worker: "w", model: "m", group: "g", blockSize: 1, engineBlockSize: 2, algorithm: "xxh3", source: "list",
			ranks: []listedRank{{rank: 1, trust: fleet.TrustExact, why: long, ahead: 2, endpoint: "tcp://a:1"}}}}, grpcPort: 8092, process: 1<<63 + 1},
		&change{number: 1 << 40, kind: changeAdded, rankBlocks: blocks, parent: 4}, &run{rankBlocks: blocks, parent: 4, problem: "p"},
	} {
		again := reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
		if err := again.decode(m.appendTo(nil)); err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v\nbecomes %+v: %v", m, again, err)
		}
	}
}

func TestListsAreBounded(t *testing.T) {
	for _, m := range []message{
		&question{tokens: make([]block.Token, maxTokens+1)}, &question{keys: make([]block.Key, maxKeys+1)}, &question{workers: make([]string, maxNames+1)},
		&registration{models: make([]fleet.Model, maxModels+1)}, &registration{sources: make([]fleet.EventSource, fleet.MaxRanks+1)},
	} {
		again := reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
		if err := again.decode(m.appendTo(nil)); err == nil || errors.Is(err, errWire) {
			t.Errorf("%T: %v", m, err)
		}
	}
}

// Token ids in four bytes each are the same as token ids in as many bytes as they need.
func TestTokenIdsMayHaveFourBytesEach(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		want []block.Token
		bad  bool
	}{
		"packed":       {append([]byte{13<<3 | 2, 8}, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff), []block.Token{1, 1<<32 - 1}, false},
		"one by one":   {[]byte{13<<3 | 5, 1, 0, 0, 0, 13<<3 | 5, 2, 1, 0, 0}, []block.Token{1, 258}, false},
		"half a token": {[]byte{13<<3 | 2, 2, 1, 0}, nil, true},
		"too many":     {append([]byte{13<<3 | 2, 0x84, 0x80, 0x80, 8}, make([]byte, 4*(maxTokens+1))...), nil, true},
	} {
		var q question
		if err := q.decode(c.b); (err != nil) != c.bad || !c.bad && !slices.Equal(q.tokens, c.want) {
			t.Errorf("%s: %v, %v", name, q.tokens, err)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add((&question{model: "m", tokens: []block.Token{1, 200, 70000}, keys: []block.Key{1}, workers: []string{"a"}}).appendTo(nil))
	f.Add((&listing{workers: []listedWorker{{worker: "w", ranks: []listedRank{{rank: 1}}}}}).appendTo(nil))
	f.Add((&registration{worker: "w", models: []fleet.Model{{ID: "m"}}, sources: []fleet.EventSource{{Endpoint: "e"}}}).appendTo(nil))
	f.Add([]byte{13<<3 | 2, 8, 1, 0, 0, 0, 2, 0, 0, 0, 13<<3 | 5, 3, 0, 0, 0, 14 << 3, 9})
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range messages() {
			if m.decode(b) != nil {
				continue
			}
			text := m.appendTo(nil)
			again := reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
			if err := again.decode(text); err != nil || !bytes.Equal(again.appendTo(nil), text) {
				t.Errorf("%T: %+v is not read as it is written: %v", m, m, err)
			}
		}
	})
}

func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"model_name":"m","token_ids":[1, 2,3],"workers":["a",7],"tenant_id":"t"}`))
	f.Add([]byte(`{"model":"m","keys":[-1,18446744073709551615],"block_size":16}`))
	f.Add([]byte(`{"instance_id":7,"model_name":"m","endpoint":"tcp://h:1","dp_rank":3,"sources":[{"dp_rank":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		q := question{}
		if q.readQuery(b) == nil {
			_ = q.check()
		}
		if r, err := readRegistration(b); err == nil && r.check() == nil {
			_, _ = r.facts(nil)
		}
		_, _ = readRemoval(b)
	})
}
