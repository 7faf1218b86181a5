package migrate

import (
	"fmt"
	"path/filepath"

	"github.com/warmpath/warmpath/internal/config"
)

// Convert returns Warmpath's file for a file of another router. The error names problems of the old file, and values
// that Warmpath does not accept.
func Convert(name string, data []byte) ([]byte, error) {
	root, err := config.ParseDocument(name, data)
	if err != nil {
		return nil, err
	}
	c := &converter{Config: config.Default()}
	from := ""
	for _, f := range []struct {
		name string
		is   bool
		read func(*converter, *config.Node)
	}{
		{"llm-d's EndpointPickerConfig", text(root.Get("kind")) == "EndpointPickerConfig", (*converter).llmd},
		{"Dynamo's DynamoGraphDeployment", text(root.Get("kind")) == "DynamoGraphDeployment", (*converter).dynamo},
		{"the Helm values of vLLM's production stack", root.Get("routerSpec") != nil, (*converter).helm},
		{"the dynamic configuration of vLLM's production stack", root.Get("routing_logic") != nil || root.Get("static_backends") != nil, (*converter).stack},
		{"a gateway of the family of SMG and vllm-router", hasAny(root, "mode", "policy", "routing", "worker_urls"), (*converter).gateway},
	} {
		if f.is {
			from = f.name
			f.read(c, root)
			break
		}
	}
	if from == "" {
		return nil, fmt.Errorf("%s is no file that is known: it needs mode, policy or worker_urls (SMG, vllm-router), routerSpec or routing_logic (production stack), "+
			"or the kind EndpointPickerConfig (llm-d) or DynamoGraphDeployment (Dynamo)", name)
	}
	if err := c.flags(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out := c.file(filepath.Base(name), from)
	if err := config.Check("the new file", out); err != nil {
		return nil, fmt.Errorf("%s has values that Warmpath does not accept: %w", name, err)
	}
	return out, nil
}

// converter collects the new configuration.
type converter struct {
	config.Config                    // the settings; those that differ from the defaults are written
	given         []config.GivenFlag // flags that have the same meaning as keys of the old file
	keys          map[string]string  // the key of the old file, by flag
	policy        []string           // the lines of a policy with parameters; nil: Config.Policy names it
	notes         []string           // keys without a counterpart, each with the advice
}

// note records a key without a counterpart.
func (c *converter) note(key string, n *config.Node, advice string) {
	if advice == "" {
		advice = "no counterpart"
	}
	c.notes = append(c.notes, line(key+value(n)+": "+advice))
}

// noAddresses is the note for files of systems that find the workers by themselves.
const noAddresses = "workers: the old file does not name the engines' addresses; list them: workers: [{url: http://HOST:PORT}]"
