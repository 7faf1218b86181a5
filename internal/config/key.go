package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/warmpath/warmpath/internal/discovery"
)

// EnvAdminKey is the environment variable with the admin key. It overrides the file.
const EnvAdminKey = "WARMPATH_ADMIN_KEY"

// EnvIndexKey is the environment variable with the key of the index service: the key that the service demands, and the
// key that a router sends to it. It overrides the file.
const EnvIndexKey = "WARMPATH_INDEX_KEY"

// AdminKey returns the admin key from the environment, for commands that ask a router; "" if there is none.
func AdminKey() string { return strings.TrimSpace(os.Getenv(EnvAdminKey)) }

// secret says where a key or a password can come from. The empty sources are not in use.
type secret struct {
	path     string  // the path of the setting with the value itself
	value    *string // the value that the setting has; readSecret replaces it
	override string  // the environment variable that counts before all others
	file     string  // the value of the setting path + "_file", which all secrets have: the name of a file
	env      string  // the value of the setting path + "_env": the name of an environment variable
	hasEnv   bool    // there is a setting path + "_env"
}

// readSecret reads s from its source. White space around a secret does not count: a file usually ends with a new line,
// and so does a variable that Kubernetes makes from a file. So all processes with the same file have the same secret.
func readSecret(s secret) *problem {
	if s.override != "" && os.Getenv(s.override) != "" {
		value, err := inEnvironment(s.override)
		*s.value = value
		return problemAt(s.path+"_file", err)
	}
	from := "_file"
	if s.env != "" {
		from = "_env"
	}
	var err error
	switch sources := s.sources(); {
	case sources > 1:
		return problemAt(s.path+from, fmt.Errorf("it is given twice: keep one of %s", s.choices()))
	case s.env != "":
		*s.value, err = inEnvironment(s.env)
	case s.file != "":
		*s.value, err = inFile(s.file)
	case *s.value != "":
		from = ""
		if *s.value = strings.TrimSpace(*s.value); *s.value == "" {
			err = errors.New("it has only white space")
		}
	}
	return problemAt(s.path+from, err)
}

// sources returns how many settings give s.
func (s *secret) sources() (n int) {
	for _, source := range [...]string{*s.value, s.file, s.env} {
		if source != "" {
			n++
		}
	}
	return n
}

// choices names the settings that can give s.
func (s *secret) choices() string {
	name := s.path[strings.LastIndexByte(s.path, '.')+1:]
	if s.hasEnv {
		return fmt.Sprintf("%s, %[1]s_file and %[1]s_env", name)
	}
	return fmt.Sprintf("%s and %[1]s_file", name)
}

// inEnvironment returns the secret that an environment variable has.
func inEnvironment(name string) (string, error) {
	given := os.Getenv(name)
	key := strings.TrimSpace(given)
	switch {
	case given == "":
		return "", fmt.Errorf("the environment variable %s is not set", name)
	case key == "":
		return "", fmt.Errorf("the environment variable %s has only white space", name)
	}
	return key, nil
}

// inFile returns the secret that a file has.
func inFile(file string) (string, error) {
	data, err := readFile(file)
	key := strings.TrimSpace(string(data))
	if err == nil && key == "" {
		err = fmt.Errorf("%s is empty", file)
	}
	return key, err
}

// problemAt returns err as the problem of a setting; nil if err is nil.
func problemAt(path string, err error) *problem {
	if err == nil {
		return nil
	}
	return &problem{path: path, err: err}
}

// readAdminKey reads the admin key.
func (c *Config) readAdminKey() *problem {
	return readSecret(secret{path: "admin.key", value: &c.Admin.Key, override: EnvAdminKey, file: c.Admin.KeyFile})
}

// readIndexKeys reads the keys of the index service, and of the one that the router asks.
func (c *Config) readIndexKeys(found *problems) {
	for _, k := range []struct {
		secret
		used bool
	}{
		{secret{path: "index_service.key", value: &c.IndexService.Key, file: c.IndexService.KeyFile}, c.IndexService.Listen != ""},
		{secret{path: "index.key", value: &c.Index.Key, file: c.Index.KeyFile}, c.Index.URL != ""},
	} {
		if k.used { // otherwise the variable is for another process, and the setting may be so, too
			k.override = EnvIndexKey
			found.secret(k.secret)
		}
	}
}

// readValkeyPassword reads the password of the shared index.
func (c *Config) readValkeyPassword() *problem {
	v := &c.Index.Valkey
	if c.Index.Backend != BackendValkey { // settings without an effect are errors of their own
		return nil
	}
	return readSecret(secret{path: "index.valkey.password", value: &v.Password, file: v.PasswordFile, env: v.PasswordEnv, hasEnv: true})
}

// readWorkerKey reads a worker's key. path is the path of the worker.
func readWorkerKey(t *discovery.Target, path string) *problem {
	return readSecret(secret{path: path + ".api_key", value: &t.APIKey, file: t.APIKeyFile, env: t.APIKeyEnv, hasEnv: true})
}
