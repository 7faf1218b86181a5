package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/discovery"
)

// maxFile bounds the size of the file in bytes. A file with a thousand workers has about 100 KB.
const maxFile = 8 << 20

// Load reads the file at path over the defaults, and then calls override, because flags override the file. It reads the
// admin key from its file or from the environment, and validates the result. If path is empty, it reads no file. The
// error contains every problem, with FILE:LINE:COLUMN if the file causes the problem. It never contains the value of a
// key, a token or a password.
func Load(path string, override func(*Config)) (*Config, error) {
	cfg := Default()
	var data []byte
	if path != "" {
		var err error
		if data, err = read(path); err != nil {
			return nil, err
		}
	}
	if err := fill(&cfg, path, data, override); err != nil {
		return nil, withoutSecrets(err, data, &cfg)
	}
	return &cfg, nil
}

// fill does the same as Load, over cfg and with data as the content of the file. Its error may contain secrets.
func fill(cfg *Config, path string, data []byte, override func(*Config)) error {
	r, err := parse(path, data, cfg)
	if err != nil {
		return err
	}
	if r.tree != nil && r.ended { // the reader did not read the rest of the file
		return r.err()
	}
	if override != nil {
		override(cfg)
	}
	cfg.describe()
	if p := cfg.readAdminKey(); p != nil {
		r.problem(p)
		r.broken["admin"] = true
	}
	d := &cfg.WorkerDefaults
	own := discovery.Target{APIKey: d.APIKey, APIKeyFile: d.APIKeyFile, APIKeyEnv: d.APIKeyEnv}
	if p := readWorkerKey(&own, "worker_defaults"); p != nil {
		r.problem(p)
		r.broken[p.path] = true
	}
	d.APIKey = own.APIKey
	valid := d.Validate() == nil // otherwise each worker would show the same problem
	for i := range cfg.Workers {
		if p := readWorkerKey(&cfg.Workers[i], fmt.Sprintf("workers[%d]", i)); p != nil {
			r.problem(p)
			r.broken[p.path] = true
		}
		if valid {
			cfg.Workers[i] = d.Fill(cfg.Workers[i])
		}
	}
	for i := range cfg.WorkersDNS.Names {
		if p := readWorkerKey(&cfg.WorkersDNS.Names[i], fmt.Sprintf("workers_dns.names[%d]", i)); p != nil {
			r.problem(p)
			r.broken[p.path] = true
		}
	}
	if p := cfg.readValkeyPassword(); p != nil {
		r.problem(p)
		r.broken["index"] = true
	}
	var found problems
	cfg.readIndexKeys(&found)
	cfg.readTenants(&found)
	cfg.readSync(&found)
	cfg.readWorkersFile(&found)
	cfg.validate(&found)
	for _, p := range found {
		if !p.certain && r.follows(p) {
			r.withheld = r.withheld || !r.broken[p.path]
			continue
		}
		r.problem(p)
	}
	return r.err()
}

// Check returns every problem of a file's content, as Load does.
func Check(name string, data []byte) error {
	cfg := Default()
	if err := fill(&cfg, name, data, nil); err != nil {
		return withoutSecrets(err, data, &cfg)
	}
	return nil
}

// parse decodes data over cfg. The error is a syntax error; the reader has the mistakes in the content.
func parse(path string, data []byte, cfg *Config) (*reader, error) {
	r, root, err := newReader(path, data, reflect.TypeFor[Config]())
	if err == nil && root != nil {
		r.config(root, cfg)
	}
	return r, err
}

// problem records a mistake in a value that could be read.
func (r *reader) problem(p *problem) {
	at := r.place(p.path)
	if at == nil && p.other != "" {
		at = r.place(p.other)
	}
	r.mistakes = append(r.mistakes, mistake{at, p.Error()})
}

// follows reports whether p may be a consequence of a value that could not be read. It is one if the value belongs to
// p's key, to a setting around it, or to a setting inside it. It is also one if p's text names the value's key, and
// both are in the same unit of the file. All settings about policies count as one value, because they refer to each
// other.
func (r *reader) follows(p *problem) bool {
	for path := range r.broken {
		switch {
		case path == "", within(p.path, path), within(path, p.path), p.other != "" && within(p.other, path):
			return true
		case ofPolicies(p.path) && ofPolicies(path):
			return true
		case unit(p.path) == unit(path) && slices.Contains(words.FindAllString(p.err.Error(), -1), path[strings.LastIndexByte(path, '.')+1:]):
			return true
		}
	}
	return false
}

// within reports whether path is outer or a setting inside it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// words matches the names of keys in an error.
var words = regexp.MustCompile(`[a-z_]+`)

// ofPolicies reports whether a setting is about policies. In the section routing these are policy, the defaults of
// policies, and the policies that stand there under the names of their kinds.
func ofPolicies(path string) bool {
	if key, ok := strings.CutPrefix(path, "routing."); ok {
		_, kind := warmpath.PolicyKinds().Find(unit(key))
		return kind || slices.Contains([]string{"policy", "tier_weights", "imbalance_tokens"}, unit(key))
	}
	if key, ok := strings.CutPrefix(path, "disaggregation."); ok {
		return strings.HasSuffix(key, "_policy")
	}
	top := index.ReplaceAllString(unit(path), "")
	return slices.Contains([]string{"policy", "policies", "model_policies", "request_policies", "shadow"}, top)
}

func read(path string) ([]byte, error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the configuration: %s does not exist; `warmpath config sample` prints one to start from", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return data, nil
}

// placed adds to the error about a missing file where its relative path begins: the directory of a service is not that
// of the operator who wrote the path.
func placed(err error, path string) error {
	dir, unknown := os.Getwd()
	if !errors.Is(err, fs.ErrNotExist) || filepath.IsAbs(path) || unknown != nil {
		return err
	}
	return fmt.Errorf("%w; a relative path begins at the working directory, %s", err, dir)
}

// readFile reads a file of at most maxFile bytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, placed(err, path)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes: is it the right file?", path, maxFile)
	}
	return data, nil
}
