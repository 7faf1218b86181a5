package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// A reload parses the file in a router that serves requests, so a panic must not end the process.
func TestAPanicOfTheParserIsAnErrorThatNamesTheFile(t *testing.T) {
	message := errorOf(t, "%TAG !! x\n---\na: !!b\n")
	if !strings.Contains(message, "f.yaml: the YAML parser cannot read this file: leave out directives") || strings.Contains(message, "nil pointer") {
		t.Errorf("%q", message)
	}
}

func TestAMergeKeyThatMergesItselfIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"<<: &a [*a]\n":            "a merge key (<<) merges a list that contains itself",
		"<<: &a [[[*a]]]\n":        "a merge key (<<) merges a list that contains itself",
		"<<: &a {<<: *a}\n":        "a merge key (<<) merges these keys with themselves",
		"<<: &a [{<<: [*a]}, 1]\n": "a merge key (<<) merges a list that contains itself",
	} {
		if message := errorOf(t, text); !strings.Contains(message, want) {
			t.Errorf("%q: %q, want %q in it", text, message, want)
		}
	}
}

func TestASecondDocumentIsRefusedAtItsPlace(t *testing.T) {
	const problem = "the file holds several documents, keep one: the second one begins here"
	for text, want := range map[string]string{
		"listen: :1\n---\nlisten: :2\n":                           "f.yaml:3:1: " + problem,
		"---\nlisten: :1\n---\n# a comment\n\nadmin:\n  key: a\n": "f.yaml:6:1: " + problem,
		"listen: :1\n--- {listen: :2}\n":                          "f.yaml:2:5: " + problem,
		"listen: :1\n---\n---\nlisten: :2\n":                      "f.yaml:4:1: " + problem,
		"%YAML 1.2\n---\nlisten: :1\n...\nlisten: :2\n":           "f.yaml:5:1: " + problem,
		"listen: :1\n---\n- a\n":                                  "f.yaml:3:1: " + problem,
		"listen: :1\n---\n&a a\n":                                 "f.yaml:3:1: " + problem,
		"a\n---\nb\n---\nc\n":                                     "f.yaml:3:1: the file holds several documents",
	} {
		if message := errorOf(t, text); !strings.Contains(message, want) {
			t.Errorf("%q: %q, want %q in it", text, message, want)
		}
	}
	for _, text := range []string{"---\nlisten: :1\n", "listen: :1\n---\n", "listen: :1\n...\n", "# a\n---\nlisten: :1\n---\n# b\n"} {
		if message := errorOf(t, text); strings.Contains(message, "documents") {
			t.Errorf("%q: %q", text, message)
		}
	}
}

