package kvevent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
)

// brief returns a line for each event of a batch.
func brief(b *Batch) string {
	var s strings.Builder
	for i := range b.Events {
		e := &b.Events[i]
		fmt.Fprintf(&s, "%s %s %d", e.Kind, e.Tier, e.Hashes)
		if e.HasParent {
			fmt.Fprintf(&s, " after %d", e.Parent)
		}
		if len(e.Tokens) > 0 {
			fmt.Fprintf(&s, " tokens %d by %d", e.Tokens, e.BlockSize)
		}
		if e.Unread != 0 {
			fmt.Fprintf(&s, " unread %06b", e.Unread)
		}
		s.WriteByte('\n')
	}
	return s.String()
}

func TestPolledEventsOfTheVectorsDecode(t *testing.T) {
	for _, v := range readVectors(t).Polled {
		var b Batch
		if err := DecodeTRTLLM(v.JSON, &b); err != nil {
			t.Fatal(err)
		}
		const want = `stored gpu [17209083471329120113] tokens [1 2] by 2 unread 001000
removed gpu [17209083471329120113]
removed cpu [17209083471329120113]
stored cpu [17209083471329120113]
removed gpu [17209083471329120113]
`
		if diff := cmp.Diff(want, brief(&b)); diff != "" || b.Skipped > 0 || !b.HasRank {
			t.Errorf("%s: skipped %d (%s), (-want +got):\n%s", v.ID, b.Skipped, b.Problem, diff)
		}
	}
}

// polledStored returns a stored event; a block is "hash:token,token,…".
func polledStored(id int, parent string, window, level int, blocks ...string) string {
	var list []string
	for _, text := range blocks {
		hash, tokens, _ := strings.Cut(text, ":")
		var ids []string
		for _, t := range strings.Split(tokens, ",") {
			ids = append(ids, fmt.Sprintf(`{"type":"unique_token","token_id":%s,"token_extra_id":0}`, t))
		}
		list = append(list, fmt.Sprintf(`{"type":"stored_block","block_hash":%s,"tokens":[%s],"cache_level":%d,"priority":35}`,
			hash, strings.Join(ids, ","), level))
	}
	return fmt.Sprintf(`{"event_id":%d,"data":{"type":"stored","parent_hash":%s,"blocks":[%s]},"window_size":%d}`,
		id, parent, strings.Join(list, ","), window)
}

func TestPolledEventsFollowTheirNumbersWindowsAndSizes(t *testing.T) {
	var d TRTLLM
	var b Batch
	steps := []struct{ does, json, want string }{
		{"chains become one event, partial blocks are passed over",
			"[" + polledStored(0, "null", 4096, 0, "1:10,11,12,13", "2:14,15,16,17", "3:18") + "]",
			"stored gpu [1 2] tokens [10 11 12 13 14 15 16 17] by 4\n"},
		{"a smaller window proves nothing, though its number counts",
			"[" + polledStored(1, "null", 512, 0, "9:1,2,3,4") + "," + polledStored(2, "2", 4096, 0, "4:20,21,22,23") + "]",
			"stored gpu [4] after 2 tokens [20 21 22 23] by 4\n"},
		{"the host's blocks are on their tier",
			"[" + polledStored(3, "4", 4096, 1, "5:1,2,3,4") + "]",
			"stored cpu [5] after 4 tokens [1 2 3 4] by 4\n"},
		{"a number that is missing forgets",
			`[{"event_id":5,"data":{"type":"removed","block_hashes":[5]},"window_size":4096}]`,
			"cleared gpu []\ncleared cpu []\ncleared disk []\nremoved gpu [5]\nremoved cpu [5]\n"},
		{"numbers that begin anew forget",
			"[" + polledStored(0, "null", 4096, 0, "6:1,2,3,4") + "]",
			"cleared gpu []\ncleared cpu []\ncleared disk []\nstored gpu [6] tokens [1 2 3 4] by 4\n"},
		{"another rank's events are not ours",
			`[{"event_id":9,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[6]},"window_size":4096}]`, ""},
		{"a poll may bring nothing", "[]", ""},
	}
	for _, s := range steps {
		if err := d.Decode([]byte(s.json), &b); err != nil {
			t.Fatalf("%s: %v", s.does, err)
		}
		if diff := cmp.Diff(s.want, brief(&b)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.does, diff)
		}
	}
	if d.Gaps != 1 || d.Restarts != 1 {
		t.Errorf("%d gaps and %d restarts, want one each", d.Gaps, d.Restarts)
	}
}

