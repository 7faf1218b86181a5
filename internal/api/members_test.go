package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Read remembers the members of a body's JSON object. If there are too many members to remember, Members reads the body
// again. Both ways must return the same members, because the key of a remembered prompt is made from the members.
func TestMembersAreTheSameWhetherRememberedOrReadAgain(t *testing.T) {
	many := strings.Repeat(`"x": [1, {"y":"\""}] ,`, 70)
	var r Request // one Request for all bodies: nothing of an earlier body may remain
	for _, body := range []string{
		"{}",
		" \n{ } ",
		`{"model":"m","messages":[{"role":"user","content":"a \"b\" c"}]}`,
		"\t{ \"mod\\u0065l\" : null ,\r\n\"n\" :1 , \"temperature\": 1.5e0,\"stop\" :[ \"}\" , 2 ] }",
		`{"seed":-7,"x":true,"y":{"a":{"b":[]}},"input_ids":[1,2,3],"stream":false}`,
		"{" + many[:63*22-1] + "}",
		"{" + many[:64*22-1] + "}",
		"{" + many[:65*22-1] + "}",
	} {
		if err := Read(OpenAIChat, []byte(body), &r); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		var want, got []string
		for name, value := range jsonscan.Members(r.Body()) {
			want = append(want, string(name), string(value))
		}
		for name, value := range r.Members {
			got = append(got, string(name), string(value))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", body, diff)
		}
	}
}
