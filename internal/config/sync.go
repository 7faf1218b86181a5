package config

import (
	"errors"
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
		name, file, env string
		value           *string
	}{
		{"key", s.KeyFile, EnvSyncKey, &s.Key},
		{"password", s.PasswordFile, EnvSyncPassword, &s.Password},
		{"token", s.TokenFile, EnvSyncToken, &s.Token},
	} {
		if given := os.Getenv(secret.env); given != "" {
			if c.Sync.On() { // otherwise the variable is for another process
				*secret.value = given
			}
			continue
		}
		if secret.file == "" {
			continue
		}
		path := "sync." + secret.name + "_file"
		if *secret.value != "" {
			found.add(path, errors.New("sync."+secret.name+" is set, too: keep one"))
			continue
		}
		var err error
		*secret.value, err = keyIn(secret.file)
		found.when(path, err)
	}
}
