package config

import "os"

// AdminKey returns the admin key of the environment, for commands that ask a router; "" when there is none.
func AdminKey() string { return os.Getenv(EnvAdminKey) }
