package tenant

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// ReadFile reads a file of tenants: one JSON object a line, with the keys of Config. Empty lines are skipped. An
// unknown key is an error. The entries have passed Validate. The error names every problem with its line, and contains
// no key. The format is not YAML, because a YAML document is read whole: 100,000 tenants would take seconds and much
// memory.
func ReadFile(path string) ([]Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return read(f, path)
}

// maxLine bounds a line: a tenant with a thousand keys has 70 KB. maxFile bounds a file: a million tenants have 200 MB.
const (
	maxLine = 256 << 10
	maxFile = 256 << 20
)

func read(from io.Reader, path string) ([]Config, error) {
	lines := bufio.NewScanner(io.LimitReader(from, maxFile+1))
	lines.Buffer(make([]byte, 64<<10), maxLine)
	var list []Config
	var numbers []int // the line of each entry
	var problems []error
	size := 0
	for n := 1; lines.Scan() && len(problems) <= maxProblems; n++ {
		line := lines.Bytes()
		if size += len(line) + 1; size > maxFile {
			return nil, fmt.Errorf("%s has more than %d bytes: is it the right file?", path, maxFile)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var c Config
		if err := decode(line, &c); err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %w", path, n, err))
			continue
		}
		list, numbers = append(list, c), append(numbers, n)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("%s: a line is longer than %d bytes: write one tenant a line", path, maxLine)
	} else if err != nil {
		return nil, err
	}
	problems = append(problems, Validate(list, func(i int) string { return fmt.Sprintf("%s:%d", path, numbers[i]) })...)
	return list, errors.Join(problems...)
}

// decode reads one line. Its error does not contain the line, which may have a key that stands in the wrong place.
func decode(line []byte, c *Config) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(c)
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("%s: a %s cannot stand here", kind.Field, kind.Value)
	case err != nil && bytes.HasPrefix([]byte(err.Error()), []byte("json: unknown field ")):
		return errors.New("a key is unknown; the keys are those of an entry of tenants: name, keys_sha256, …")
	case err != nil:
		return errors.New(`not a JSON object such as {"name": "acme", "keys_sha256": ["…"]}`)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("text after the JSON object: write one tenant a line")
	}
	return nil
}