func TestDeepFilesAreRefusedBeforeTheyCostMemory(t *testing.T) {
	const deep = 50_000
	var indented strings.Builder
	for i := range 1000 {
		indented.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	for name, text := range map[string]string{
		"lists":             strings.Repeat("[", deep),
		"mappings":          strings.Repeat("{a: ", deep),
		"both":              strings.Repeat("[{a: ", deep),
		"closed":            "a: " + strings.Repeat("[", deep) + strings.Repeat("]", deep),
		"dashes":            strings.Repeat("- ", deep) + "a",
		"question marks":    strings.Repeat("? ", deep) + "a",
		"indented":          indented.String(),
		"after a closed ]":  "a: []]\nb: " + strings.Repeat("[", deep),
		"101 brackets":      strings.Repeat("[", maxBrackets+1),
		"behind a quote":    "a: \"[\n\"\nb: " + strings.Repeat("[", deep),
		"keys of mappings":  strings.Repeat("? [", deep),
		"dashes, brackets":  strings.Repeat("- ", 50) + strings.Repeat("[", deep),
		"indented brackets": strings.Repeat(" ", 50) + strings.Repeat("[", deep),
	} {
		if message := errorOf(t, text); !strings.Contains(message, "the values are nested too deep") {
			t.Errorf("%s: %.300q", name, message)
		}
	}
	for name, text := range map[string]string{
		"quoted":       "# " + strings.Repeat("[", deep) + "\nlisten: ':8080' # " + strings.Repeat("{", deep) + "\nadmin: {key: '" + strings.Repeat("[", 200) + "'}\n",
		"unquoted":     "admin: {key_file: a" + strings.Repeat("- ", 200) + "}\n",
		"side by side": "tokens: {a: [" + strings.Repeat("[],", 200) + "]}\n",
	} {
		if message := errorOf(t, text); strings.Contains(message, "nested too deep") {
			t.Errorf("%s: %.300q", name, message)
		}
	}
}

// The position of a policy is known even if many policies come before it. An alias means the last anchor before it.
func TestManyPoliciesAndAliasesKeepTheirPlaces(t *testing.T) {
	var text strings.Builder
	text.WriteString("policies:\n")
	const n = 1500
	for i := range n {
		fmt.Fprintf(&text, "  - {type: random, name: &n p%d}\n", i)
	}
	text.WriteString("  - {type: random, name: *n}\n")
	message := errorOf(t, text.String())
	if want := fmt.Sprintf("f.yaml:%d:", n+2); !strings.Contains(message, want) {
		t.Errorf("%.300q, want %q in it", message, want)
	}
}

// The parser's time grows with the square of the number of such keys: it would take hours for the largest files of this
// kind. A race detector makes the reading some ten times slower, so the files are much smaller than the limit allows.
func TestAFileWithManyKeysWithoutAValueIsRefusedBeforeItTakesTime(t *testing.T) {
	for name, text := range map[string]string{
		"one mapping":        "model_policies: {" + strings.Repeat("a,", 100_000) + "a}",
		"several mappings":   strings.Repeat("k: {"+strings.Repeat("a,", 9_999)+"a}\n", 20),
		"a mapping in lists": "a: [[{" + strings.Repeat("a: [b, {c: d}], e,", 20_000) + "a}]]",
		"single keys":        "a: [" + strings.Repeat("{a},", 20_000) + "{a}]",
		"question marks":     "model_policies:\n" + strings.Repeat("  ? a\n", 50_000),
	} {
		start := testenv.CPUTime(t)
		if message := errorOf(t, text); !strings.Contains(message, "f.yaml:") || !strings.Contains(message, "has more than 10000 keys without a value") {
			t.Errorf("%s: %.300q", name, message)
		}
		if took := testenv.CPUTime(t) - start; took > 10*time.Second {
			t.Errorf("%s took %v of CPU time", name, took)
		}
	}
}

// A large configuration may be written as JSON.
func TestALargeFileInBracketsIsRead(t *testing.T) {
	worker := `{"url": "http://w%d:8000", "model": "m", "labels": {"node": "n%d", "zone": "a"}, "ranks": 2, "events": "none"}`
	var text strings.Builder
	text.WriteString(`{"workers": [`)
	for i := range 2000 {
		if i > 0 {
			text.WriteString(",\n")
		}
		fmt.Fprintf(&text, worker, i, i)
	}
	text.WriteString(`], "request_policies": [` + strings.Repeat(`"kv_aware", `, 20_000) + `"kv_aware"]}`)
	cfg := Default()
	if err := fill(&cfg, "f", []byte(text.String()), nil); err != nil || len(cfg.Workers) != 2000 || len(cfg.RequestPolicies) != 20_001 {
		t.Errorf("%d workers, %d policies, %.300v", len(cfg.Workers), len(cfg.RequestPolicies), err)
	}
}

// The parser calls itself once for each further key of a mapping, and for each further tag of a value.
func TestAFileWithTooManyKeysIsRefusedBeforeItTakesTheStack(t *testing.T) {
	for text, at := range map[string]string{
		"model_policies:\n" + strings.Repeat("  a: b\n", maxKeys):       fmt.Sprintf("f.yaml:%d:4:", maxKeys+1),
		"model_policies:\n" + strings.Repeat("  ! \n", maxKeys) + "  a": "f.yaml:",
		"policy: " + strings.Repeat("!!str ", maxKeys) + "a":            "f.yaml:1:",
		"policy: " + strings.Repeat("&a\n ", maxKeys) + "a":             "f.yaml:",
	} {
		message := errorOf(t, text)
		if want := fmt.Sprintf("the file has more than %d keys", maxKeys); !strings.Contains(message, want) || !strings.Contains(message, at) {
			t.Errorf("%.20q: %.300q, want %q and %q in it", text, message, at, want)
		}
	}
}
