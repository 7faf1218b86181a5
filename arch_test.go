package warmpath_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/warmpath/warmpath"

// layers is the import direction of ARCHITECTURE.md, top first. A package may import only packages of a layer below
// its own, or its own parent. A package that is not listed fails the test: give it a place before giving it code.
var layers = [][]string{
	{"cmd/warmpath"},
	{"internal/demo"},
	{"internal/app"},
	{"internal/config"}, // embeds every component's own Config
	{"internal/admin"},
	{"internal/gateway", "internal/mockengine", "internal/sim", "internal/loadgen"},
	{"internal/tokens/inprocess", "internal/telemetry"},
	{"internal/proxy", "internal/ingest", "internal/lmcache", "internal/discovery", "internal/tokens", "internal/report"},
	{"internal/api", "internal/tokens/chat", "internal/queue", "kvevent/zmq", "internal/engine", "internal/workload"},
	{"", "internal/zmtp"}, // "" is the root package, the Router
	{"policy/peers"},
	{"policy", "tokenizer", "tokenizer/harmony"},
	{"kvindex", "kvindex/learned", "kvevent", "tokenizer/jinja"},
	{"block", "fleet", "policy/radix", "internal/network", "internal/jsonscan"},
}

// testOnly packages hold helpers for tests; only test files and each other may import them.
var testOnly = []string{"internal/memnet", "kvindex/kvindextest", "test/testenv"}

// core packages decide; they must be drivable under virtual time, so everything that touches the world is an argument.
var core = []string{
	"", "block", "kvindex", "kvindex/learned", "kvevent", "fleet", "policy", "policy/peers", "policy/radix", "internal/jsonscan",
}

// rules forbid standard-library and third-party imports: prefix → who may have it → why nobody else may.
var rules = []struct {
	forbidden string
	only      []string
	reason    string
}{
	{"github.com/prometheus/", []string{"internal/telemetry"}, "one heavy dependency, one home"},
	{"go.opentelemetry.io/", []string{"internal/telemetry"}, "one heavy dependency, one home"},
	{"github.com/spf13/cobra", []string{"cmd/warmpath"}, "commands live in cmd/warmpath"},
	{"github.com/goccy/go-yaml", []string{"internal/config"}, "the file's format is the config package's business"},
	{"github.com/nats-io/", []string{"internal/peer"}, "one heavy dependency, one home"},
	{"github.com/redis/", []string{"internal/redisindex"}, "one heavy dependency, one home"},
	{"google.golang.org/grpc", []string{"internal/extproc"}, "one heavy dependency, one home"},
	{"net/http/httputil", nil, "ReverseProxy truncates streams whose POST body is still open (golang/go#40747); internal/proxy is ours"},
	{"C", nil, "the binary is static: CGO_ENABLED=0"},
}

// coreForbidden is what the core must not import directly.
var coreForbidden = map[string]string{
	"net":       "core does no I/O",
	"net/http":  "core does no I/O",
	"os":        "core does no I/O and reads no environment",
	"io":        "core takes bytes, not streams",
	"log":       "core writes no log",
	"log/slog":  "core writes no log",
	"math/rand": "randomness is an argument",
}

// packageFile is one Go file's imports.
type packageFile struct {
	dir, name string
	imports   []string
	test      bool
}

func TestImportsFollowTheArchitecture(t *testing.T) {
	rank := map[string]int{}
	for i, layer := range layers {
		for _, dir := range layer {
			rank[dir] = i
		}
	}
	helper := map[string]bool{}
	for _, dir := range testOnly {
		helper[dir] = true
	}
	for _, f := range goFiles(t) {
		if f.test || helper[f.dir] {
			continue
		}
		from, known := rank[f.dir]
		if !known {
			t.Errorf("%s: package %q has no layer in arch_test.go", f.name, f.dir)
			continue
		}
		for _, imported := range f.imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			to = strings.TrimPrefix(to, "/")
			if helper[to] {
				t.Errorf("%s imports %s, which is for tests only", f.name, to)
				continue
			}
			if to != "" && parent(f.dir) == to {
				continue
			}
			if rank[to] <= from {
				t.Errorf("%s imports %q: imports go downward only (ARCHITECTURE.md)", f.name, to)
			}
		}
	}
}

func TestDependenciesHaveOneHome(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		for _, imported := range f.imports {
			for _, rule := range rules {
				if imported != rule.forbidden && !(strings.HasSuffix(rule.forbidden, "/") && strings.HasPrefix(imported, rule.forbidden)) {
					continue
				}
				if !contains(rule.only, f.dir) {
					t.Errorf("%s imports %s: %s", f.name, imported, rule.reason)
				}
			}
		}
	}
}

func TestCoreTouchesNothing(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !contains(core, f.dir) {
			continue
		}
		for _, imported := range f.imports {
			if reason, bad := coreForbidden[imported]; bad {
				t.Errorf("%s imports %s: %s", f.name, imported, reason)
			}
		}
	}
}

// goFiles reads the imports of every Go file of the module; nested modules (tools, bench) and testdata are left out.
func goFiles(t *testing.T) []packageFile {
	t.Helper()
	var files []packageFile
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") || contains(nested, path) || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if dir == "." {
			dir = ""
		}
		f := packageFile{dir: dir, name: path, test: strings.HasSuffix(path, "_test.go")}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, imported)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatalf("read the module's imports: %v", err)
	}
	sort.Slice(files, func(i, j int) bool { return files[i].name < files[j].name })
	return files
}

// nested are folders with a go.mod of their own, and folders that hold tests alone.
var nested = []string{"tools", "bench", "bin", "examples", "test"}

func parent(dir string) string {
	if i := strings.LastIndexByte(dir, '/'); i >= 0 {
		return dir[:i]
	}
	return ""
}

func contains(list []string, s string) bool {
	for _, item := range list {
		if item == s {
			return true
		}
	}
	return false
}
