package config

import "fmt"

// These environment variables have secrets of the sharing of requests. They override the file.
const (
	EnvSyncKey      = "WARMPATH_SYNC_KEY"
	EnvSyncPassword = "WARMPATH_SYNC_PASSWORD"
	EnvSyncToken    = "WARMPATH_SYNC_TOKEN"
)

// readSync reads the secrets of the sharing of requests from the environment or from their files.
func (c *Config) readSync(found *problems) {
	s := &c.Sync
	if !s.On() { // the variables are for another process, and settings without an effect are errors of their own
		return
	}
	for _, part := range []struct {
		secret
		name, whose string
	}{
		{secret{path: "sync.key", value: &s.Key, override: EnvSyncKey, file: s.KeyFile},
			"key", "routers have in common (openssl rand -hex 32 prints one)"},
		{secret{path: "sync.password", value: &s.Password, override: EnvSyncPassword, file: s.PasswordFile},
			"password", "NATS server asks for"},
		{secret{path: "sync.token", value: &s.Token, override: EnvSyncToken, file: s.TokenFile},
			"token", "NATS server asks for"},
	} {
		given := *part.value != ""
		p := readSecret(part.secret)
		if p != nil && part.file != "" && !given { // the file is the mistake
			p.err = fmt.Errorf("%w: write the %s that the %s into this file, or give it in %s", p.err, part.name, part.whose, part.override)
		}
		if p != nil {
			*found = append(*found, p)
		}
	}
}
