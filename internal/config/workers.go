package config

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/internal/discovery"
)

// readWorkersFile fills FileWorkers from workers_file.
func (c *Config) readWorkersFile(found *problems) {
	c.FileWorkers = nil
	if c.WorkersFile == "" {
		return
	}
	var file struct {
		Workers []discovery.Target `yaml:"workers"`
	}
	data, err := readFile(c.WorkersFile)
	if err == nil {
		err = ReadDocument(c.WorkersFile, &file)
	}
	if err != nil {
		found.add("workers_file", withoutSecrets(err, data, &Config{Workers: file.Workers}))
		return
	}
	if file.Workers == nil {
		found.add("workers_file", fmt.Errorf("%s has no list under workers; the file may be cut short. To remove all workers write workers: []", c.WorkersFile))
		return
	}
	first := map[string]int{}
	for i := range file.Workers {
		w := &file.Workers[i]
		at := fmt.Sprintf("workers[%d]", i)
		wrong := func(err error) { found.add("workers_file", fmt.Errorf("%s: %s: %w", c.WorkersFile, at, err)) }
		if p := readWorkerKey(w, at); p != nil {
			found.add("workers_file", fmt.Errorf("%s: %w", c.WorkersFile, p))
		}
		if err := errors.Join(parts(w.Validate())...); err != nil {
			wrong(err)
			continue
		}
		if j, twice := first[w.Canonical()]; twice {
			wrong(fmt.Errorf("%s is listed twice, first as workers[%d]", w.URL, j))
			continue
		}
		first[w.Canonical()] = i
	}
	c.FileWorkers = file.Workers
}
