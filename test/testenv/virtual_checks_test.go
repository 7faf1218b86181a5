package testenv_test

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
)

// A calm is a step that ends all faults. The router notices a dropped message only when the next message comes, so each
// request in a calm must cause an event message. For this, each prompt must have a block that no other prompt has.
func TestACalmPromptHasABlockOfItsOwn(t *testing.T) {
	w := &world{prompts: map[string][]uint32{}}
	for _, size := range []int{16, 32, 64} {
		for seed := range uint64(2000) {
			seed *= 2503 // also makes large seeds, because the upper bits of a seed set how much of a prompt is shared
			_, ids := w.prompt(seed, 2*size)
			family, shared := rand.New(rand.NewPCG(seed%7, 1)), 0
			for shared < len(ids) && ids[shared] == 1000+family.Uint32N(50000) {
				shared++
			}
			if shared >= len(ids)/size*size {
				t.Fatalf("seed %d: %d of the %d tokens are the family's: all blocks of %d", seed, shared, len(ids), size)
			}
		}
	}
}

// In this history a worker's process ends, its address refuses connections, and then a server without metrics answers
// there. So the router drops the metrics of the ended process. When a new process with metrics begins at the address,
// the router cannot see that the process is new. So the checks must not expect this: engine.restartVisible must be
// false.
func TestARestartBehindAServerWithoutMetricsIsNotVisible(t *testing.T) {
	one := engineSetup{Kind: mockengine.VLLM, Ranks: 1, BlockSize: 16, Blocks: 40, BufferSteps: 20, NoEvents: true, Speed: 5, Model: "mock", MaxSequences: 64}
	why := run(t, history{
		Setup: setup{
			Seed: 1, Engines: []engineSetup{one}, Policy: "vllm_cache_aware", Queue: "off", IndexBytes: 1 << 20, Attempts: 2,
			RequestTimeout: 20 * time.Second, DrainTimeout: 2 * time.Second, Reports: time.Second, Tokens: 50 * time.Millisecond,
		},
		Steps: []step{
			{Do: "calm"},
			{Do: "die"},
			{Do: "sleep", For: 7 * time.Second},
			{Do: "lie", How: "429"},
			{Do: "sleep", For: 30 * time.Second},
			{Do: "ask", N: 3, How: "ids", Seed: 480516, For: 5 * time.Second},
		},
	}, io.Discard)
	if why != "" {
		t.Error(why)
	}
}
