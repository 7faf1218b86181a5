package migrate

import (
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

// dynamo reads a DynamoGraphDeployment: the frontend's variables and arguments.
func (c *converter) dynamo(root *config.Node) {
	spec := root.Get("spec")
	c.variables("spec.envs", spec.Get("envs"))
	for _, s := range spec.Get("services").Keys() { // v1alpha1
		if text(s.Value.Get("componentType")) != "frontend" && !strings.EqualFold(s.Key, "frontend") {
			c.note("spec.services."+s.Key, nil, "start the engines with their own HTTP servers and KV events (docs/engines.md)")
			continue
		}
		key := "spec.services." + s.Key
		c.variables(key, s.Value.Get("envs"))
		main := s.Value.Get("extraPodSpec", "mainContainer")
		c.variables(key, main.Get("env"))
		c.arguments(key, append(texts(main.Get("command")), texts(main.Get("args"))...))
	}
	for _, s := range spec.Get("components").Entries() { // v1beta1
		key := "spec.components " + text(s.Get("name"))
		if text(s.Get("type")) != "frontend" {
			c.note(key, nil, "start the engines with their own HTTP servers and KV events (docs/engines.md)")
			continue
		}
		for _, container := range s.Get("podTemplate", "spec", "containers").Entries() {
			c.variables(key, container.Get("env"))
			c.arguments(key, append(texts(container.Get("command")), texts(container.Get("args"))...))
		}
	}
	c.notes = append(c.notes, noAddresses)
}
