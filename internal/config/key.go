package config

import "os"

// AdminKey returns the admin key from the environment, for commands that ask a router; "" if there is none.
func AdminKey() string { return os.Getenv(EnvAdminKey) }
