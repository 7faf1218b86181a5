package app

import (
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/script"
)

// failuresEvery is the least time between two lines of the log about failures of a policy.
const failuresEvery = 10 * time.Second

// countFailures makes policies whose rule may fail, such as scripts, report each failure: in a metric, and in the log.
func (a *App) countFailures(specs []policy.Spec) {
	for i := range specs {
		specs[i].Failed = a.failuresOf(specs[i].Name)
	}
}

// failuresOf returns the function that is told of each failure of a policy. The log gets a line at most once in
// failuresEvery, with the number of failures since the line before.
func (a *App) failuresOf(name string) func(call string, err error) {
	var mu sync.Mutex // guards since and logged
	var since int
	var logged time.Time
	return func(call string, err error) {
		a.telemetry.PolicyFailed(name, call)
		mu.Lock()
		since++
		n, now := since, time.Now()
		if !logged.IsZero() && now.Sub(logged) < failuresEvery {
			mu.Unlock()
			return
		}
		since, logged = 0, now
		mu.Unlock()
		a.log.Warn("a policy failed: the default policy decides such requests; correct the script", "policy", name, "call", call, "error", err, "failures", n)
	}
}

// scriptFiles returns the files of all scripts that the configuration describes.
func scriptFiles(cfg *config.Config) []string {
	var files []string
	for _, p := range cfg.Policies {
		if s, ok := p.Parameters.(*script.Script); ok {
			files = append(files, s.File)
		}
	}
	return files
}
