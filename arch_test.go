package warmpath_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/warmpath/warmpath"

// layers has the permitted directions of imports, as in ARCHITECTURE.md; the top layer is first. A package may import
// only packages of lower layers, and its own parent package. A package that is not listed fails the test, so add each
// new package to this table.
var layers = [][]string{
	{"cmd/warmpath"},
	{"internal/app"},
	{"internal/config", "internal/config/migrate"}, // config embeds every component's own Config
	{"internal/admin"},
	{"internal/gateway", "internal/indexer", "internal/mockengine", "internal/sim", "internal/loadgen", "internal/doctor"},
	{"internal/tokens/inprocess", "internal/telemetry", "internal/snapshot"},
	{"internal/proxy", "kvfeed", "publish", "internal/discovery", "internal/tokens", "internal/report", "internal/replica", "internal/sharedindex"},
	{"internal/connector"},
	{"internal/api", "internal/queue", "internal/tenant", "internal/engine", "internal/workload"},
	{"", "internal/zmtp"}, // "" is the root package, the Router
	{"policy/peers", "policy/script"},
	{"policy", "tokenizer"},
	{"kvindex", "placement", "kvevent", "tokenizer/jinja"},
	{"block", "fleet", "internal/network", "internal/jsonscan", "internal/spelling", "kvindex/internal/memory"},
}

// testOnly has the packages with helpers for tests. Only test files and other packages of testOnly may import them.
var testOnly = []string{"kvindex/kvindextest", "test/testenv"}

// core has the packages that make decisions. Tests run them in virtual time. So these packages take the time, random
// numbers and input bytes as arguments.
var core = []string{
	"", "block", "kvindex", "kvindex/internal/memory", "kvevent", "fleet", "policy", "policy/peers", "placement", "internal/jsonscan",
}

// rules has imports that only some packages may use. The field "forbidden" is the import, and the field "only" lists
// the packages that may use the import. If "forbidden" ends in a slash, it stands for all imports that begin with this
// text.
var rules = []struct {
	forbidden string
	only      []string
	reason    string
}{
	{"github.com/prometheus/", []string{"internal/telemetry"}, "one heavy dependency, one home"},
	{"go.opentelemetry.io/", []string{"internal/telemetry"}, "one heavy dependency, one home"},
	{"github.com/spf13/cobra", []string{"cmd/warmpath"}, "commands live in cmd/warmpath"},
	{"github.com/santhosh-tekuri/jsonschema/", []string{"test/testenv"}, "only tests validate answers with JSON schemas"},
	{"github.com/valyala/fastjson", []string{"internal/mockengine", "internal/loadgen"}, "the mock engines and the load generator read JSON as trees; the router reads it with internal/jsonscan"},
	{"github.com/go-jose/", []string{"internal/tenant"}, "tokens are the tenant package's business"},
	{"github.com/goccy/go-yaml", []string{"internal/config"}, "the file's format is the config package's business"},
	{"google.golang.org/grpc", []string{"internal/indexer"}, "gRPC is the index service's business"},
	{"google.golang.org/grpc/", []string{"internal/indexer"}, "gRPC is the index service's business"},
	{"google.golang.org/protobuf/", []string{"internal/indexer"}, "the messages of the index service are encoded there"},
	{"github.com/valkey-io/", []string{"internal/sharedindex"}, "one heavy dependency, one home"},
	{"go.starlark.net/", []string{"policy/script"}, "one heavy dependency, one home"},
	{"github.com/nats-io/", []string{"internal/replica"}, "one heavy dependency, one home"},
	{module + "/policy", []string{"", "cmd/warmpath", "internal/admin", "internal/app", "internal/config", "internal/config/migrate", "internal/gateway", "internal/sim", "policy/peers", "policy/script"}, "sources of facts, such as internal/discovery, put them into the fleet's types, and know no policy"},
	{"net/http/httputil", nil, "ReverseProxy truncates streams whose POST body is still open (golang/go#40747); internal/proxy is ours"},
	{"C", nil, "the binary is static: CGO_ENABLED=0"},
}

// coreForbidden has the packages that core packages must not import directly, each with the reason.
var coreForbidden = map[string]string{
	"net":       "core does no I/O",
	"net/http":  "core does no I/O",
	"os":        "core does no I/O and reads no environment",
	"io":        "core takes bytes, not streams",
	"log":       "core writes no log",
	"log/slog":  "core writes no log",
	"math/rand": "randomness is an argument",
}

// packageFile is one Go file with its imports.
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
				if !slices.Contains(rule.only, f.dir) {
					t.Errorf("%s imports %s: %s", f.name, imported, rule.reason)
				}
			}
		}
	}
}

// unlinked has dependencies that must not be linked into some packages, not even through other packages of this module.
var unlinked = []struct {
	dirs      []string
	forbidden []string
	reason    string
}{
	{
		[]string{"", "kvfeed", "publish", "internal/telemetry", "internal/gateway", "internal/indexer", "internal/sim"},
		[]string{"github.com/nats-io/", "github.com/valkey-io/"},
		"internal/app connects these packages to replica and sharedindex, and converts their figures",
	},
}

