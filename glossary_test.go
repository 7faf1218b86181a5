package warmpath_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// term is a row of GLOSSARY.md.
type term struct {
	words []string // words that are used for the thing
	not   []string // words that are not used for the thing
}

// foreign has exported names that may contain a word of the glossary's column "not", each with the reason.
var foreign = map[string]string{
	"AdmitChunks":             "chunks of a chunked prefill",
	"Backend":                 "a setting with the name that other projects' indexes use; not a worker",
	"BackendMemory":           "a value of Backend",
	"BackendValkey":           "a value of Backend",
	"Class":                   "how an attempt ended; not a kind of worker",
	"SameClass":               "a size class of an allocator; not a kind of worker",
	"Chunks":                  "chunks of a stream in OpenAI's API",
	"MaxBlocksPerBackend":     "a parameter of the policy's source",
	"Medium":                  "a field of vLLM's events",
	"OverlapScoreCredit":      "a parameter of the policy's source",
	"OverlapScoreCreditDecay": "a parameter of the policy's source",
	"OverlapScoreWeight":      "a parameter of the policy's source",
	"PageSize":                "a field of SGLang's /server_info",
}

// Every word that the glossary explains occurs in the code. A word that does not occur needs no explanation.
func TestGlossaryWordsAreUsed(t *testing.T) {
	var code strings.Builder
	for _, path := range sources(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		code.WriteString(strings.ToLower(string(text)))
	}
	all := joined(code.String())
	for _, row := range glossary(t) {
		for _, word := range row.words {
			if !strings.Contains(all, joined(strings.ToLower(word))) {
				t.Errorf("GLOSSARY.md explains %q, and no Go file has it", word)
			}
		}
	}
}

// joined removes spaces, hyphens, line ends and comment marks from a text, so that "look-ahead" and "look ahead" become
// the same word.
func joined(s string) string {
	return strings.NewReplacer(" ", "", "-", "", "\n", "", "//", "", "\t", "").Replace(s)
}

// No exported name contains a word of the glossary's column "not".
func TestExportedNamesAreGlossaryWords(t *testing.T) {
	instead := map[string]string{}
	for _, row := range glossary(t) {
		for _, word := range row.not {
			// Terms of several words are not checked, because a name may contain their words by chance.
			if !strings.Contains(word, " ") {
				instead[singular(joined(strings.ToLower(word)))] = row.words[0]
			}
		}
	}
	for _, path := range sources(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range exported(file) {
			for _, word := range wordsOf(name) {
				if use, ok := instead[word]; ok && foreign[name] == "" {
					t.Errorf("%s: %s has the word %q; GLOSSARY.md says %q", path, name, word, use)
				}
			}
		}
	}
}

// wordsOf returns the words of a name, and each pair of neighbouring words as one word: for WarmUp warm, up and warmup.
// All words are in lower case and in the singular.
func wordsOf(name string) (words []string) {
	last := ""
	for _, word := range strings.Fields(strings.ToLower(camel.ReplaceAllString(acronym.ReplaceAllString(name, "$1 $2"), "$1 $2"))) {
		if words = append(words, singular(word)); last != "" {
			words = append(words, singular(last+word))
		}
		last = word
	}
	return words
}

// camel finds the end of a word: an upper-case letter follows a lower-case letter or a digit. acronym finds the end of
// an acronym before a word: in KVPods, the P belongs to Pods.
var (
	camel   = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	acronym = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
)

// singular removes the ending of a plural, as in pods, classes, canaries.
func singular(word string) string {
	switch {
	case strings.HasSuffix(word, "ies"):
		return strings.TrimSuffix(word, "ies") + "y"
	case strings.HasSuffix(word, "sses"), strings.HasSuffix(word, "xes"):
		return strings.TrimSuffix(word, "es")
	case strings.HasSuffix(word, "ss"):
		return word
	}
	return strings.TrimSuffix(word, "s")
}

func TestWordsOfANameAreFound(t *testing.T) {
	for name, want := range map[string]string{
		"WarmUpTime": "warm up warmup time uptime", "Classes": "class", "Class": "class", "KVPods": "kv pod kvpod", "Canaries": "canary",
	} {
		if got := strings.Join(wordsOf(name), " "); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
}

// exported returns the exported names that a file declares: types, functions, methods, constants, variables and fields.
func exported(file *ast.File) (names []string) {
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				names = append(names, id.Name)
			}
		}
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			add(d.Name)
		case *ast.GenDecl:
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					add(n.Name)
				case *ast.ValueSpec:
					add(n.Names...)
				case *ast.Field:
					add(n.Names...)
				}
				return true
			})
		}
	}
	return names
}

// glossary reads the tables of GLOSSARY.md.
func glossary(t *testing.T) (rows []term) {
	text, err := os.ReadFile("GLOSSARY.md")
	if err != nil {
		t.Fatal(err)
	}
	of := regexp.MustCompile(`\(.*?\)`)
	split := func(cell string) (words []string) {
		for _, word := range strings.FieldsFunc(of.ReplaceAllString(cell, ""), func(r rune) bool { return r == ',' || r == ';' }) {
			if word = strings.TrimSpace(word); word != "" {
				words = append(words, word)
			}
		}
		return words
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(line, "|---") || strings.TrimSpace(cells[1]) == "use" {
			continue
		}
		row := term{split(cells[1]), split(cells[2])}
		if len(row.words) == 0 || strings.TrimSpace(cells[3]) == "" {
			t.Errorf("GLOSSARY.md has a row without a word or a meaning: %s", line)
			continue
		}
		rows = append(rows, row)
	}
	if len(rows) < 20 {
		t.Fatalf("%d rows found in GLOSSARY.md: the test looks for them in the wrong way", len(rows))
	}
	return rows
}

// sources returns the paths of the Go files of the repository, without this file, the module bench, and folders named
// testdata.
func sources(t *testing.T) (paths []string) {
	eachFile(t, func(path string, _ []byte) {
		if strings.HasSuffix(path, ".go") && path != "glossary_test.go" && !strings.HasPrefix(path, "bench/") && !strings.Contains(path, "testdata/") {
			paths = append(paths, path)
		}
	})
	return paths
}
