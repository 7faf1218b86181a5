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

// AdminKey returns the admin key from the environment, for commands that ask a router; "" if there is none.
func AdminKey() string { return os.Getenv(EnvAdminKey) }

// readKey reads the admin key from the environment or from its file.
func (c *Config) readKey() *problem {
	if key := os.Getenv(EnvAdminKey); key != "" {
		c.Admin.Key = key
		return nil
	}
	if c.Admin.KeyFile == "" {
		return nil
	}
	wrong := func(err error) *problem { return &problem{path: "admin.key_file", err: err} }
	if c.Admin.Key != "" {
		return wrong(errors.New("admin.key is set, too: keep one"))
	}
	key, err := keyIn(c.Admin.KeyFile)
	if err != nil {
		return wrong(err)
	}
	c.Admin.Key = key
	return nil
}

// EnvIndexKey is the environment variable with the key of the index service: the key that the service demands, and the
// key that a router sends to it. It overrides the file.
const EnvIndexKey = "WARMPATH_INDEX_KEY"

// readIndexKeys reads the keys of the index service, and of the one that the router asks.
func (c *Config) readIndexKeys(found *problems) {
	for _, k := range []struct {
		section   string
		key, file *string
		used      bool
	}{
		{"index_service", &c.IndexService.Key, &c.IndexService.KeyFile, c.IndexService.Listen != ""},
		{"index", &c.Index.Key, &c.Index.KeyFile, c.Index.URL != ""},
	} {
		if key := os.Getenv(EnvIndexKey); key != "" && k.used {
			*k.key = key
			continue
		}
		if *k.file == "" {
			continue
		}
		if *k.key != "" {
			found.add(k.section+".key_file", fmt.Errorf("%s.key is set, too: keep one", k.section))
			continue
		}
		key, err := keyIn(*k.file)
		if err != nil {
			found.add(k.section+".key_file", err)
			continue
		}
		*k.key = key
	}
}

// readValkeyPassword reads the password of the shared index from its file or from the environment.
func (c *Config) readValkeyPassword() *problem {
	v := &c.Index.Valkey
	wrong := func(key string, err error) *problem { return &problem{path: "index.valkey." + key, err: err} }
	switch {
	case v.PasswordFile == "" && v.PasswordEnv == "":
		return nil
	case v.Password != "" || v.PasswordFile != "" && v.PasswordEnv != "":
		return wrong("password", errors.New("it is given twice: keep one of password, password_file and password_env"))
	case v.PasswordEnv != "":
		if v.Password = strings.TrimSpace(os.Getenv(v.PasswordEnv)); v.Password == "" {
			return wrong("password_env", fmt.Errorf("the environment variable %s is not set", v.PasswordEnv))
		}
		return nil
	}
	var err error
	if v.Password, err = keyIn(v.PasswordFile); err != nil {
		return wrong("password_file", err)
	}
	return nil
}

// keyIn returns the key that a file has.
func keyIn(file string) (string, error) {
	data, err := readFile(file)
	key := strings.TrimSpace(string(data))
	if err == nil && key == "" {
		err = fmt.Errorf("%s is empty", file)
	}
	return key, err
}

// readWorkerKey reads a worker's key from its file or from the environment. path is the path of the worker.
func readWorkerKey(t *discovery.Target, path string) *problem {
	wrong := func(key string, err error) *problem { return &problem{path: path + "." + key, err: err} }
	key, name := "api_key_file", t.APIKeyFile
	if t.APIKeyEnv != "" {
		key, name = "api_key_env", t.APIKeyEnv
	}
	switch {
	case name == "":
		return nil
	case t.APIKey != "" || t.APIKeyFile != "" && t.APIKeyEnv != "":
		return wrong(key, errors.New("the key is given twice: keep one of api_key, api_key_file and api_key_env"))
	case t.APIKeyEnv != "":
		if t.APIKey = strings.TrimSpace(os.Getenv(name)); t.APIKey == "" {
			return wrong(key, fmt.Errorf("the environment variable %s is not set", name))
		}
		return nil
	}
	var err error
	if t.APIKey, err = keyIn(name); err != nil {
		return wrong(key, err)
	}
	return nil
}