func TestHeavyDependenciesAreLinkedOnlyWhereTheyAreUsed(t *testing.T) {
	imports := map[string][]string{} // by package
	for _, f := range goFiles(t) {
		if !f.test {
			imports[f.dir] = append(imports[f.dir], f.imports...)
		}
	}
	for _, rule := range unlinked {
		for _, from := range rule.dirs {
			if len(imports[from]) == 0 {
				t.Errorf("there is no package %q", from)
			}
			seen := map[string]bool{from: true}
			for open := []string{from}; len(open) > 0; open = open[1:] {
				for _, imported := range imports[open[0]] {
					to, ours := strings.CutPrefix(imported, module)
					to = strings.TrimPrefix(to, "/")
					switch {
					case ours && !seen[to]:
						seen[to] = true
						open = append(open, to)
					case !ours && slices.ContainsFunc(rule.forbidden, func(p string) bool { return strings.HasPrefix(imported, p) }):
						t.Errorf("%q links %s by way of %q: %s", from, imported, open[0], rule.reason)
					}
				}
			}
		}
	}
}

// network.NewMemory makes a network in memory for tests. It is not in a test file, because it is beside the interface
// that its result implements. Still, only tests may call it.
func TestOnlyTestsUseTheNetworkInMemory(t *testing.T) {
	eachFile(t, func(path string, text []byte) {
		production := strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "internal/network/")
		if production && bytes.Contains(text, []byte("network.NewMemory(")) {
			t.Errorf("%s uses network.NewMemory, which is for tests only", path)
		}
	})
}

// The examples are a separate module, like a program of a user. An example may import only public packages. Only the
// tests of the examples may use the mock engines of this module.
func TestExamplesImportPublicPackages(t *testing.T) {
	files, err := filepath.Glob("examples/*/*.go")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files of examples found: %v", len(files), err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			if strings.Contains(spec.Path.Value, "/internal/") {
				t.Errorf("%s imports %s, which a user cannot", path, spec.Path.Value)
			}
		}
	}
}

func TestCoreTouchesNothing(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !slices.Contains(core, f.dir) {
			continue
		}
		for _, imported := range f.imports {
			if reason, bad := coreForbidden[imported]; bad {
				t.Errorf("%s imports %s: %s", f.name, imported, reason)
			}
		}
	}
}

// maxPackages bounds the number of packages of this module, as `go list ./...` counts them. If a package has a single
// caller, its code should be a file in the caller's package. A higher bound needs a design page with the reason.
const maxPackages = 46

// TestTheArchitectureNamesThePackagesThatExist checks that ARCHITECTURE.md, the tables of this file, and the folders
// have the same packages.
func TestTheArchitectureNamesThePackagesThatExist(t *testing.T) {
	exists := map[string]bool{}
	for _, f := range goFiles(t) {
		exists[f.dir] = exists[f.dir] || !f.test
	}
	known := map[string]bool{}
	for _, layer := range append(layers, testOnly) {
		for _, dir := range layer {
			known[dir] = true
			if !exists[dir] {
				t.Errorf("arch_test.go gives %q a place, but there is no such package", dir)
			}
		}
	}
	for dir := range exists {
		if !known[dir] {
			t.Errorf("package %q has no place in arch_test.go", dir)
		}
	}
	if len(exists) > maxPackages {
		t.Errorf("%d packages, %d are allowed", len(exists), maxPackages)
	}
	for _, dir := range core {
		if !known[dir] {
			t.Errorf("core has %q, layers do not", dir)
		}
	}
	for _, rule := range rules {
		for _, dir := range rule.only {
			if !known[dir] {
				t.Errorf("the rule on %s names %q, layers do not", rule.forbidden, dir)
			}
		}
	}
	mapped := map[string]bool{}
	for _, dir := range architecturePackages(t) {
		mapped[dir] = true
		if !known[dir] {
			t.Errorf("ARCHITECTURE.md has %q, arch_test.go does not", dir)
		}
	}
	for dir := range known {
		if !mapped[dir] {
			t.Errorf("arch_test.go has %q, the table of ARCHITECTURE.md does not", dir)
		}
	}
}

var packagePath = regexp.MustCompile(`\b(?:cmd|internal|kvindex|kvevent|policy|test|tokenizer)/[a-z]+(?:/[a-z_]+)*(?:\.go)?`)

// Outside of its table, ARCHITECTURE.md names packages and files, too. They must exist.
func TestThePathsInTheArchitectureExist(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range packagePath.FindAllString(string(text), -1) {
		if !exists(dir) {
			t.Errorf("ARCHITECTURE.md names %q: there is no such package or file", dir)
		}
	}
}

// architecturePackages returns the packages in the first column of ARCHITECTURE.md's table. The root package is "", and
// the table calls it `warmpath`. `…/x` is a subfolder of the package that the table names before it.
func architecturePackages(t *testing.T) (dirs []string) {
	t.Helper()
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| package |")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| `") {
			if len(dirs) > 0 {
				break
			}
			continue
		}
		column, _, _ := strings.Cut(line[2:], " | ")
		parts := strings.Split(column, "`")
		for i := 1; i < len(parts); i += 2 {
			dir := parts[i]
			if below, short := strings.CutPrefix(dir, "…/"); short {
				dir = dirs[len(dirs)-1] + "/" + below
			}
			if dir == "warmpath" {
				dir = ""
			}
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// goFiles reads the imports of every Go file of the module. It leaves out the folders in nested, and folders named
// testdata.
func goFiles(t *testing.T) []packageFile {
	t.Helper()
	var files []packageFile
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains(nested, path) || d.Name() == "testdata") {
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
	return files
}

// nested are the folders that goFiles leaves out: other modules, binaries and examples.
var nested = []string{"tools", "bench", "bin", "examples"}

func parent(dir string) string {
	if i := strings.LastIndexByte(dir, '/'); i >= 0 {
		return dir[:i]
	}
	return ""
}
