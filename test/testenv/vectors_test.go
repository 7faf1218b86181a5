package testenv_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// TestVectorsAreMadeAgain runs the programs that make engine_vectors.json.gz with the code of the installed engines.
// Each program fails if a vector differs from the one in the file. This takes some minutes, so the test runs only if
// WARMPATH_INTEROP is set, as `make interop` does. TestTheEnginesStillMakeTheseHashes checks the other vectors.
func TestVectorsAreMadeAgain(t *testing.T) {
	if os.Getenv("WARMPATH_INTEROP") == "" {
		testenv.Missing(t, "the code of vLLM and SGLang", "make test-engines interop")
	}
	for _, run := range []struct{ engine, program, argument string }{
		{"sglang", "make_keys.py", ""}, // SGLang's environment has the packages cbor2 and xxhash
		{"vllm", "make_payloads.py", "vllm"},
		{"sglang", "make_payloads.py", "sglang"},
		{"vllm", "make_frames.py", "vllm"},
		{"sglang", "make_frames.py", "sglang"},
		{"vllm", "make_pools.py", ""},
	} {
		t.Run(run.program+" "+run.engine, func(t *testing.T) {
			python := testenv.Installed(t, "engines/"+run.engine+"/venv/bin/python", "make test-engines")
			cmd := exec.Command(python, testenv.Path(t, "vectors/"+run.program))
			if run.argument != "" {
				cmd.Args = append(cmd.Args, run.argument)
			}
			cmd.Env = append(os.Environ(), "VLLM_TARGET_DEVICE=cpu", "CUDA_VISIBLE_DEVICES=", "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), " vectors made, 0 differ") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
