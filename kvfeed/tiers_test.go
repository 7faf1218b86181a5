package kvfeed

import (
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// TestBlocksCountOnTheirBestTierWhereTheEngineLoadsThemSo: two blocks in the middle of a prompt are in host memory
// only. TensorRT-LLM copies these two blocks back, and then also uses the blocks after them in the accelerator's
// memory. vLLM and SGLang use the accelerator's blocks at the prompt's beginning, and after them only blocks in host
// memory.
func TestBlocksCountOnTheirBestTierWhereTheEngineLoadsThemSo(t *testing.T) {
	for engine, want := range map[fleet.Engine]int{fleet.EngineTRTLLM: 160, fleet.EngineVLLM: 80, fleet.EngineSGLang: 80} {
		t.Run(engine.String(), func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(engine, 16))
			host := stored(1, 48, 32, 16)
			host.Medium = "CPU"
			s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 160, 16), host, removed(1, 3, 2))))
			if got := r.match(prompt(1, 200)); got != want {
				t.Errorf("match %d, want %d", got, want)
			}
		})
	}
}
