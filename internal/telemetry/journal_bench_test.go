package telemetry

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// BenchmarkJournalLine is the processor time of the goroutine that writes a log, for one line: of the access log, and
// of the decision log with 8 candidates and a prompt of 4,096 tokens.
func BenchmarkJournalLine(b *testing.B) {
	n := 4096
	decided := &Decided{Record: Record{ID: 1, Time: time.Now(), RequestID: "1830bbfce1bab5f44ab2a7aae02d1283", Dialect: "openai_chat", Model: "m", Policy: "marginal",
		Branch: "affinity", Reason: "the lowest predicted cost", Worker: "http://gpu-1:8000", Trust: "exact", TokenSource: "local", PromptTokens: n, ReportedTokens: &n, OutputTokens: &n,
		Status: 200, Finish: "success", TotalMS: 812.25, FirstTokenMS: 120.5}, Choice: &Choice{At: 1795917518432233340, Arrived: 1795917518432233340, Random: 8437120166657513735,
		Base: "m", Prompt: n, Known: true, BlockSize: 16, Keys: EncodeKeys(make([]block.Key, 256)), Terms: []string{"wait", "memory", "prefill", "tail", "decode", "others", "evict", "risk"}}}
	for range 8 {
		decided.Choice.Candidates = append(decided.Choice.Candidates, Candidate{Worker: "http://gpu-1:8000", Hash: 3589286157719618640, Trust: "exact", BlockSize: 16, Match: 1024, Predicted: 1024,
			Load:  LoadOf(&fleet.Load{Requests: 3, PrefillTokens: 1000, PendingTokens: 812, Backlog: 41 * time.Millisecond, ContextBlocks: 900, ContextTokens: 12000, Processed: 9, Turns: 9000, Room: 1, Timing: fleet.DefaultTiming}),
			Score: -5193.47895984375, Terms: []float64{12, 0, 65.546204375, 0, 5064, 0, 51.93275546875, 0}})
	}
	access := &Access{Time: time.Now(), Client: "10.0.0.1", Method: "POST", Path: "/v1/chat/completions", Protocol: "HTTP/1.1"}
	access.Take(&decided.Record)
	for name, value := range map[string]any{"access": access, "decision": decided} {
		b.Run(name, func(b *testing.B) {
			j := New(DefaultConfig()).NewJournal(name, JournalConfig{File: "unused", Sample: 1}, slog.New(slog.DiscardHandler))
			j.out = io.Discard
			lines := batch{text: bytes.Buffer{}}
			lines.encoder = json.NewEncoder(&lines.text)
			b.ReportAllocs()
			for b.Loop() {
				j.Add(value, 1000)
				j.put(&lines, <-j.lines)
			}
		})
	}
}
