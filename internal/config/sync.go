package config

import (
	"errors"
	"fmt"
	"os"
)

// These environment variables have secrets of the sharing of requests. They override the file.
const (
	EnvSyncKey      = "WARMPATH_SYNC_KEY"
	EnvSyncPassword = "WARMPATH_SYNC_PASSWORD"
	EnvSyncToken    = "WARMPATH_SYNC_TOKEN"
)

// readSync reads the secrets of the sharing of requests from the environment or from their files.
func (c *Config) readSync(found *problems) {
	s := &c.Sync
	for _, secret := range []struct {
		name, whose, file, env string
		value                  *string
	}{
		{"key", "routers have in common (openssl rand -hex 32 prints one)", s.KeyFile, EnvSyncKey, &s.Key},
		{"password", "NATS server asks for", s.PasswordFile, EnvSyncPassword, &s.Password},
		{"token", "NATS server asks for", s.TokenFile, EnvSyncToken, &s.Token},
	} {
		if given := os.Getenv(secret.env); given != "" {
			if c.Sync.On() { // otherwise the variable is for another process
				*secret.value = given
			}
			continue
		}
		if secret.file == "" || !c.Sync.On() { // the latter is an error of its own
			continue
		}
		path := "sync." + secret.name + "_file"
		if *secret.value != "" {
			found.add(path, errors.New("sync."+secret.name+" is set, too: keep one"))
			continue
		}
		var err error
		if *secret.value, err = keyIn(secret.file); err != nil {
			found.add(path, fmt.Errorf("%w: write the %s that the %s into this file, or give it in %s", err, secret.name, secret.whose, secret.env))
		}
	}
}
