package discovery

import (
	"context"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// mock runs a mock engine until it is stopped, at the latest at the test's end.
func mock(t *testing.T, c mockengine.Config) (s *mockengine.Server, stop func()) {
	t.Helper()
	s, err := mockengine.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // stop waits
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	<-s.Ready()
	return s, stop
}

func TestMockEnginesAreFoundAsRealOnes(t *testing.T) {
	for _, test := range []struct {
		kind   mockengine.Kind
		engine fleet.Engine
	}{{mockengine.VLLM, fleet.EngineVLLM}, {mockengine.SGLang, fleet.EngineSGLang}} {
		t.Run(string(test.kind), func(t *testing.T) {
			c := mockengine.DefaultConfig()
			c.Kind, c.Ranks, c.LoRA = test.kind, 2, []string{"sql"}
			c.Wire = map[mockengine.Kind]string{mockengine.VLLM: "vllm-0.32.0", mockengine.SGLang: "sglang-0.5.23"}[test.kind]
			s, stop := mock(t, c)
			r := probeOf(t, Target{URL: s.URL()})
			stop()
			f := r.Facts
			if f.Engine != test.engine || f.Version == "" || f.BlockSize != c.BlockSize || f.Ranks != 2 || len(f.Events) != 2 || !f.CanTokenize || len(f.Models) != 2 || f.Models[1].Parent == "" {
				t.Errorf("facts %+v\nnotes %q", f, r.Notes)
			}
			for _, e := range f.Events {
				if e.Endpoint == "" || e.Replay == "" {
					t.Errorf("event source %+v", e)
				}
			}
			if f.BlocksPerRank < c.Blocks-1 || f.BlocksPerRank > c.Blocks {
				t.Errorf("%d blocks a rank, want %d", f.BlocksPerRank, c.Blocks)
			}
			if r.Guessed {
				t.Error("guessed")
			}
		})
	}
}
