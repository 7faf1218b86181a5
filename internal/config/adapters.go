package config

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/internal/gateway"
)

const (
	// mostAdapters bounds the list of adapters: /v1/models has a line for each.
	mostAdapters = 4096
	// mostSlots bounds adapter_slots. Engines reserve memory for each slot: hundreds are rare.
	mostSlots = 4096
)

// GatewayAdapters returns the adapters in the form that a gateway takes.
func (c *Config) GatewayAdapters() gateway.AdapterConfig {
	return gateway.AdapterConfig{List: c.Adapters, Slots: c.AdapterSlots, Timeout: c.AdapterTimeout}
}

func (c *Config) validateAdapters(found *problems) {
	if n := len(c.Adapters); n > mostAdapters {
		found.add("adapters", fmt.Errorf("%d adapters: list at most %d", n, mostAdapters))
	}
	if n := c.AdapterSlots; n < 0 || n > mostSlots {
		found.add("adapter_slots", fmt.Errorf("%d is outside 0..%d; 0 means the engine's own number", n, mostSlots))
	}
	if c.AdapterTimeout <= 0 {
		found.add("adapter_timeout", fmt.Errorf("%v is not positive: give the time for which a worker may load an adapter, such as 1m", c.AdapterTimeout))
	}
	names := map[string]bool{}
	for _, a := range c.Adapters {
		names[a.Name] = true
	}
	seen := map[string]bool{}
	for i, a := range c.Adapters {
		at := fmt.Sprintf("adapters[%d]", i)
		target, alias := c.ModelAliases[a.Name]
		switch {
		case a.Name == "":
			found.add(at+".name", errors.New("the name is missing: give the name that requests use"))
		case seen[a.Name]:
			found.add(at+".name", fmt.Errorf("%s is listed twice", a.Name))
		case alias:
			found.add(at+".name", fmt.Errorf("%s is an alias of %s: give one of them another name", a.Name, target))
		}
		seen[a.Name] = true
		target, alias = c.ModelAliases[a.Base]
		switch {
		case a.Base == "":
			found.add(at+".base", errors.New("the base model is missing: give the name under which the workers serve it"))
		case alias:
			found.add(at+".base", fmt.Errorf("%s is an alias: name its model, %s", a.Base, target))
		case names[a.Base]:
			found.add(at+".base", fmt.Errorf("%s is an adapter: name its base model", a.Base))
		}
		if a.Path == "" {
			found.add(at+".path", errors.New("the path is missing: give the place of the adapter's files, as the engines see it"))
		}
	}
}
