package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/gateway"
)

// A conversation goes to the worker to which its beginning was sent. The gateway asks no engine for token ids.
func TestPoliciesOnTextGetTheText(t *testing.T) {
	for _, policy := range []string{"cache_aware", "prefix_cache_affinity"} {
		t.Run(policy, func(t *testing.T) {
			f := serve(t, func(s *settings) { s.policy, s.tokens.Budget = policy, 5*time.Second },
				worker(t, plain), worker(t, plain), worker(t, plain), worker(t, plain))
			ask := func(conversation, turns int) string {
				var messages []string
				for turn := range turns {
					messages = append(messages, fmt.Sprintf(`{"role":"user","content":"%s"}`, strings.Repeat(fmt.Sprintf("%d, %d. ", conversation, turn), 40)))
				}
				body := `{"model":"m","messages":[` + strings.Join(messages, ",") + `]}`
				resp, text := f.post(t, body)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%d %s", resp.StatusCode, text)
				}
				f.idle(t)
				e, err := f.Explain(t.Context(), &gateway.Question{Dialect: api.OpenAIChat, Body: []byte(body)})
				if err != nil || e[0].Record.Worker.URL != resp.Header.Get("X-Warmpath-Worker") {
					t.Fatalf("explained as %+v, %v; it went to %s", e, err, resp.Header.Get("X-Warmpath-Worker"))
				}
				return resp.Header.Get("X-Warmpath-Worker")
			}
			home := map[int]string{}
			for turns := 1; turns <= 4; turns++ {
				for conversation := range 8 {
					w := ask(conversation, turns)
					if turns > 1 && w != home[conversation] {
						t.Errorf("conversation %d went to %s, and to %s before", conversation, w, home[conversation])
					}
					home[conversation] = w
				}
			}
			if record := f.last(t, 1); record.TokenSource != "unneeded" {
				t.Errorf("tokens were asked for: %s", record.TokenSource)
			}
		})
	}
}
