// Package config is the configuration file: one [Config] that embeds every component's own, strictly parsed, with
// positions in its errors. Unknown and repeated keys are errors. It is also the only place that reads the environment
// (WARMPATH_ADMIN_KEY). Only internal/app and cmd/warmpath import it.
//
//	cfg, err := config.Load("warmpath.yaml", func(c *config.Config) { c.Listen = flag })
//
// config.sample.yaml is generated from the defaults and the fields' own comments; a test holds it equal
// (go test ./internal/config -update rewrites it).
package config
