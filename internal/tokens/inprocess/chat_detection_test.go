package inprocess

import (
	"bufio"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// detected reads the output of testdata/detection.py: for each template, the content format that the engine detects and
// the template's variables.
func detected(t *testing.T, engine string) map[string][]string {
	t.Helper()
	f, err := os.Open("testdata/detected_" + engine + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.SplitN(s.Text(), " ", 3)
		out[fields[0]] = fields[1:]
	}
	return out
}

func TestTheContentFormatIsTheOneThatEnginesDetect(t *testing.T) {
	t.Run("examples", func(t *testing.T) { compareDetected(t, testenv.SampleTemplates(t)) })
	t.Run("collected", func(t *testing.T) { compareDetected(t, testenv.CollectedTemplates(t)) })
}

func compareDetected(t *testing.T, templates []testenv.Template) {
	for name, engine := range map[string]templateEngine{"vllm": engineVLLM, "sglang": engineSGLang} {
		want := detected(t, name)
		names := map[string]bool{} // the variables of all templates
		for _, w := range want {
			for _, n := range strings.Split(w[1], ",") {
				names[n] = true
			}
		}
		checked := 0
		for _, g := range templates {
			w, known := want[g.SHA256[:16]]
			tmpl, err := parseTemplate(g.Template)
			if !known || err != nil { // the engines differ in what they do with a template that does not parse
				continue
			}
			checked++
			if got := tmpl.ContentFormat(engine).String(); got != w[0] {
				t.Errorf("%s: %s detects %s, here it is %s", g.Name, name, w[0], got)
			}
			if name != "vllm" || w[1] == "!" {
				continue
			}
			var used []string
			for _, n := range slices.Sorted(maps.Keys(names)) {
				if tmpl.compiled.Uses(n) {
					used = append(used, n)
				}
			}
			if got := strings.Join(used, ","); got != w[1] {
				t.Errorf("%s: variables %s, vLLM finds %s", g.Name, got, w[1])
			}
		}
		t.Logf("%s: %d templates", name, checked)
	}
}
