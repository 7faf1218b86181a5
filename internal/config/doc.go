// Package config reads the configuration file into one [Config], which contains the Config of every component. Reading
// is strict: an unknown key, a repeated key and a value of the wrong type are errors, and each error has a position. It
// is also the only package that reads the environment, apart from OpenTelemetry's variables, which internal/telemetry
// reads. Only internal/app, the commands and package migrate import it.
//
//	cfg, err := config.Load("warmpath.yaml", func(c *config.Config) { c.Listen = flag })
//
// config.sample.yaml is generated from the defaults and the comments of the fields. A test fails when it is out of
// date; go test ./internal/config -update writes it again.
package config
