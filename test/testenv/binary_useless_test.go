package testenv_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/internal/mockengine"
)

// TestAUselessWorkerFailsNoRequest runs two slow mock engines and a third worker. The third worker looks healthy, but
// it immediately gives a useless answer to every completion.
func TestAUselessWorkerFailsNoRequest(t *testing.T) {
	answers := map[string]func(w http.ResponseWriter){
		"429": func(w http.ResponseWriter) {
			http.Error(w, `{"error":{"message":"slow down"}}`, http.StatusTooManyRequests)
		},
		"401": func(w http.ResponseWriter) {
			http.Error(w, `{"error":{"message":"who are you"}}`, http.StatusUnauthorized)
		},
		"404": func(w http.ResponseWriter) {
			http.Error(w, `{"error":{"message":"no such model"}}`, http.StatusNotFound)
		},
		"HTML": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		},
		"nothing": func(http.ResponseWriter) {},
		"only [DONE]": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			ill := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/v1/chat/completions":
					_, _ = io.Copy(io.Discard, r.Body)
					asked.Add(1)
					answer(w)
				case "/v1/models":
					_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"mock"}]}`)
				case "/health":
				default:
					http.NotFound(w, r)
				}
			}))
			defer ill.Close()
			slow := func(c *mockengine.Config) { c.Speed = 20; c.OutputTokens = 16 }
			f := serve(t, []*mockengine.Server{mock(t, slow), mock(t, slow)}, "--worker", ill.URL)
			const requests = 300
			var next, failed atomic.Int64
			var clients sync.WaitGroup
			for range 16 {
				clients.Go(func() {
					for i := next.Add(1); i <= requests; i = next.Add(1) {
						stream := i%2 == 0
						body := fmt.Sprintf(`{"model":"mock","stream":%t,"max_tokens":8,"messages":[{"role":"user","content":"question %d"}]}`, stream, i)
						req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, f.URL+"/v1/chat/completions", strings.NewReader(body))
						if err != nil {
							t.Error(err)
							return
						}
						resp, err := http.DefaultClient.Do(req)
						if err != nil {
							t.Error(err)
							continue
						}
						text, err := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						if err != nil || resp.StatusCode != 200 || !strings.Contains(string(text), `"finish_reason":"`) {
							if failed.Add(1) <= 3 {
								t.Errorf("%v %d %s", err, resp.StatusCode, text)
							}
						}
					}
				})
			}
			clients.Wait()
			t.Logf("%d of %d requests failed; the useless worker was asked %d times", failed.Load(), requests, asked.Load())
			if asked.Load() == 0 {
				t.Error("the useless worker was never asked")
			}
		})
	}
}
