package sharedindex

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// A server may repeat the password that the router has sent to it. The log does not show it.
func TestTheLogHasNoPasswordOfTheServer(t *testing.T) {
	const secret = "very-secret-password"
	for _, change := range []func(*Config){
		func(c *Config) { c.Password = secret },
		func(c *Config) { c.URL = "valkey://user:" + secret + "@h:1" },
	} {
		cfg := DefaultConfig()
		cfg.URL = "valkey://h:1"
		change(&cfg)
		logged := new(testenv.Buffer)
		p := newProblem(slog.New(slog.NewTextHandler(io.Writer(logged), nil)), cfg)
		p.tell("trying again", errors.New("ERR you sent HELLO 3 AUTH user "+secret))
		if text := logged.String(); strings.Contains(text, secret) || !strings.Contains(text, "AUTH user [redacted]") {
			t.Errorf("the log: %s", text)
		}
	}
}
