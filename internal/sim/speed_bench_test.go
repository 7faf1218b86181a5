package sim

import (
	"context"
	"testing"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/test/testenv"
)

// BenchmarkConversation plays the Mooncake conversation trace on 8 workers. Simulated blocks have 512 tokens, as in the
// trace, or 64 tokens. The goal with 512 tokens is half a second of CPU time. cpu-ms/op is the user and system time of
// the process. Other work on the machine disturbs cpu-ms/op less than the elapsed time.
func BenchmarkConversation(b *testing.B) {
	w, err := workload.Load("mooncake:"+testenv.Path(b, "traces/mooncake_conversation.jsonl.gz"), workload.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"marginal", "kv_aware", "random"} {
		spec, err := ParsePolicy(name)
		if err != nil {
			b.Fatal(err)
		}
		for _, size := range []int{512, 64} {
			b.Run(name+"/"+map[int]string{512: "512", 64: "64"}[size], func(b *testing.B) {
				b.ReportAllocs()
				before := testenv.CPUTime(b)
				for b.Loop() {
					cfg := Config{Workload: w, Policy: spec, Groups: []Group{{Count: 8, Profile: engine.Profiles()[0], BlockSize: size, KVTokens: 1_500_000}}}
					if _, err := Run(context.Background(), cfg, nil); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((testenv.CPUTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
			})
		}
	}
}
