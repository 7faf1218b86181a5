package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// EnvAdminKey is the environment variable with the admin key; it wins over the file.
const EnvAdminKey = "WARMPATH_ADMIN_KEY"

// maxFile bounds the file in bytes: a thousand workers take 100 KB.
const maxFile = 8 << 20

// Load reads the file at path over the defaults, lets override change the result (flags win over the file), reads the
// admin key from where it is kept, and validates. An empty path reads no file. The error names every problem, with
// FILE:LINE:COLUMN where the file is to blame, and never contains the value of a key, a token or a password.
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

// fill does what Load does, over cfg and with the content of the file.
func fill(cfg *Config, path string, data []byte, override func(*Config)) error {
	var file *ast.File
	if path != "" {
		var err error
		if file, err = parse(path, data, cfg); err != nil {
			return everyMistake(path, data, err, override)
		}
	}
	if override != nil {
		override(cfg)
	}
	if err := cfg.readKey(); err != nil {
		return locate(path, file, err)
	}
	if err := cfg.Validate(); err != nil {
		return locate(path, file, err)
	}
	return nil
}

func read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the configuration: %s does not exist; `warmpath config sample` prints one to start from", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read the configuration: %s has %d bytes, more than %d", path, len(data), maxFile)
	}
	return data, nil
}

// parse decodes data over cfg and returns its syntax tree, from which positions are read.
func parse(path string, data []byte, cfg *Config) (file *ast.File, err error) {
	// goccy/go-yaml 1.19.2 panics on some files that are no configuration, such as a tagged number where a list
	// belongs.
	defer func() {
		if p := recover(); p != nil {
			file, err = nil, fmt.Errorf("%s: no YAML that can be a configuration (%v): leave out tags (!…) and compare with `warmpath config`", path, p)
		}
	}()
	file, err = parser.ParseBytes(data, 0)
	if err != nil {
		return nil, at(path, err)
	}
	if !hasContent(file) {
		return file, nil // decoding nothing would set everything to zero
	}
	if len(file.Docs) > 1 {
		return nil, fmt.Errorf("%s: the file holds %d documents, keep one", path, len(file.Docs))
	}
	if err := decode(file.Docs[0].Body, cfg); err != nil {
		return nil, place(path, file, err)
	}
	return parser.ParseBytes(data, 0) // whole again: decode took policies out
}

// place puts FILE:LINE:COLUMN before an error of decoding file.
func place(path string, file *ast.File, err error) error {
	var bad *valueError
	var unknown *yaml.UnknownFieldError
	switch {
	case errors.As(err, &unknown) && len(file.Docs) == 1:
		pos := unknown.Token.Position
		if section, ok := sectionOf(file.Docs[0].Body, "", pos.Line, pos.Column); ok {
			return fmt.Errorf("%s:%d:%d: %s", path, pos.Line, pos.Column, unknownField(unknown.Token.Value, section))
		}
	case asNodeError(err) != nil:
		pos := asNodeError(err).node.GetToken().Position
		return fmt.Errorf("%s:%d:%d: %w", path, pos.Line, pos.Column, err)
	case errors.As(err, &bad):
		if line, column, ok := findScalar(file, bad.text); ok {
			return fmt.Errorf("%s:%d:%d: %w", path, line, column, bad)
		}
	}
	return at(path, err)
}

// decode reads the file's root over cfg, policies last.
func decode(root ast.Node, cfg *Config) error {
	mapping, ok := root.(*ast.MappingNode)
	if !ok {
		if err := decoder().DecodeFromNode(root, cfg); err != nil {
			return err
		}
		return cfg.missedPolicies(root)
	}
	policies := takePolicies(mapping)
	if len(mapping.Values) > 0 {
		if err := decoder().DecodeFromNode(mapping, cfg); err != nil {
			return err
		}
	}
	if err := cfg.missedPolicies(mapping); err != nil {
		return err
	}
	return cfg.decodePolicies(policies)
}

// decoder returns a strict decoder that reads durations and bytes as people write them.
func decoder() *yaml.Decoder {
	return yaml.NewDecoder(bytes.NewReader(nil), yaml.Strict(),
		yaml.CustomUnmarshaler(unmarshalBytes), yaml.CustomUnmarshaler(unmarshalDuration))
}

// hasContent reports whether the file says anything: one of comments alone, or with only "null", does not.
func hasContent(file *ast.File) bool {
	for _, doc := range file.Docs {
		switch doc.Body.(type) {
		case nil, *ast.NullNode, *ast.CommentGroupNode:
		default:
			return true
		}
	}
	return false
}

// at turns an error of the YAML library into FILE:LINE:COLUMN: message. It drops the lines that the library quotes
// around the error: one of them may contain a key.
func at(path string, err error) error {
	var located yaml.Error
	if !errors.As(err, &located) || located.GetToken() == nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	pos := located.GetToken().Position
	return fmt.Errorf("%s:%d:%d: %s", path, pos.Line, pos.Column, message(located))
}

// locate puts a position before every problem whose key stands in the file.
func locate(path string, file *ast.File, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || file == nil {
		return err
	}
	var out []error
	for _, e := range joined.Unwrap() {
		var p *problem
		if errors.As(e, &p) {
			line, column, ok := position(file, p.path)
			if !ok && p.other != "" {
				line, column, ok = position(file, p.other)
			}
			if ok {
				e = fmt.Errorf("%s:%d:%d: %w", path, line, column, e)
			}
		}
		out = append(out, e)
	}
	return errors.Join(out...)
}

// position finds the key at path, or the nearest one above it that stands in the file.
func position(file *ast.File, path string) (line, column int, ok bool) {
	for path != "" {
		if p, err := yaml.PathString("$." + path); err == nil {
			if node, err := p.FilterFile(file); err == nil && node != nil && node.GetToken() != nil {
				pos := node.GetToken().Position
				return pos.Line, pos.Column, true
			}
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return 0, 0, false
		}
		path = path[:i]
	}
	return 0, 0, false
}

// readKey takes the admin key from the environment or from its file.
func (c *Config) readKey() error {
	if key := os.Getenv(EnvAdminKey); key != "" {
		c.Admin.Key = key
		return nil
	}
	if c.Admin.KeyFile == "" {
		return nil
	}
	wrong := func(err error) error { return errors.Join(&problem{path: "admin.key_file", err: err}) }
	if c.Admin.Key != "" {
		return wrong(errors.New("admin.key is given, too: keep one"))
	}
	data, err := os.ReadFile(c.Admin.KeyFile)
	if err != nil {
		return wrong(err)
	}
	c.Admin.Key = strings.TrimSpace(string(data))
	if c.Admin.Key == "" {
		return wrong(fmt.Errorf("%s is empty", c.Admin.KeyFile))
	}
	return nil
}
