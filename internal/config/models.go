package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/internal/gateway"
)

// mostFallbacks bounds the fall-backs of a model. Each of them may cost a request gateway.attempts attempts.
const mostFallbacks = 8

// ModelNames returns the aliases and fall-backs of models in the form that a gateway takes.
func (c *Config) ModelNames() gateway.ModelNames {
	return gateway.ModelNames{Aliases: c.ModelAliases, Fallbacks: c.ModelFallbacks}
}

func (c *Config) validateModelNames(found *problems) {
	for alias, model := range c.ModelAliases {
		at := "model_aliases." + alias
		_, chained := c.ModelAliases[model]
		switch {
		case alias == "":
			found.add("model_aliases", errors.New("an alias has no name"))
		case model == "":
			found.add(at, errors.New("the model is missing: name a model that the workers serve"))
		case alias == model:
			found.add(at, errors.New("the alias is the model's own name: remove it"))
		case chained:
			found.add(at, fmt.Errorf("%s is an alias, too: name its model, %s", model, c.ModelAliases[model]))
		}
	}
	for model, list := range c.ModelFallbacks {
		at := "model_fallbacks." + model
		if model == "" {
			found.add("model_fallbacks", errors.New("a model has no name"))
		}
		if target, alias := c.ModelAliases[model]; alias {
			found.add(at, fmt.Errorf("%s is an alias: give the fall-backs to its model, %s", model, target))
		}
		if n := len(list); n == 0 || n > mostFallbacks {
			found.add(at, fmt.Errorf("%d fall-backs: name 1 to %d models", n, mostFallbacks))
		}
		for i, name := range list {
			c.validateFallback(found, model, i, name)
		}
	}
}

// validateFallback checks fall-back i of a model.
func (c *Config) validateFallback(found *problems, model string, i int, name string) {
	at := fmt.Sprintf("model_fallbacks.%s[%d]", model, i)
	target, alias := c.ModelAliases[name]
	switch {
	case name == "":
		found.add(at, errors.New("a model has no name"))
	case name == model:
		found.add(at, errors.New("a model cannot be its own fall-back: remove it"))
	case alias:
		found.add(at, fmt.Errorf("%s is an alias: name its model, %s", name, target))
	case slices.Index(c.ModelFallbacks[model], name) < i:
		found.add(at, fmt.Errorf("%s is listed twice", name))
	}
}
