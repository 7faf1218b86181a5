// Package app wires the components of `warmpath serve`, and owns their lifetime: it builds, runs, reloads and drains
// them. It is the only package that starts components.
//
//	a, err := app.New(cfg, app.Options{Log: log, Load: func() (*config.Config, error) { … }})
//	err = a.Run(ctx) // returns after ctx ended, when everything that Run started has ended
package app
