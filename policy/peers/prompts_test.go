package peers

import (
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// A worker may report another model name at each probe, and a client may send one request to each name.
func TestModelsWhosePromptsAreEvictedTakeNoMemory(t *testing.T) {
	const limit = 1 << 16
	p := newPrompts(false, placement.Config{Bytes: limit}, 4)
	q := policy.Query{Model: "used", Prompt: policy.Prompt{Text: []byte("a prompt that is sent often")}}
	other := policy.Query{Prompt: policy.Prompt{Text: []byte("a prompt that is sent once to each model")}}
	for i := range 20_000 {
		q.Now++
		other.Now, other.Model = q.Now, fmt.Sprint("model ", i)
		p.sent(&q, 1)
		p.sent(&other, 2)
		if n := p.text.Stats().Bytes + p.tokens.Stats().Bytes; n > 4*limit {
			t.Fatalf("after %d models the stores take %d bytes", i+1, n)
		}
	}
	m := p.match(&q)
	defer p.done(m)
	if m.Of(1) != len(q.Prompt.Text) {
		t.Errorf("%d characters of the prompt that is sent often match", m.Of(1))
	}
}