func TestPolledEventsThatAreNotUsableAreSkipped(t *testing.T) {
	cases := []struct {
		json       string
		tag        string
		incomplete bool
	}{
		{`[7]`, "untagged", false},
		{`[{"event_id":0}]`, "untagged", false},
		{`[{"event_id":0,"data":{}}]`, "untagged", false},
		{`[{"event_id":0,"data":{"type":"mo\u0001ved"}}]`, `mo?u0001ved`, false},
		{`[{"event_id":0,"data":{"type":"stored","parent_hash":null}}]`, "stored", false},
		{`[{"event_id":0,"data":{"type":"stored","parent_hash":"x","blocks":[]}}]`, "stored", false},
		{`[{"event_id":0,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":1.5,"tokens":[]}]}}]`, "stored",
			false},
		{`[{"event_id":0,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":1,"tokens":[{"token_id":-1}]}]}}]`, "stored", false},
		{`[{"event_id":0,"data":{"type":"removed","block_hashes":["a"]}}]`, "removed", true},
		{`[{"event_id":0,"data":{"type":"updated","block_hash":1,"cache_level":{"new_value":1}}}]`, "updated", true},
	}
	for _, c := range cases {
		var b Batch
		if err := DecodeTRTLLM([]byte(c.json), &b); err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		want := []TagCount{{Tag: c.tag, Count: 1}}
		if diff := cmp.Diff(want, b.SkippedTags); diff != "" || len(b.Events) > 0 || b.Incomplete != c.incomplete {
			t.Errorf("%s: %d events, incomplete %v (-want +got):\n%s", c.json, len(b.Events), b.Incomplete, diff)
		}
	}
}

func TestPolledTextThatIsNoJSONIsRejected(t *testing.T) {
	deep := "[" + strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1) + "]"
	for _, s := range []string{"", "{}", "[", "[1,]", "[1 2]", `[{"a" 1}]`, `[{"a":1]`, `["a`, `["\`, "[]x", "[nul]",
		deep, "[{\"a\":\x01}]", "[\"\x01\"]", "7"} {
		var b Batch
		if err := DecodeTRTLLM([]byte(s), &b); err == nil {
			t.Errorf("%.40q was accepted", s)
		}
	}
}

func TestPollingAllocatesNothingInSteadyState(t *testing.T) {
	var d TRTLLM
	var b Batch
	text := []byte("[" + polledStored(0, "null", 4096, 0, "1:10,11,12,13", "2:14,15,16,17") + "]")
	poll := func() {
		d.seq.Reset()
		if err := d.Decode(text, &b); err != nil || len(b.Events) != 1 {
			t.Fatal(err, b.Events)
		}
	}
	poll()
	if n := testing.AllocsPerRun(100, poll); n > 0 {
		t.Errorf("%v allocations a poll, want none", n)
	}
}

func FuzzDecodeTRTLLM(f *testing.F) {
	f.Add([]byte("[" + polledStored(0, "null", 4096, 0, "1:10,11,12,13", "2:14") + "]"))
	f.Add([]byte(`[{"event_id":3,"data":{"type":"updated","block_hash":1,"cache_level":{"new_value":1,"old_value":0}}}]`))
	f.Add([]byte(`[{"event_id":18446744073709551615,"data":{"type":"removed","block_hashes":[-9223372036854775808]}}]`))
	var d TRTLLM
	var b Batch
	f.Fuzz(func(t *testing.T, text []byte) {
		err := d.Decode(text, &b)
		checkBounds(t, &b, len(text), err)
		for i := range b.Events {
			if e := &b.Events[i]; e.Tier > block.TierDisk {
				t.Errorf("event %d on tier %v", i, e.Tier)
			}
		}
	})
}
