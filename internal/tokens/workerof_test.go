package tokens

import (
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

func TestAWorkerOfTheFleetAsAnEngineToAsk(t *testing.T) {
	models := []fleet.Model{{ID: "m", Root: "org/m", MaxModelLen: 4096}, {ID: "adapter", Root: "lora", Parent: "m"}}
	for engine, want := range map[fleet.Engine]Worker{
		fleet.EngineVLLM:   {ID: 7, URL: "http://w", Version: "0.32.1", Root: "org/m", MaxModelLen: 4096},
		fleet.EngineSGLang: {ID: 7, URL: "http://w", Kind: SGLang, Root: "org/m", MaxModelLen: 4096},
		fleet.EngineTRTLLM: {ID: 7, URL: "http://w", Root: "org/m", MaxModelLen: 4096}, // its version must not pass for one of vLLM
	} {
		w := &fleet.Worker{ID: 7, URL: "http://w", Facts: fleet.Facts{Engine: engine, Version: "0.32.1", Models: models}}
		if got := WorkerOf(w, "m"); got != want {
			t.Errorf("%v: %+v, want %+v", engine, got, want)
		}
	}
}
