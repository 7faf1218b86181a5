package inprocess

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// Tables that all texts need are built when a model is loaded, so that no request waits for them. They are built once
// in a process, so the test needs a separate process.
func TestTheFirstPromptBuildsNoTables(t *testing.T) {
	if os.Getenv("WARMPATH_FIRST_PROMPT") == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "WARMPATH_FIRST_PROMPT=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "bytes for the first prompt") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	fsys := files()
	fsys["tokenizer.json"].Data = bytes.Replace(fsys["tokenizer.json"].Data, []byte(`"normalizer":null`),
		[]byte(`"normalizer":{"type":"NFC"}`), 1)
	m := load(t, fsys)
	for i, word := range []string{"plain", "é数 e\u0301 ﬁ"} {
		text := strings.Repeat(word+" 12 ", 100)
		body := read(t, api.OpenAIChat, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s"}]}`, text))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := m.Tokens(nil, body, tokens.VLLM); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		used := after.TotalAlloc - before.TotalAlloc
		t.Logf("%d: %d bytes for the first prompt of its kind", i, used)
		if used > 256<<10 {
			t.Errorf("%q: %d bytes are allocated for the first prompt", word, used)
		}
	}
}
