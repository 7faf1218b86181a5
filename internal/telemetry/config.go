package telemetry

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Config has the settings for remembered decisions and for the log.
type Config struct {
	// Decisions is the number of decisions that /admin/decisions can show, at most 1,000,000. The default 1024 covers
	// the last seconds of a busy router, and takes less than 1 MB. 0 keeps none.
	Decisions int `yaml:"decisions"`
	// LogLevel is debug, info, warn or error. With debug there is a line for each request.
	LogLevel string `yaml:"log_level"`
	// LogFormat is text (for people) or json (for collectors).
	LogFormat string `yaml:"log_format"`
	// AccessLog has one line of JSON for each request of a client, without prompts and keys. docs/observe.md lists the
	// fields.
	AccessLog JournalConfig `yaml:"access_log"`
	// DecisionLog has one line of JSON for each request that was sent to a worker, with the facts about all candidates,
	// so that `warmpath replay` can ask other policies about the same requests. It has no prompts and no keys.
	DecisionLog JournalConfig `yaml:"decision_log"`
	// Traces says where traces of requests go (OpenTelemetry). By default there are none.
	Traces TracesConfig `yaml:"traces"`
}

// maxDecisions bounds Config.Decisions. A record takes about 1 KB, and 8 bytes for each 256 tokens of its prompt, so a
// million records take 1 GB and more. A larger number is probably a mistake.
const maxDecisions = 1_000_000

// DefaultConfig returns the defaults: the router keeps the last 1024 decisions, and writes the log as text, with the
// levels info, warn and error.
func DefaultConfig() Config {
	return Config{Decisions: 1024, LogLevel: "info", LogFormat: "text",
		AccessLog: DefaultJournalConfig(), DecisionLog: DefaultJournalConfig(), Traces: TracesConfig{Sample: 1}}
}

// Validate returns all problems of c. Each problem begins with the name of its field.
func (c Config) Validate() error {
	var problems []error
	if c.Decisions < 0 || c.Decisions > maxDecisions {
		problems = append(problems, fmt.Errorf("decisions: %d is outside 0..%d", c.Decisions, maxDecisions))
	}
	if _, err := logLevel(c.LogLevel); err != nil {
		problems = append(problems, err)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		problems = append(problems, fmt.Errorf("log_format: %q is neither text nor json", c.LogFormat))
	}
	problems = append(problems, c.AccessLog.problems("access_log")...)
	problems = append(problems, c.DecisionLog.problems("decision_log")...)
	problems = append(problems, c.Traces.problems()...)
	if f := c.AccessLog.File; f != "" && f != Stdout && f == c.DecisionLog.File {
		problems = append(problems, fmt.Errorf("decision_log.file: %s is also the file of access_log", f))
	}
	return errors.Join(problems...)
}

// newLogger returns a logger that writes to w with the level and the format of c. It returns an error if Validate
// refuses the level or the format.
func newLogger(c Config, w io.Writer) (*slog.Logger, error) {
	level, err := logLevel(c.LogLevel)
	if err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: level}
	switch c.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("log_format: %q is neither text nor json", c.LogFormat)
}

func logLevel(name string) (slog.Level, error) {
	switch name {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log_level: %q is none of debug, info, warn, error", name)
}
