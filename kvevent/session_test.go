package kvevent

import (
	"strings"
	"testing"
)

func TestASessionThatIsNoStringDoesNotMakeTheEventUnusable(t *testing.T) {
	for name, session := range map[string]any{
		"none": nil, "a string": "s", "a long string": strings.Repeat("x", 1<<20), "a number": 7,
		"a list": list(1, list("x")), "an object": object{"a", 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decoder{KeepRaw: true}
			var b Batch
			if err := d.Decode(pack(list(1.5, list(storedWith(nil, nil, "session_id", session), list(tagRemoved, list(5))), 0)),
				&b); err != nil {
				t.Fatal(err)
			}
			if len(b.Events) != 2 || b.Skipped != 0 || b.Problem != "" || b.Incomplete {
				t.Fatalf("%d events, %d skipped, problem %q", len(b.Events), b.Skipped, b.Problem)
			}
			if want, _ := session.(string); b.Events[0].Session != want {
				t.Errorf("session %.20q, want %.20q", b.Events[0].Session, want)
			}
		})
	}
}
