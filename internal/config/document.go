package config

import (
	"bytes"
	"fmt"
	"os"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
)

// ReadDocument reads another YAML file than the gateway's over into: a simulator experiment. It is as strict, and
// says where the file is wrong.
func ReadDocument(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read experiment: %w", err)
	}
	if len(data) > maxFile {
		return fmt.Errorf("read experiment: %s has %d bytes, more than %d", path, len(data), maxFile)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return at(path, err)
	}
	if !hasContent(file) {
		return fmt.Errorf("%s says nothing", path)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict(), yaml.CustomUnmarshaler(unmarshalDuration))
	if err := decoder.Decode(into); err != nil {
		return at(path, err)
	}
	return nil
}
