package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestAWorkersErrorDoesNotShowTheClientsKey(t *testing.T) {
	const key = "sk-very-secret-0123456789=="
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "wrong "+r.Header.Get("Authorization")+" and "+strings.TrimPrefix(r.Header.Get("Cookie"), "session=")+
			strings.Repeat("x", 170)+r.Header.Get("Authorization")) // the gateway's quote of the answer ends inside this key
	}))
	resp, _ := f.post(t, chat, "Authorization", "Bearer "+key, "Cookie", "session=cookie-secret")
	rec := f.last(t, 1)
	record, err := json.Marshal(rec)
	if err != nil || resp.StatusCode < 500 || !strings.Contains(string(record), "[redacted]") || strings.Contains(string(record), "secret") || strings.Contains(string(record), "sk-very") {
		t.Errorf("%d, %v: %s", resp.StatusCode, err, record)
	}
}

// A worker may repeat a header or the query of the request anywhere in its answer: whole, cut or escaped.
func TestAWorkersErrorShowsNoValueOfTheClientsHeader(t *testing.T) {
	const secret = `zebraquartz0"violinmaker/9&harbourlight`
	quoted, _ := json.Marshal(secret)
	forms := map[string]string{
		"as it is": secret, "in JSON": string(quoted), "in Go": strconv.Quote(secret), "in a URL": url.QueryEscape(secret), "cut": secret[:20],
		"where the quote ends": strings.Repeat("x", 240) + secret, "where a short quote ends": strings.Repeat("x", 50) + secret,
		"in a sentence": "the key (" + secret + ") is wrong", "before more": secret + strings.Repeat(" and more", 100),
	}
	document := func(format, text string) string {
		inner, _ := json.Marshal(text)
		return fmt.Sprintf(format, inner)
	}
	answers := map[string]func(http.ResponseWriter, string){
		"400": func(w http.ResponseWriter, s string) { w.WriteHeader(400); _, _ = io.WriteString(w, s) },
		"500": func(w http.ResponseWriter, s string) { w.WriteHeader(500); _, _ = io.WriteString(w, s) },
		"429": func(w http.ResponseWriter, s string) { w.WriteHeader(429); _, _ = io.WriteString(w, s) },
		"200": func(w http.ResponseWriter, s string) { _, _ = io.WriteString(w, s) },
		"an error with 200": func(w http.ResponseWriter, s string) {
			_, _ = io.WriteString(w, document(`{"error":{"message":%s,"code":500}}`, s))
		},
		"another model": func(w http.ResponseWriter, s string) {
			_, _ = io.WriteString(w, document(strings.Replace(whole, "{", `{"model":%s,`, 1), s))
		},
		"an event that is an error": func(w http.ResponseWriter, s string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, firstChunk+document(`data: {"error":{"message":%s,"code":500}}`+"\n\n", s))
		},
	}
	for kind, answer := range answers {
		t.Run(kind, func(t *testing.T) {
			var log testenv.Buffer
			var form atomic.Pointer[string]
			say := func(w http.ResponseWriter, _ *http.Request) { answer(w, *form.Load()) }
			f := serve(t, func(s *settings) {
				s.policy = "round_robin"
				s.parts = func(p *gateway.Parts) {
					p.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
				}
			}, worker(t, say), worker(t, say))
			for _, text := range forms {
				form.Store(&text)
				for _, header := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "X-Tenant-Key", "X-Auth-Token", "X-Custom",
					"X-Amz-Security-Token", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "Cf-Access-Client-Secret", "X-Session-Id", "Referer", "User-Agent"} {
					body := chat
					if strings.HasPrefix(kind, "an event") {
						body = chatStreamed
					}
					f.post(t, body, header, "Token "+secret)
				}
			}
			_ = f.stop() // after the stop, every request is recorded
			records, err := json.Marshal(f.Telemetry.Last(0))
			if err != nil {
				t.Fatal(err)
			}
			printed := string(records) + log.String() + f.metrics(t)
			for _, word := range []string{"zebraqua", "violinma", "harbourl"} {
				if i := strings.Index(printed, word); i >= 0 {
					t.Errorf("…%s…", printed[max(0, i-200):min(len(printed), i+50)])
				}
			}
			// The errors of the three kinds in this condition need not quote the worker's text, so [redacted] may be absent.
			if kind != "400" && kind != "429" && kind != "another model" && !strings.Contains(printed, "[redacted]") {
				t.Errorf("nothing is told of the answer: %.500s", printed)
			}
		})
	}
}
